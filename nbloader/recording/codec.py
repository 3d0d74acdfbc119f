"""Convert events and snapshots to JSON values and back. Pure.

The types of the fields determine the conversion. A record becomes an object of its fields; a field that has its default
value is left out. Decoding checks each value against its type, ignores unknown fields, and sets missing fields to their
default. Versions that differ in a few fields can therefore read each other's files.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from nbloader._util.format import clean
from nbloader.events import BatchRecord, Event, records

Json: TypeAlias = Any
"""None, bool, int, finite float, str, list, or dict with str keys."""

TEXT = 4096
"""Largest number of characters of a text; longer texts are cut."""
DEPTH, LENGTH = 4, 64
"""Limits of tuples in a dataset index: levels of nesting, beyond which they become text, and elements per tuple."""
BITS = 64
"""Largest size of the numbers in records, bits. Elements of a dataset index may be larger."""
STAMPS = (
    "dispatched", "fetch_begin", "fetched", "collated", "received", "in_order", "delivered", "returned",
)  # fmt: skip
"""Timestamps of a batch that are written as the difference from `requested`, because small numbers compress well."""

EVENTS: dict[str, type] = {
    kind.__name__: kind for kind in typing.get_args(records.LifecycleEvent) if kind is not BatchRecord
}
"""All types of events except batch records, by name."""


class _Field(NamedTuple):
    name: str
    kind: Any
    default: Any
    """Default value; `_EMPTY` if there is none."""


_EMPTY = inspect.Parameter.empty


@cache
def _fields(cls: type) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    parameters = inspect.signature(cls).parameters.values()
    return tuple(_Field(p.name, hints[p.name], p.default) for p in parameters)


@cache
def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))


@cache
def encoder(kind: Any) -> Callable[[Any], Json]:
    """Return the function that converts values of a type to JSON values.

    Args:
        kind: A record (dataclass or named tuple), `tuple[X, ...]`, `X | None`, `Any`, float, int, str, bool.
    """
    if kind in _ENCODERS:
        return _ENCODERS[kind]
    if typing.get_origin(kind) is tuple:
        item = encoder(typing.get_args(kind)[0])
        return lambda values: [item(value) for value in values]
    if not _is_record(kind):
        present = encoder(_present(kind))
        return lambda value: None if value is None else present(value)
    fields = [(field.name, encoder(field.kind), field.default) for field in _fields(kind)]

    def encode_record(record: Any) -> Json:
        values = ((name, encode, default, getattr(record, name)) for name, encode, default in fields)
        return {name: encode(value) for name, encode, default, value in values if default is _EMPTY or value != default}

    return encode_record


def encode(record: Any) -> Json:
    """Convert an event, a snapshot or another record to a JSON value."""
    kind: Any = type(record)
    return encoder(kind)(record)


def plain(value: Any, depth: int = DEPTH) -> Json:
    """Convert a dataset index of any type. Numbers, texts and tuples of them are kept; anything else becomes text."""
    if isinstance(value, (tuple, list)) and depth:
        return [plain(element, depth - 1) for element in itertools.islice(value, LENGTH)]
    if value is None or type(value) in (int, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    number = _number(value)
    return clean(value) if number is None else number


def _number(value: Any) -> int | float | None:
    try:
        if isinstance(value, numbers.Integral):
            return int(value)
        return float(value) if isinstance(value, numbers.Real) and math.isfinite(value) else None
    except Exception:  # noqa: BLE001 - a number of the user's own may raise anything
        return None


def _text(value: str) -> str:
    return str(value) if len(value) <= TEXT else value[: TEXT - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _float(value: float) -> Json:
    return float(value) if math.isfinite(value) else str(float(value))


def _same(value: Any) -> Any:
    return value


_ENCODERS: dict[Any, Callable[[Any], Json]] = {Any: plain, float: _float, str: _text, int: _same, bool: _same}


@cache
def decoder(kind: Any) -> Callable[[Json], Any]:
    """Return the inverse of `encoder(kind)`. The function raises a ValueError if a value does not have the type."""
    if kind in _DECODERS:
        return _DECODERS[kind]
    if typing.get_origin(kind) is tuple:
        item = decoder(typing.get_args(kind)[0])
        return lambda values: tuple(map(item, _checked(values, list)))
    if not _is_record(kind):
        present = decoder(_present(kind))
        return lambda value: None if value is None else present(value)
    fields = [(field.name, decoder(field.kind)) for field in _fields(kind)]
    needed = {field.name for field in _fields(kind) if field.default is _EMPTY}

    def decode_record(value: Json) -> Any:
        if missing := needed - _checked(value, dict).keys():
            raise ValueError(f"{kind.__name__} without {', '.join(sorted(missing))}")
        return kind(**{name: decode(value[name]) for name, decode in fields if name in value})

    return decode_record


def _checked(value: Json, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise ValueError(f"{clean(value, 40)!r} where {kinds[0].__name__} is expected")
    return value


def _decode_float(value: Json) -> float:
    return float(value if value in ("nan", "inf", "-inf") else _checked(value, float, int))


def _decode_int(value: Json) -> int:
    if abs(_checked(value, int)) >> BITS:
        raise ValueError(f"a number of {value.bit_length():,} bits where at most {BITS} are expected")
    return int(value)


def _tuples(value: Json) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


_DECODERS: dict[Any, Callable[[Json], Any]] = {
    Any: _tuples,
    float: _decode_float,
    str: lambda value: _checked(value, str),
    int: _decode_int,
    bool: lambda value: _checked(value, bool),
}


def _present(kind: Any) -> Any:
    """The type X of `X | None`."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (present,) = (member for member in typing.get_args(kind) if member is not types.NoneType)
        return present
    raise TypeError(f"fields of type {kind} are not supported")


