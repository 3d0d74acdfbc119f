"""photographs() writes real JPEG files atomically, and its errors name the cause and a remedy."""

from __future__ import annotations

import errno
import os
import pathlib
import subprocess
import sys
import threading

import pytest
from PIL import Image

from nbloader import demo


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_writes_jpegs_in_one_folder_per_class(tmp_path):
    folder = demo.photographs(tmp_path, count=20)
    assert folder == tmp_path
    assert {p.name for p in folder.iterdir()} == set(demo.SOURCES)
    paths = sorted(folder.rglob("*.jpg"))
    assert len(paths) == 20
    for path in paths:
        with Image.open(path) as image:
            image.load()
            width, height = image.size
            assert (image.format, image.mode) == ("JPEG", "RGB")
        assert 320 <= width <= 640
        assert 240 <= height <= 480


def test_the_files_are_photographs_and_differ(tmp_path):
    found = files(demo.photographs(tmp_path, count=40))
    assert len(set(found.values())) == 40
    for name in found:
        with Image.open(tmp_path / name) as image:
            colours = image.resize((64, 48)).getcolors(64 * 48) or []
        assert len(colours) > 300, f"{name} has only {len(colours)} colours"


def test_the_files_are_reproducible_and_do_not_depend_on_the_count(tmp_path):
    few, many = files(demo.photographs(tmp_path / "a", count=9)), files(demo.photographs(tmp_path / "b", count=20))
    assert few == {name: many[name] for name in few}


def test_a_second_call_writes_nothing(tmp_path):
    demo.photographs(tmp_path, count=8)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    demo.photographs(tmp_path, count=8)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == times


def test_missing_and_empty_files_are_written_again(tmp_path):
    whole = files(demo.photographs(tmp_path, count=16))
    (tmp_path / "cat/0000.jpg").unlink()
    (tmp_path / "retina/0001.jpg").write_bytes(b"")
    assert files(demo.photographs(tmp_path, count=16)) == whole


def test_an_interrupted_call_leaves_only_complete_files_and_the_next_call_writes_the_rest(tmp_path, monkeypatch):
    whole = files(demo.photographs(tmp_path / "whole", count=16))
    saves = []

    def save_half_of_the_tenth(image, file, *args, **kwargs):
        saves.append(file)
        if len(saves) == 10:
            file.write(b"\xff\xd8\xff")
            raise KeyboardInterrupt
        original(image, file, *args, **kwargs)

    original = Image.Image.save
    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", save_half_of_the_tenth)
        with pytest.raises(KeyboardInterrupt):
            demo.photographs(tmp_path / "cut", count=16)
    part = files(tmp_path / "cut")
    assert len(part) == 9
    assert part.items() <= whole.items()
    assert files(demo.photographs(tmp_path / "cut", count=16)) == whole


def test_two_concurrent_processes_write_the_same_files(tmp_path):
    whole = files(demo.photographs(tmp_path / "whole", count=24))
    code = "import sys; from nbloader import demo; input(); demo.photographs(sys.argv[1], count=24)"
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "shared")], stdin=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in both:
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in both:
        process.communicate(timeout=90)
    assert [process.returncode for process in both] == [0, 0]
    assert files(tmp_path / "shared") == whole


def test_concurrent_threads_write_all_files(tmp_path):
    threads = [threading.Thread(target=demo.photographs, args=(tmp_path, 16)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files(tmp_path)) == 16


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"NBLOADER_CACHE": "/n", "XDG_CACHE_HOME": "/x"}, "/n"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/nbloader"),
        ({"NBLOADER_CACHE": "", "XDG_CACHE_HOME": ""}, "/h/.cache/nbloader"),
        ({}, "/h/.cache/nbloader"),
    ],
)
def test_the_environment_selects_the_cache_folder(monkeypatch, variables, expected):
    for name in ("NBLOADER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("USERPROFILE", "/h")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert demo.cache_folder() == pathlib.Path(expected)


def test_the_default_folder_is_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NBLOADER_CACHE", str(tmp_path))
    assert demo.photographs(count=8) == tmp_path / "photographs-8"
    assert len(files(tmp_path)) == 8


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_refused(tmp_path, count):
    with pytest.raises(ValueError, match=f"count must be at least 1, not {count}"):
        demo.photographs(tmp_path, count=count)


@pytest.mark.parametrize("package", ["PIL", "skimage"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, package):
    code = f"import sys; sys.modules[{package!r}] = None\n"
    code += "from nbloader import demo\ndemo.photographs(sys.argv[1], count=8)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert "pip install Pillow scikit-image" in last


def test_a_full_disk_is_reported_and_leaves_no_partial_file(tmp_path, monkeypatch):
    def full(image, file, *args, **kwargs):
        file.write(b"\xff\xd8\xff")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match=r"no space left for 320 photographs \(about 12 MB\).*NBLOADER_CACHE") as caught:
        demo.photographs(tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert files(tmp_path) == {}


def test_an_unwritable_folder_is_reported_with_a_remedy(tmp_path, monkeypatch):
    def refuse(path, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))

    monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
    with pytest.raises(PermissionError, match=r"cannot be written .*Permission denied.* another folder"):
        demo.photographs(tmp_path, count=8)


def test_a_file_instead_of_the_folder_keeps_its_error_type(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((NotADirectoryError, FileExistsError)):
        demo.photographs(tmp_path / "file", count=8)


def test_an_image_missing_from_scikit_image_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(demo.SOURCES, "cat", "absent.png")
    with pytest.raises(FileNotFoundError, match=r"does not ship absent\.png"):
        demo.photographs(tmp_path, count=8)
