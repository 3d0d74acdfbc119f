"""Looks for signs of silent faults in a worker process: copies of a generator, and shards that are not shards.

Each worker looks once. The notebook's process compares what the workers report (`engine/silent_faults.py`).
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from nbloader._util.attributes import Attribute, is_of_package, walk
from nbloader.events.silent_faults import FaultSign, GeneratorDrawn, ShardBegun
from nbloader.workers import worker_info
from nbloader.workers.reachable import global_generators, is_generator

BATCHES = 16
"""Number of batches of a worker after which it no longer looks whether they draw from a generator of the dataset."""
SAMPLES = 4
"""Number of samples of a shard that are compared."""
MAX_BYTES = 1 << 16
"""Size of the part of a sample's array that is compared, in bytes."""
MAX_ITEMS = 32
"""Maximum number of items of a sample's container that are compared."""


class DrawWatch:
    """Looks whether the batches of a worker draw from generators in its copy of the dataset.

    Args:
        dataset: The worker's copy, before the first batch.
        worker: Worker id.
        report: Takes a sign.
    """

    def __init__(self, dataset: Any, worker: int, report: Callable[[FaultSign], object]) -> None:
        self._generators = {attribute.path: attribute.value for attribute in _generators(dataset)}
        self._states = {path: _state(generator) for path, generator in self._generators.items()}
        self._dataset = type(dataset).__name__
        self._worker = worker
        self._report = report
        self._batches = 0

    @property
    def over(self) -> bool:
        """Whether there is nothing left to look for."""
        return not self._generators or self._batches >= BATCHES

    def look(self) -> None:
        """Report the generators that were drawn from. Called after a batch."""
        self._batches += 1
        for path, generator in self._generators.items():
            before, after = self._states[path], _state(generator)
            if after != before:
                kind = type(generator).__name__
                self._report(GeneratorDrawn(self._worker, path, kind, self._dataset, before, after))


def _generators(dataset: Any) -> list[Attribute]:
    """Return the random generators of a dataset: in its attributes, its classes, and the globals of their methods."""
    shared = global_generators()
    found: dict[int, Attribute] = {}
    classes: set[Any] = set()
    for attribute in (Attribute("", dataset), *walk(dataset)):
        cls: Any = type(attribute.value)
        of_class = [] if cls in classes or is_of_package(cls) else _of_class(cls)
        classes.add(cls)
        for each in (attribute, *of_class):
            if is_generator(each.value) and id(each.value) not in shared:
                found.setdefault(id(each.value), each)
    return list(found.values())


def _of_class(cls: type) -> list[Attribute]:
    found = []
    for name, value in vars(cls).items():
        found.append(Attribute(name, value))
        if isinstance(value, FunctionType):
            found += [Attribute(of, value.__globals__.get(of)) for of in value.__code__.co_names]
    return found


def _state(generator: Any) -> int:
    """Return a checksum of a generator's state."""
    if isinstance(generator, random.Random):
        state: Any = generator.getstate()
    elif hasattr(generator, "bit_generator"):
        state = generator.bit_generator.state
    elif hasattr(generator, "manual_seed"):
        return zlib.crc32(generator.get_state().numpy())
    else:
        state = generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.state
    return _checksum(state)


def _checksum(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return zlib.crc32(value.tobytes())
    if isinstance(value, dict):
        return zlib.crc32(repr([(key, _checksum(item)) for key, item in value.items()]).encode())
    return zlib.crc32(repr(value).encode())


class ShardWatch:
    """Compares the beginnings of shards, to notice that each worker reads the whole dataset.

    Args:
        report: Takes a sign.
    """

    def __init__(self, report: Callable[[FaultSign], object]) -> None:
        self._report = report
        self._samples: list[int] = []
        self.over = False
        """Whether nothing more is looked at."""

    def look(self, dataset: str, shard: int, batch: int, samples: Sequence[Any], *, last: bool) -> None:
        """Look at the samples of a batch.

        Args:
            dataset: Name of the dataset's class.
            shard: The shard.
            batch: Number of the batch in the shard, from 0.
            samples: The samples.
            last: Whether the shard is exhausted.
        """
        if not batch:
            self._samples.clear()
        elif not self._samples:  # a shard that was resumed
            self.over = True
            return
        for sample in samples[: SAMPLES - len(self._samples)]:
            content = _content(sample)
            if content is None:
                self.over = True
                return
            self._samples.append(zlib.crc32(content))
        if len(self._samples) >= SAMPLES or last:
            self.over = True
            self._report(ShardBegun(shard, dataset, tuple(self._samples), worker_info.was_used()))


def _content(value: Any) -> bytes | None:
    """Return the beginning of a sample's content; None if it consists of other types."""
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor:
        value = value.detach().numpy() if value.is_cpu and value.layout is torch.strided else None
        if value is None:
            return None
    if isinstance(value, np.ndarray) and value.dtype != object:
        return repr((value.shape, value.dtype)).encode() + value.reshape(-1)[: MAX_BYTES // value.itemsize].tobytes()
    if isinstance(value, (str, bytes)):
        value = value[:MAX_BYTES]
    elif isinstance(value, dict):
        value = [part for item in list(value.items())[:MAX_ITEMS] for part in item]
    if isinstance(value, (list, tuple)):
        parts = [_content(item) for item in value[:MAX_ITEMS]]
        return None if None in parts else b"".join(part for part in parts if part is not None)
    if value is None or isinstance(value, (str, bytes, bool, int, float, complex, np.generic)):
        return repr(value).encode()
    return None
