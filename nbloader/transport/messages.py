"""What the pool reports: a batch, a failure, the stages of a worker's life, its output."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nbloader.batch.collate import Build, builder
from nbloader.batch.serialize import load_object
from nbloader.events.failures import Described, Failure, Nothing, SpareSample
from nbloader.transport.channel import Bytes
from nbloader.workers.batch_builder import LocalParcel
from nbloader.workers.encode import NO_SEGMENT, PICKLED, PLACED
from nbloader.workers.process_worker import RESULT

if TYPE_CHECKING:
    from nbloader.workers.api import Handle
    from nbloader.workers.process import ProcessHandle


class Layout:
    """The structure of batches that are laid out alike; read when the first of them is opened."""

    __slots__ = ("_build", "_output", "tree")

    def __init__(self, tree: Bytes, output: str) -> None:
        self.tree = tree
        """Its pickle."""
        self._output = output
        self._build: Build | None = None

    @property
    def build(self) -> Build:
        """The function that builds a batch."""
        if self._build is None:
            self._build = builder(pickle.loads(self.tree), self._output)
        return self._build


class Parcel:
    """A batch as it came from a worker: where it lies, what it cost. Nothing is built until `open()`."""

    __slots__ = (
        "_extras",
        "_maps",
        "_memory",
        "_segment",
        "header",
        "layout",
        "pid",
        "placed",
        "received",
        "transport",
        "worker",
    )

    def __init__(self, handle: ProcessHandle, body: Bytes, received: int) -> None:
        self.header = header = RESULT.unpack_from(body)
        self.received = received
        self.worker = handle.worker
        self.pid = handle.pid
        layout, self._segment, extras = header[2], header[3], header[5]
        start = RESULT.size
        self._extras = body[start : start + extras]
        self._maps = handle.maps
        self.placed = self._segment == PLACED
        """Whether it is a piece that lies beside others of its batch: then whoever knows the place reads it."""
        self._memory = bytearray(memoryview(body)[start + extras :]) if self._segment == NO_SEGMENT else None
        self.layout = None if layout == PICKLED else handle.layouts[layout]
        self.transport = "segment" if self._memory is None else "inline" if header[4] or not extras else "pickle"

    def open(self) -> Any:
        """Build the batch, on the memory in which it came. From then on this holds that memory, until it dies."""
        if self._memory is None:
            self._memory = self._maps.lend(self._segment, self.header[4])
        if self.layout is None:
            return load_object(self._extras, self._memory)
        return self.layout.build(self._memory, self.extras)

    @property
    def extras(self) -> list[Any]:
        """Its parts that are no arrays."""
        return pickle.loads(self._extras) if self._extras else []

    @property
    def mapping(self) -> Any:
        """Once it is open: the whole segment in which it lies; None where it does not lie in one."""
        lent = self._segment != NO_SEGMENT and not isinstance(self._memory, bytearray)
        return self._maps.mapping(self._segment) if lent else None

    def discard(self) -> None:
        """Nobody wants the batch: its segment goes back, now or (once it was opened) when nobody holds it any more."""
        if self._memory is None and not self.placed:
            self._maps.discard(self._segment)


@dataclass(frozen=True, slots=True)
class Started:
    """The worker's process exists."""

    handle: Handle


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has its dataset."""

    handle: Handle


@dataclass(slots=True)  # not frozen: to make such a one takes four times as long, and each batch has one
class Result:
    """The worker made a batch, or failed to."""

    handle: Handle
    run: int
    number: int
    result: Parcel | LocalParcel | Failure | Nothing
    spared: Sequence[SpareSample] = ()
    """Samples of the batch that could not be fetched and did not end it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker found the shard of this batch exhausted."""

    handle: Handle
    run: int
    number: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """How to come where the worker's iterator over a shard is."""

    handle: Handle
    run: int
    shard: int
    position: int
    """Batches made until there."""
    state: str | None
    """JSON; None where it cannot be kept."""
    problem: str
    """Why it cannot."""


@dataclass(frozen=True, slots=True)
class InitFailed:
    """The worker could not rebuild the dataset; it ends."""

    handle: Handle
    error: Described
    raised: Exception | None = None
    """The error itself, from a thread."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The worker has ended."""

    handle: Handle
    exitcode: int | None


@dataclass(frozen=True, slots=True)
class Output:
    """The worker wrote whole lines to its standard output or error."""

    handle: Handle
    stream: str
    """ "stdout" or "stderr"."""
    text: str


Report: TypeAlias = "Started | Ready | Result | Ended | Advanced | InitFailed | Gone | Output"
