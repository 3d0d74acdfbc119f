"""Real photographs for the notebooks, without a download: crops of images that scikit-image ships in its wheel."""

from __future__ import annotations

import errno
import importlib.util
import os
import pathlib
import random
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

SOURCES = {
    "astronaut": "astronaut.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "galaxies": "hubble_deep_field.jpg",
    "motorcycle": "motorcycle_left.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
    "tissue": "ihc.png",
}
"""Class name -> file in skimage/data. All are in the public domain, CC0, or without known restrictions."""

_NARROWEST, _WIDEST = 320, 640
_QUALITY = 90


def photographs(folder: str | os.PathLike[str] | None = None, count: int = 320) -> pathlib.Path:
    """Create a folder of real JPEG photographs, or reuse the one that an earlier call created.

    The photographs are color crops of eight images: a person, a cat, a cup of coffee, galaxies, a motorcycle, a retina,
    a rocket, and tissue under a microscope. The crops have an aspect ratio of 4:3 and between 320x240 and 640x480
    pixels. The layout is the usual one, `folder/class/0000.jpg`. Every call writes the same files. Nothing is
    downloaded.

    Each file is written atomically, and missing files are written again, so interrupted and concurrent calls do no
    harm.

    Args:
        folder: Where to write them. The default is a subfolder of the user's cache: `$NBLOADER_CACHE`, else
            `$XDG_CACHE_HOME/nbloader`, else `~/.cache/nbloader`.
        count: Total number of photographs, over all classes. 320 photographs take about 14 MB and one second.

    Returns:
        The folder.

    Raises:
        ValueError: `count` is less than one.
        ModuleNotFoundError: Pillow or scikit-image is missing. The message contains the command to install them.
        OSError: The folder cannot be written, or the disk is full; see `errno`.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    target = pathlib.Path(folder) if folder is not None else cache_folder() / f"photographs-{count}"
    names = tuple(SOURCES)
    missing: dict[str, list[int]] = {}
    for i in range(count):
        name, number = names[i % len(names)], i // len(names)
        if not _is_complete(target / name / f"{number:04d}.jpg"):
            missing.setdefault(name, []).append(number)
    try:
        for name, numbers in missing.items():
            (target / name).mkdir(parents=True, exist_ok=True)
            _write_crops(name, numbers, target / name)
    except OSError as error:
        explanation = _explanation(error, target, sum(map(len, missing.values())))
        if explanation is None:
            raise
        raise OSError(error.errno, explanation) from error
    return target


def cache_folder() -> pathlib.Path:
    """Return the folder for files that can be recreated: `$NBLOADER_CACHE`, or a folder in the user's cache."""
    own = os.environ.get("NBLOADER_CACHE")
    if own:
        return pathlib.Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(shared) if shared else pathlib.Path.home() / ".cache") / "nbloader"


def _is_complete(path: pathlib.Path) -> bool:
    # After a power failure, a file can be empty: it may have been renamed before its content reached the disk.
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _write_crops(name: str, numbers: list[int], folder: pathlib.Path) -> None:
    """Write the crops `numbers` of the image of class `name` into `folder`."""
    image = _open(SOURCES[name])
    for number in numbers:
        # Seeded with the file's name, so that its content does not depend on which files were written before it.
        crop = image.crop(_box(image.size, random.Random(f"{name}/{number}")))  # noqa: S311 - not for cryptography
        _write(crop, folder / f"{number:04d}.jpg")


def _box(size: tuple[int, int], rng: random.Random) -> tuple[int, int, int, int]:
    """Choose a 4:3 rectangle (left, top, right, bottom) inside an image of `size` (width, height)."""
    width = rng.randint(_NARROWEST, min(_WIDEST, size[0], size[1] * 4 // 3))
    height = width * 3 // 4
    left, top = rng.randint(0, size[0] - width), rng.randint(0, size[1] - height)
    return left, top, left + width, top + height


def _write(image: Image.Image, path: pathlib.Path) -> None:
    """Save a JPEG atomically: `path` is either absent or complete."""
    part = path.with_name(f"{path.stem}-{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            image.save(file, "JPEG", quality=_QUALITY)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _open(file: str) -> Image.Image:
    """Open an image of skimage/data without importing scikit-image, which would import scipy."""
    remedy = "photographs() needs Pillow and scikit-image: pip install Pillow scikit-image"
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(remedy, name=error.name) from error
    spec = importlib.util.find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(remedy, name="skimage")
    path = pathlib.Path(spec.submodule_search_locations[0]) / "data" / file
    if not path.is_file():
        message = f"this scikit-image does not ship {file}; versions 0.22 to 0.26 do"
        raise FileNotFoundError(errno.ENOENT, message, str(path))
    with Image.open(path) as image:
        converted: Image.Image = image.convert("RGB")
        return converted


def _explanation(error: OSError, folder: pathlib.Path, count: int) -> str | None:
    """Return a message with the cause and a remedy; None for errors without a known remedy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no space left for {count} photographs (about {max(1, count * 40 // 1000)} MB) in {folder}: "
            "free some, request fewer with count=, or set NBLOADER_CACHE to a folder on another disk"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"photographs cannot be written to {folder} ({error.strerror}): "
            "pass another folder, or set NBLOADER_CACHE to one that is writable"
        )
    return None
