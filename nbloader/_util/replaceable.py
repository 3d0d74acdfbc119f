"""A property that an instance attribute of the same name can replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

OwnerT = TypeVar("OwnerT")
T = TypeVar("T")


class ReplaceableProperty(Generic[OwnerT, T]):
    """A read-only property that an instance may replace with an instance attribute.

    Subclasses of torch's loader may have attributes of any name, such as `self.trace`. Assigning to a `property`
    without a setter would raise an error. Assigning to this one creates an instance attribute, which hides it.

    Args:
        compute: Function that returns the value of the property for an instance.
    """

    def __init__(self, compute: Callable[[OwnerT], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> ReplaceableProperty[OwnerT, T]: ...

    @overload
    def __get__(self, instance: OwnerT, owner: type[Any]) -> T: ...

    def __get__(self, instance: OwnerT | None, owner: type[Any]) -> Any:
        """Return the value. Python does not call this if the instance has an attribute of the same name."""
        return self if instance is None else self._compute(instance)
