"""Finds methods of a dataset that torch's rules for `__getitems__` bypass without a word.

torch fetches a batch with `__getitems__` wherever the dataset has it. So a `__getitem__` that a class has added to a
class or an object with `__getitems__` is never called, and neither is the `__getitems__` of a dataset inside a wrapper
that has its own.
"""

from __future__ import annotations

from types import CodeType
from typing import Any


def bypassed_method(dataset: Any) -> str:
    """Describe a method of a dataset that is bypassed; "" if there is none.

    Args:
        dataset: A map-style dataset whose samples are fetched in batches.
    """
    together = getattr(dataset, "__getitems__", None)
    cls = type(dataset)
    one, many = _definer(cls, "__getitem__"), _definer(cls, "__getitems__")
    if together is None or one is None:
        return _bypassed_inside(dataset, many)
    instead = (
        f"Give {cls.__name__} a __getitems__, such as `return [self[i] for i in indices]`, or `__getitems__ = None` to "
        "switch it off"
    )
    inside = getattr(together, "__self__", dataset)
    if many is None and "__getitems__" not in getattr(dataset, "__dict__", ()) and inside is not dataset:
        return (
            f"{cls.__name__}.__getitem__ is not called: batches are fetched with the __getitems__ of the "
            f"{type(inside).__name__} inside, which {cls.__name__} returns by its __getattr__. {instead}"
        )
    if many is not None and _of_torch(many) and one is not many and issubclass(one, many):
        return (
            f"{cls.__name__}.__getitem__ is not called: batches are fetched with the __getitems__ that {cls.__name__} "
            f"inherits from torch's {many.__name__}. {instead}"
        )
    return _bypassed_inside(dataset, many)


def _bypassed_inside(dataset: Any, many: type | None) -> str:
    """Describe a bypassed method of the dataset inside torch's `Subset`, or inside a subclass of it."""
    from torch.utils.data import Subset

    if not isinstance(dataset, Subset):
        return ""
    inside = getattr(dataset, "dataset", None)
    if many is Subset:
        return bypassed_method(inside)
    function = None if many is None else vars(many)["__getitems__"]
    code = getattr(function, "__code__", None)
    unused = function is None or (code is not None and "__getitems__" not in _names(code))
    if not unused or _definer(type(inside), "__getitems__") in (None, Subset):
        return ""
    return (
        f"{type(inside).__name__}.__getitems__ is not called, because {type(dataset).__name__} around it does not call "
        "it. Let __getitems__(self, indices) call `self.dataset.__getitems__([self.indices[i] for i in indices])` there"
    )


def _definer(cls: type, name: str) -> type | None:
    """Return the class from which a class has a method; None if there is none."""
    return next((base for base in cls.__mro__ if name in vars(base)), None)


def _of_torch(cls: type) -> bool:
    return cls.__module__.startswith("torch.utils.data.")


def _names(code: CodeType) -> set[str]:
    """Return the names of attributes and globals in a function and in the functions inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(_names, inner))
