"""How a worker writes a batch: into a segment of shared memory, or into a buffer where that is small.

samples -> laid out as the last batch (refill.py), or a plan (collate.py), or an object (objects.py) -> memory
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any, TypeAlias

import cloudpickle
import numpy as np

from nbloader.batch.collate import NotPlannedError, Plan, collate_object, convert
from nbloader.batch.header import NO_SEGMENT, PICKLED
from nbloader.batch.layout_cache import LayoutCache
from nbloader.batch.serialize import ArrayToBeTensor, dump_object
from nbloader.shm.segment import INLINE_LIMIT, SegmentPool
from nbloader.transport.channel import Kind
from nbloader.transport.start import Start

MAX_LAYOUTS = 256
Encoded: TypeAlias = "tuple[int, bytes, int, Any, int]"
"""A batch ready to be sent: (layout, extras, bytes, memory, segment)."""


class Encoder:
    """Collates samples and writes them where the notebook's process will find them.

    Args:
        start: What the worker was sent first.
        collate_fn: The user's, or None for the default.
        send: Tells the notebook's process of a segment or a layout: (kind, *parts, fds=).
    """

    def __init__(self, start: Start, collate_fn: Callable[[Any], Any] | None, send: Callable[..., None]) -> None:
        self._batched = start.batched
        self._output = start.output
        self._as_tensor = ArrayToBeTensor if start.output == "torch" else np.asarray
        self._shared_memory = start.transport == "shared_memory"
        self._collate_fn = collate_fn
        self._send = send
        self._segments = SegmentPool()
        self._layouts: dict[Any, int] = {}
        self._known = LayoutCache()

    def encode(self, samples: Any) -> Encoded:
        """Collate and write.

        Raises:
            Exception: Whatever collating raises; no segment is lost by it.
        """
        if self._collate_fn is not None:
            return self._object(self._collate_fn(samples))
        if not self._batched:
            return self._object(convert(samples, self._as_tensor))
        if not self._shared_memory:
            return self._object(collate_object(samples, self._output))
        if not isinstance(samples, list):
            samples = list(samples)
        return self._alike(samples) or self._planned(samples)

    def give_back(self, segments: list[int]) -> None:
        """Nobody looks at these any more."""
        self._segments.give_back(segments)

    def rest(self) -> None:
        """Nothing is to do for now: keep little."""
        self._drop(self._segments.rest())

    def _alike(self, samples: list[Any]) -> Encoded | None:
        """Fill a batch that is laid out as the one before; None where it is not."""
        known = self._known.get(len(samples))
        if known is None:
            return None
        fill, nbytes, layout = known
        extras: list[Any] = []
        try:
            memory, segment = self._written(nbytes, lambda memory: fill(samples, memory, extras))
        except Exception:  # noqa: BLE001 - whatever is wrong, the plan says it
            self._known.forget(len(samples))
            return None
        return layout, dump_extras(extras), nbytes, memory, segment

    def _planned(self, samples: list[Any]) -> Encoded:
        try:
            plan = Plan(samples)
        except NotPlannedError:
            return self._object(collate_object(samples, self._output))
        layout = self._layout(plan.tree)
        memory, segment = self._written(plan.nbytes, plan.fill)
        self._known.learn(plan, samples, layout)
        return layout, dump_extras(plan.extras), plan.nbytes, memory, segment

    def _object(self, batch: Any) -> Encoded:
        dumped = dump_object(batch, out_of_band=self._shared_memory)
        memory, segment = self._written(dumped.nbytes, dumped.write)
        return PICKLED, dumped.message(), dumped.nbytes, memory, segment

    def _layout(self, tree: Any) -> int:
        layout = self._layouts.get(tree)
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
                self._known = LayoutCache()
            layout = self._layouts[tree] = len(self._layouts)
            self._send(Kind.LAYOUT, layout.to_bytes(8, "little"), cloudpickle.dumps(tree))
        return layout

    def _written(self, nbytes: int, write: Callable[[Any], None]) -> tuple[Any, int]:
        """Memory for a batch, written: a segment, or for a small one a buffer that goes with the message."""
        if nbytes < INLINE_LIMIT:
            memory = bytearray(nbytes)
            write(memory)
            return memory, NO_SEGMENT
        memory, segment = self._take(nbytes)
        try:
            write(memory)
        except BaseException:
            self._segments.give_back([segment])
            raise
        return memory, segment

    def _take(self, nbytes: int) -> tuple[Any, int]:
        segment, memory, fd = self._segments.take(nbytes)
        if fd is not None:
            try:
                self._send(Kind.SEGMENT, segment.to_bytes(8, "little"), fds=(fd,))
            finally:
                os.close(fd)
        self._drop(self._segments.drop_unused())
        return memory, segment

    def _drop(self, segments: list[int]) -> None:
        """These segments are no more: the notebook's process shall forget them."""
        if segments:
            self._send(Kind.DROP, pickle.dumps(segments))


def dump_extras(extras: list[Any]) -> bytes:
    """What of a batch is no array, pickled."""
    return dump_object(extras, out_of_band=False).data if extras else b""
