"""Seeds the objects of a dataset that have random generators of their own (`seeders`), along with the global ones."""

from __future__ import annotations

import collections
import copy
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from nbloader._util.attributes import attributes_of
from nbloader._util.rng import mix
from nbloader.workers import seeders
from nbloader.workers.reachable import edges, seedables

log = logging.getLogger(__name__)
Seed: TypeAlias = "Callable[[int], object]"
"""Seeds the random generators."""


def keep_state(_seed: int) -> None:
    """Do nothing. This is passed as the seed function if generators are already seeded, or must not be seeded."""


Parts = TypeVar("Parts", bound=tuple[Any, ...])


class Seeding:
    """The objects to be seeded for each batch.

    Args:
        roots: The dataset and functions, in the order in which the loader passes them. What an object draws depends on
            its position among the objects of its root.
    """

    def __init__(self, *roots: Any) -> None:
        self._found = [
            (number, position, found)
            for number, of_root in enumerate(seedables(*roots))
            for position, found in enumerate(of_root)
        ]

    def __bool__(self) -> bool:
        """Whether there are such objects."""
        return bool(self._found)

    def after(self, seed: Seed) -> Seed:
        """Return a function that seeds the generators with another function, and then these objects."""
        if not self._found:
            return seed

        def seed_all(value: int) -> None:
            seed(value)
            for root, position, found in self._found:
                found.seed(found.obj, mix(value, root, position) & 0xFFFFFFFF)

        return seed_all


def private(parts: Parts) -> Parts | None:
    """Return copies of a dataset and functions whose seeded objects no other thread draws from.

    Only these objects and what leads to them are copied. Everything else is shared with the originals.

    Args:
        parts: The dataset and functions; any tuple.

    Returns:
        The copies; the originals if there are no such objects; None if the objects cannot be replaced, for example
        because a function has one in its closure.
    """
    if not seeders.may_apply():
        return parts
    objects = [found.obj for of_root in seedables(*parts) for found in of_root]
    if not objects:
        return parts
    try:
        made = {id(obj): copy.deepcopy(obj) for obj in objects}
    except Exception:  # copying runs the user's code, which may raise anything
        log.debug("an object of a registered class cannot be copied for a thread", exc_info=True)
        return None
    leading = _leading_to(objects, parts)
    copies = [_with(part, made, leading) for part in parts]
    known = set(map(id, objects))
    copied = [found.obj for of_root in seedables(*copies) for found in of_root]
    if len(copied) != len(objects) or not known.isdisjoint(map(id, copied)):
        return None
    return type(parts)._make(copies) if hasattr(parts, "_make") else type(parts)(copies)


def _with(obj: Any, made: dict[int, Any], leading: dict[int, Any]) -> Any:
    """Return an object in which some objects that it refers to are replaced.

    Args:
        obj: The object. It is not changed: objects that lead to the replaced ones are copied with all their attributes,
            also those that they leave out when they are pickled. Objects that cannot be copied are returned unchanged.
        made: The replacements by the id of the original; the copies are added.
        leading: The objects that lead to the replaced ones, by id.
    """
    if id(obj) in made or id(obj) not in leading:
        return made.get(id(obj), obj)
    made[id(obj)] = obj
    kind = type(obj)
    if kind is list:
        items: list[Any] = []
        made[id(obj)] = items
        items.extend(_with(part, made, leading) for part in obj)
    elif kind is dict:
        mapping: dict[Any, Any] = {}
        made[id(obj)] = mapping
        mapping.update((key, _with(part, made, leading)) for key, part in obj.items())
    elif kind is tuple:
        made[id(obj)] = tuple(_with(part, made, leading) for part in obj)
    elif _is_its_attributes(kind):
        made[id(obj)] = copied = object.__new__(kind)
        attributes_of(copied).update((name, _with(part, made, leading)) for name, part in attributes_of(obj).items())
    return made[id(obj)]


def _is_its_attributes(kind: Any) -> bool:
    """Whether objects of a class consist of their `__dict__`."""
    return kind.__new__ is object.__new__ and not any(vars(base).get("__slots__") for base in kind.__mro__)


def _leading_to(objects: Iterable[Any], roots: Iterable[Any]) -> dict[int, Any]:
    """Return the objects through which some objects are reached from the roots, by id, without these themselves."""
    users: dict[int, list[Any]] = collections.defaultdict(list)
    for obj, referents in edges(*roots):
        for part in referents:
            users[id(part)].append(obj)
    leading: dict[int, Any] = {}
    queue = collections.deque(objects)
    while queue:
        for user in users[id(queue.popleft())]:
            if id(user) not in leading:
                leading[id(user)] = user
                queue.append(user)
    return leading