# ---- events ---------------------------------------------------------------------------------------------------------


def encode_events(events: Sequence[Event]) -> Iterator[dict[str, Json]]:
    """Convert events to entries of a file, in order: batch records in columns, all other events one by one."""
    for is_batch, group in itertools.groupby(events, key=lambda event: isinstance(event, BatchRecord)):
        if is_batch:
            yield {"batches": _columns(list(group))}  # type: ignore[arg-type]
        else:
            for event in group:
                yield {"event": [type(event).__name__, encode(event)]}


def decode_event(value: Json) -> Event | None:
    """Invert `encode_events` for an entry "event"; None for an event that this version does not know.

    Raises:
        ValueError: The entry is malformed.
    """
    if len(_checked(value, list)) != len(("name", "fields")):
        raise ValueError("an event is not a name and its fields")
    cls = EVENTS.get(_checked(value[0], str))
    event: Event | None = None if cls is None else decoder(cls)(value[1])
    return event


def _columns(batches: Sequence[BatchRecord]) -> dict[str, list[Json]]:
    columns = {
        field.name: list(values) if field.kind is int else [*map(encoder(field.kind), values)]
        for field, values in zip(_fields(BatchRecord), zip(*batches, strict=True), strict=True)
    }
    requested = columns["requested"]
    for name in STAMPS:
        columns[name] = [stamp - begin for stamp, begin in zip(columns[name], requested, strict=True)]
    columns["requested"] = [requested[0], *(b - a for a, b in itertools.pairwise(requested))]
    return columns


def decode_batches(value: Json) -> list[BatchRecord]:
    """Invert `encode_events` for an entry "batches".

    Raises:
        ValueError: The entry is malformed.
    """
    needed = [f for f in _fields(BatchRecord) if f.default is _EMPTY or f.name in _checked(value, dict)]
    columns = {f.name: tuple(map(decoder(f.kind), _checked(value.get(f.name), list))) for f in needed}
    if len(set(map(len, columns.values()))) != 1:
        raise ValueError("the columns of batches differ in length")
    requested = tuple(itertools.accumulate(columns["requested"]))
    columns["requested"] = requested
    for name in STAMPS:
        columns[name] = tuple(begin + stamp for begin, stamp in zip(requested, columns[name], strict=True))
    return [BatchRecord(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]
