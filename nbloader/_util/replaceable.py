"""A property that an attribute of the instance replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

OwnerT = TypeVar("OwnerT")
T = TypeVar("T")


class ReplaceableProperty(Generic[OwnerT, T]):
    """A read-only property that an instance may replace by an attribute of its own.

    Subclasses of torch's loader have attributes of any name, such as `self.trace`. An assignment to a `property`
    without a setter would raise; with this one the subclass has its attribute.

    Args:
        compute: Returns the value.
    """

    def __init__(self, compute: Callable[[OwnerT], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> ReplaceableProperty[OwnerT, T]: ...

    @overload
    def __get__(self, instance: OwnerT, owner: type[Any]) -> T: ...

    def __get__(self, instance: OwnerT | None, owner: type[Any]) -> Any:
        """The value, unless the instance has an attribute of this name: Python then does not ask."""
        return self if instance is None else self._compute(instance)
