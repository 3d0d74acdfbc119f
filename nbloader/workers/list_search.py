"""Find the line that searches a list, in a frame that has handled a signal one or more lines later.

CPython handles signals at calls and at the ends of loops only. `x in values` is neither, so a signal that arrives
meanwhile is handled at one of the next lines. Which line took the time follows from the bytecode in between, and from
the type of `values`: a search of a long list takes far longer than instructions and quick calls.
"""

from __future__ import annotations

import dis
import functools
from types import CodeType, FrameType
from typing import Any, NamedTuple

LONG = 100
"""Minimum length of a list whose search takes notable time."""
MAX_CODES = 256
"""Number of functions whose instructions are kept."""
QUICK = frozenset(("abs", "add", "append", "discard", "float", "get", "int", "isinstance", "len", "ord", "setdefault"))
"""Functions and methods that take less time than the search."""
_BEFORE = ("JUMP_BACKWARD", "JUMP_ABSOLUTE", "RESUME", "SEND", "YIELD_VALUE")
"""Beginnings of the names of instructions that handle signals, so that an earlier signal was handled there."""
_VARIABLE = ("LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME", "STORE_FAST_LOAD_FAST")


class _Instruction(NamedTuple):
    offset: int
    name: str
    value: Any
    line: int


def searching_line(frame: FrameType) -> int | None:
    """Return the number of the line before the current one that took the time to search a long list.

    Args:
        frame: The frame that handles a signal.

    Returns:
        The number; None if there is no such line, or if a call after it may have taken the time.
    """
    instructions = _instructions(frame.f_code)
    at = next((n for n, one in enumerate(instructions) if one.offset >= frame.f_lasti), 0)
    unknown = 0  # calls, without those of quick functions
    for n in range(at, 0, -1):
        _offset, name, value, line = instructions[n]
        if name.startswith(_BEFORE) and n < at:
            return None
        unknown += name.startswith("CALL")
        unknown -= name.startswith("LOAD_") and value in QUICK
        if name == "CONTAINS_OP" and line != frame.f_lineno and _is_long_list(instructions[n - 1], frame):
            return line if unknown <= 0 else None
    return None


@functools.lru_cache(MAX_CODES)
def _instructions(code: CodeType) -> list[_Instruction]:
    lines, line = dict(dis.findlinestarts(code)), code.co_firstlineno
    found = []
    for one in dis.get_instructions(code):
        line = lines.get(one.offset) or line
        found.append(_Instruction(one.offset, one.opname, one.argval, line))
    return found


def _is_long_list(loaded: _Instruction, frame: FrameType) -> bool:
    """Whether an instruction has loaded a long list: from a variable, or from an attribute of `self`."""
    name = loaded.value[-1] if isinstance(loaded.value, tuple) else loaded.value
    value: Any = None
    if loaded.name == "LOAD_ATTR":
        try:
            value = object.__getattribute__(frame.f_locals.get("self"), "__dict__").get(name)
        except AttributeError:
            return False
    elif loaded.name.startswith(_VARIABLE):
        value = frame.f_locals.get(name, frame.f_globals.get(name))
    return type(value) in (list, tuple) and len(value) >= LONG
