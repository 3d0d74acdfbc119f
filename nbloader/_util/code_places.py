"""Places in source code as a user names them: "cell 4 line 12", "data.py:12"; and the text of a line."""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
from pathlib import Path

from nbloader._util.system import working_directory

PACKAGE = str(Path(__file__).parents[1]) + os.sep
"""Where the modules of nbloader lie."""
_STDLIB = os.path.dirname(os.__file__)  # noqa: PTH120 - quicker; sysconfig, which workers do without, takes longer
_PACKAGES = ("site-packages", "dist-packages")
_BELOW_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in _PACKAGES)
_NO_FILE = ("<frozen ", "<string>")
_FRAME = r'(?m)^  File "(.+)", line (\d+), in .+\n(?!    )'
"""A frame of a traceback without the text of its line. Not compiled: workers, which need it rarely, start sooner."""


@functools.cache
def is_library(file: str) -> bool:
    """Whether code is not the user's own: of nbloader, of Python, or of an installed package.

    Args:
        file: `co_filename` of the code.
    """
    return file.startswith((PACKAGE, *_NO_FILE)) or is_installed(file)


def is_python(file: str) -> bool:
    """Whether code is of Python's standard library, or of an interpreter's command line.

    Args:
        file: `co_filename` of the code.
    """
    return file.startswith((_STDLIB + os.sep, *_NO_FILE)) and not any(part in file for part in _BELOW_PACKAGES)


def is_installed(file: str) -> bool:
    """Whether a file or folder belongs to Python or an installed package. One that is installed as editable does not.

    Args:
        file: Its path. A symbolic link in a package's folder counts as the package's, unless it is resolved.
    """
    entries: list[object] = list(sys.path)
    folders = _installed_folders(tuple(entry for entry in entries if isinstance(entry, str)))
    return file.startswith(folders) or any(part in file for part in _BELOW_PACKAGES)


@functools.lru_cache(maxsize=1)
def _installed_folders(sys_path: tuple[str, ...]) -> tuple[str, ...]:
    """Where paths of installed files may begin that do not say it by `_PACKAGES`."""
    linked = {os.path.realpath(entry) for entry in sys_path if entry.endswith(_PACKAGES)}
    return tuple(f"{folder}{os.sep}" for folder in {_STDLIB, os.path.realpath(_STDLIB), *linked})


def cell_name(file: str) -> str:
    """The name of a cell, "Cell In[3]", for the file name that IPython gives to its code; else ""."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = shell.compile.format_code_name(file) if shell is not None else None
    return " ".join(named) if named else ""


def place_of(file: str, line: int) -> str:
    """A line as a user names it: "cell 4 line 12", "data.py:12" (below the working directory), "PIL/Image.py:2185"."""
    number = re.search(r"\d+", cell_name(file))
    if number is not None:
        return f"cell {number[0]} line {line}"
    path = Path(file)
    below = working_directory()
    if below is not None and not is_library(file) and path.is_relative_to(below):
        return f"{path.relative_to(below)}:{line}"
    return f"{Path(*path.parts[-2:])}:{line}"


def source_line(file: str, line: int) -> str:
    """The text of a line, without indentation; "" if it is not known. In the notebook's process, cells are known."""
    return linecache.getline(file, line).strip()


def with_source_lines(traceback: str) -> str:
    """A traceback of another process, with the lines that are missing: that process does not know the cells."""

    def complete(frame: re.Match[str]) -> str:
        text = source_line(frame[1], int(frame[2]))
        return f"{frame[0]}    {text}\n" if text else frame[0]

    return re.sub(_FRAME, complete, traceback)
