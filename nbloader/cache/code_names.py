"""The names in the code of a function: the globals it uses, its attributes, and the modules that it imports."""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib.util
from collections.abc import Iterator
from types import CodeType

_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
"""Instructions that access globals. LOAD_NAME occurs in class bodies; cloudpickle looks for the others."""
_CONSTANT = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})


@functools.lru_cache(maxsize=4096)
def global_names(code: CodeType) -> tuple[str, ...]:
    """Return the names of the globals that code uses, including the code of nested functions."""
    return tuple(sorted(set(_globals(code))))


@functools.lru_cache(maxsize=4096)
def all_names(code: CodeType) -> frozenset[str]:
    """Return all names that occur in code: of globals, attributes and modules."""
    return frozenset(code.co_names).union(*map(all_names, _nested(code)))


@functools.lru_cache(maxsize=4096)
def stored_into(code: CodeType) -> frozenset[str]:
    """Return the names of the globals whose items code assigns, as in `CACHE[key] = value`."""
    return frozenset(_stored_into(code))


@functools.lru_cache(maxsize=4096)
def imported_modules(code: CodeType, package: str) -> tuple[str, ...]:
    """Return the absolute names of the modules that code imports.

    Args:
        code: The code of a function.
        package: The package of the function's module, for relative imports.
    """
    return tuple(sorted(set(_imports(code, package))))


def _globals(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL:
            yield instruction.argval
    for nested in _nested(code):
        yield from _globals(nested)


def _stored_into(code: CodeType) -> Iterator[str]:
    instructions = list(dis.get_instructions(code))
    for number, instruction in enumerate(instructions):
        if instruction.opname != "STORE_SUBSCR":
            continue
        pushed = 0  # by the code of the key, which the code of the container precedes
        for before in range(number - 1, 0, -1):
            one = instructions[before]
            pushed += dis.stack_effect(one.opcode, one.arg, jump=False)
            if pushed >= 1:
                container = instructions[before - 1]
                if pushed == 1 and container.opname == "LOAD_GLOBAL":
                    yield container.argval
                break
    for nested in _nested(code):
        yield from _stored_into(nested)


def _nested(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _imports(code: CodeType, package: str) -> Iterator[str]:
    constants: list[object] = [0, None]
    for instruction in dis.get_instructions(code):
        if instruction.opname in _CONSTANT:
            constants = [constants[-1], instruction.argval]
        elif instruction.opname == "IMPORT_NAME":
            dots = "." * (constants[0] if isinstance(constants[0], int) else 0)
            with contextlib.suppress(ImportError):  # a relative import outside of a package
                yield importlib.util.resolve_name(dots + instruction.argval, package)
    for nested in _nested(code):
        yield from _imports(nested, package)
