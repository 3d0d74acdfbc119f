"""Names of source lines as users write them, such as "cell 4 line 12" or "data.py:12", and the text of such lines."""

from __future__ import annotations

import dis
import functools
import linecache
import os
import re
import sys
from pathlib import Path
from types import CodeType, FrameType, FunctionType

from nbloader._platform import working_directory

PACKAGE = str(Path(__file__).parents[1]) + os.sep
"""The directory that contains nbloader's modules."""
_STDLIB = os.path.dirname(os.__file__)  # noqa: PTH120 - quicker; sysconfig, which workers do without, takes longer
_PACKAGES = ("site-packages", "dist-packages")
_BELOW_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in _PACKAGES)
_NESTED = 4
"""Number of samplers that are looked at if each draws from another one."""
_NO_FILE = ("<frozen ", "<string>")
_FRAME = r'(?m)^  File "(.+)", line (\d+), in .+\n(?!    )'
"""Matches a traceback frame that lacks its source line. Not compiled on import, so that workers start sooner."""


def line_number(frame: FrameType) -> int:
    """Return the line that a frame executes.

    Before Python 3.12, the jump to the next pass of `for x in y: if z: ...` belongs to no line, and this is where a
    signal handler or another thread finds such a loop. Its line is then the first one of the loop.
    """
    return frame.f_lineno or _line_of_jump(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=1000)
def _line_of_jump(code: CodeType, offset: int) -> int:
    """Return the line to which the instruction at an offset jumps or, if it is no jump, the line before it."""
    jumps = {one.offset: one.argval for one in dis.get_instructions(code) if one.opcode in (*dis.hasjabs, *dis.hasjrel)}
    at = jumps.get(offset, offset)
    lines = [line for start, _end, line in code.co_lines() if line is not None and start <= at]
    return lines[-1] if lines else code.co_firstlineno


@functools.cache
def is_library(file: str) -> bool:
    """Return whether code belongs to nbloader, Python or an installed package, rather than to the user.

    Args:
        file: `co_filename` of the code.
    """
    return file.startswith((PACKAGE, *_NO_FILE)) or is_installed(file)


def is_python(file: str) -> bool:
    """Return whether code belongs to Python's standard library, or was passed on the interpreter's command line.

    Args:
        file: `co_filename` of the code.
    """
    return file.startswith((_STDLIB + os.sep, *_NO_FILE)) and not any(part in file for part in _BELOW_PACKAGES)


def is_installed(file: str) -> bool:
    """Return whether a file or folder belongs to Python or to an installed package that is not an editable install.

    Args:
        file: The path. A symbolic link inside a package's folder belongs to the package, unless the caller resolves it.
    """
    entries: list[object] = list(sys.path)
    folders = _installed_folders(tuple(entry for entry in entries if isinstance(entry, str)))
    return file.startswith(folders) or any(part in file for part in _BELOW_PACKAGES)


@functools.lru_cache(maxsize=1)
def _installed_folders(sys_path: tuple[str, ...]) -> tuple[str, ...]:
    """Return prefixes of paths to installed files, for files whose paths need not contain a name of `_PACKAGES`."""
    linked = {os.path.realpath(entry) for entry in sys_path if entry.endswith(_PACKAGES)}
    return tuple(f"{folder}{os.sep}" for folder in {_STDLIB, os.path.realpath(_STDLIB), *linked})


def cell_name(file: str) -> str:
    """Return the name of a cell, such as "Cell In[3]", from the file name that IPython gives its code; otherwise ""."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = shell.compile.format_code_name(file) if shell is not None else None
    return " ".join(named) if named else ""


def place_of(file: str, line: int) -> str:
    """Return the name of a line: "cell 4 line 12", "data.py:12" (below the working directory), "PIL/Image.py:2185"."""
    number = re.search(r"\d+", cell_name(file))
    if number is not None:
        return f"cell {number[0]} line {line}"
    path = Path(file)
    below = working_directory()
    if below is not None and not is_library(file) and path.is_relative_to(below):
        return f"{path.relative_to(below)}:{line}"
    return f"{Path(*path.parts[-2:])}:{line}"


def place_of_sampler(sampler: object) -> str:
    """Return the user's function that draws indices, such as "Balanced.__iter__ (cell 4 line 12)"; "" if there is none.

    Args:
        sampler: A sampler or a batch sampler, which may draw from another one, its attribute `sampler`.
    """
    for _ in range(_NESTED):
        function = getattr(type(sampler), "__iter__", None)
        if isinstance(function, FunctionType) and not is_library(function.__code__.co_filename):
            code = function.__code__
            return f"{function.__qualname__} ({place_of(code.co_filename, code.co_firstlineno)})"
        sampler = getattr(sampler, "__dict__", {}).get("sampler")  # no property, which may raise
    return ""


def source_line(file: str, line: int) -> str:
    """Return the text of a line without indentation; "" if unknown. Cells are known only in the notebook's process."""
    return linecache.getline(file, line).strip()


def with_source_lines(traceback: str) -> str:
    """Add missing source lines to a traceback from another process, which does not know the source of the cells."""

    def complete(frame: re.Match[str]) -> str:
        text = source_line(frame[1], int(frame[2]))
        return f"{frame[0]}    {text}\n" if text else frame[0]

    return re.sub(_FRAME, complete, traceback)
