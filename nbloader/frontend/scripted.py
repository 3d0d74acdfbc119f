"""Classes with a JavaScript half: the panels of the dashboard, and the kinds of values of the explorer.

    <name>.py  the class, which turns something into JSON values
    <name>.js  beside it, draws these values in the browser

The kernel serves the JavaScript modules of a registry as one asset, from which `loadModules` in `view.js` imports them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, TypeVar


class Scripted:
    """A class with a JavaScript module."""

    name: ClassVar[str]
    """Name of the JavaScript module, and what messages call the class."""

    @classmethod
    def script(cls) -> Path:
        """Path of the JavaScript module: `<name>.js` beside the Python module."""
        return Path(inspect.getfile(cls)).with_name(f"{cls.name}.js")


S = TypeVar("S", bound=Scripted)


def add(registry: list[type[S]], cls: type[S], at: int) -> None:
    """Add a class to a registry; a registered class with the same name is replaced.

    Args:
        registry: The registry, which is modified.
        cls: The class.
        at: Position of a class with a new name.

    Raises:
        FileNotFoundError: There is no JavaScript module beside its Python module.
    """
    script = cls.script()
    if not script.is_file():
        raise FileNotFoundError(f"{cls.__name__} needs a JavaScript module: {script} does not exist")
    for i, other in enumerate(registry):
        if other.name == cls.name:
            registry[i] = cls
            return
    registry.insert(at, cls)


def sources(registry: Iterable[type[Scripted]]) -> bytes:
    """Return the asset: a JSON object that maps the name of each class to its JavaScript module."""
    return json.dumps({cls.name: cls.script().read_text("utf-8") for cls in registry}).encode()
