"""Iterating an iterable dataset, wherever that runs: an iterator for each shard, brought to the batch asked for.

A shard's batches are asked for one after the other, as a rule of the same worker, which then only goes on. One that
does not have the iterator (it took the place of a dead one, or the epoch was resumed) makes a new one and brings it
there: by the last state that is known, if the dataset or its iterator has `state_dict()` and `load_state_dict()`, and
by making and dropping what lies between, with the same seeds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, MutableSequence
from typing import Any, NamedTuple, TypeAlias

from nbloader._util.state_dict import as_json, is_stateful
from nbloader.events.failures import SpareSample
from nbloader.sampling.shard_plan import Ticket
from nbloader.workers.fetcher import FETCHING, POSITION, SINCE, STATE, Fetched
from nbloader.workers.thread_rng import WorkerInfo
from nbloader.workers.tolerant import OnError, spare
from nbloader.workers.worker_info import Host

_clock = time.perf_counter_ns

STATE_SHARE = 20
"""A state is told so seldom that it takes at most one part in so many of a worker's time."""

Build: TypeAlias = "Callable[[], tuple[Any, Callable[[int], Any] | None]]"
Samples: TypeAlias = "tuple[Fetched | None, list[SpareSample]]"
"""What was fetched, None if no sample is left; and what raised."""
Tell: TypeAlias = "Callable[[int, int, int, str | None, str], None]"


class ExhaustedError(Exception):
    """The shard has no such batch."""


class Streaming(NamedTuple):
    """How an iterable dataset is read."""

    drop_last: bool
    fresh: bool
    """Whether each iterator begins on a fresh copy of the dataset, as with torch's workers that do not persist."""
    alone: bool
    """Whether there is one shard, of the dataset itself, as with torch without workers."""
    prepare: Callable[[Any, int, int, int], None] | None = None
    """Makes a dataset ready for one pass over a shard: of (dataset, shard, shards, the epoch's base seed)."""


class Stream:
    """The iterator over one shard."""

    __slots__ = ("cost", "dry", "info", "iterator", "position", "seeded", "source", "told")

    def __init__(self, iterator: Any, position: int, source: Any, info: WorkerInfo | None, *, seeded: bool) -> None:
        self.iterator = iterator
        self.position = position
        """Batches made."""
        self.source = source
        """What has `state_dict()`: the iterator or the dataset; None where neither has."""
        self.info = info
        self.seeded = seeded
        """Whether `worker_init_fn` looks after the seeds."""
        self.dry = False
        self.told = 0
        self.cost = 0  # ns that telling the state took

    def take(self, ticket: Ticket, status: MutableSequence[int], how: Streaming, on_error: OnError) -> Samples:
        """The samples of the next batch, which is that of the ticket or one before it.

        Raises:
            ExhaustedError: There is none.
        """
        self.position += 1  # of a batch that raises, too: the next one is made of what comes after
        begin = before = _clock()
        status[STATE], status[SINCE] = FETCHING, begin
        samples: list[Any] = []
        spared: list[SpareSample] = []
        slowest, slowest_ns = 0, -1
        asked = 0
        while not self.dry and asked < (ticket.size or 1):
            status[POSITION] = asked
            try:
                samples.append(next(self.iterator))
            except StopIteration:
                self.dry = True
                break
            except Exception as error:
                if on_error == "raise":
                    raise
                if callable(on_error):
                    samples.append(on_error(ticket[asked], error))
                spared.append(spare(asked, error, on_error))
            now = _clock()
            if now - before > slowest_ns:
                slowest, slowest_ns = asked, now - before
            before = now
            asked += 1
        if not asked or (how.drop_last and asked < (ticket.size or 1)):
            raise ExhaustedError
        if not samples:
            return None, spared
        return Fetched(samples if ticket.size is not None else samples[0], begin, before, slowest, slowest_ns), spared


class Streams:
    """The iterators that one worker, or the notebook's process, has over shards of an iterable dataset.

    Args:
        build: Gives a copy of the dataset for another shard, and `worker_init_fn`.
        own: The dataset that is there already.
        shard: (shard, shards) that it was prepared for.
        streaming: How it is read.
        status: Where to tell what is being done.
        on_error: What to do with a sample that raises.
        host: Whose generators are seeded, and who tells the shard.
        tell: Takes states: run, shard, batches made, JSON or None, why there is none.
        seeded: Whether `worker_init_fn` has seeded torch and so looks after the seeds.
    """

    def __init__(
        self,
        build: Build,
        own: Any,
        shard: tuple[int, int],
        streaming: Streaming,
        status: Any,
        on_error: OnError,
        *,
        host: Host,
        tell: Tell,
        seeded: bool,
    ) -> None:
        self._build = build
        self._host = host
        self._copies = {shard: own}
        self._streaming = streaming
        self._status = status
        self._on_error: OnError = on_error
        self._tell = tell
        self._seeded = seeded
        self._streams: dict[tuple[int, int], Stream] = {}

    def fetch(self, run: int, ticket: Ticket) -> Samples:
        """Get the samples of one batch.

        Raises:
            ExhaustedError: The shard has no such batch.
        """
        if ticket.exhausted:
            raise ExhaustedError
        stream = self._streams.get((run, ticket.shard))
        if stream is None or stream.position > ticket.position:
            self._streams.pop((run, ticket.shard), None)
            stream = self._streams[run, ticket.shard] = self._open(ticket)
        else:
            self._host.introduce(stream.info)
        while stream.position < ticket.position:
            self._skip(stream, ticket)
        if not stream.seeded:
            self._host.seed(ticket.seed_of(ticket.position))
        got = stream.take(ticket, self._status, self._streaming, self._on_error)
        if stream.source is not None and _clock() - stream.told >= STATE_SHARE * stream.cost:
            self._tell_state(run, ticket.shard, stream)
        return got

    def forget(self, run: int) -> None:
        """The run is closed."""
        for key in [key for key in self._streams if key[0] == run]:
            del self._streams[key]

    def _open(self, ticket: Ticket) -> Stream:
        seed = ticket.seed + ticket.shard
        key = ticket.shard, ticket.shards
        dataset = self._copies.pop(key, None)
        prepared, worker_init_fn, seeded = dataset is not None, None, self._seeded
        if not (prepared and seeded):
            self._host.seed(seed)
        if not prepared:
            dataset, worker_init_fn = self._build()
        if self._streaming.prepare is not None:
            self._streaming.prepare(dataset, ticket.shard, ticket.shards, ticket.seed)
        info = WorkerInfo(*key, seed, dataset) if ticket.shards else None
        self._host.introduce(info)
        if worker_init_fn is not None and info is not None:
            worker_init_fn(ticket.shard)
            seeded = self._host.torch_was_seeded()
        if not self._streaming.fresh:
            self._copies[key] = dataset
        position, text = ticket.resume or (0, "")
        state = json.loads(text) if text else None
        by_itself = is_stateful(dataset)
        if state is not None and "dataset" in state:
            dataset.load_state_dict(state["dataset"])
        iterator = iter(dataset)
        stateful = is_stateful(iterator)
        if state is not None and "iterator" in state:
            iterator.load_state_dict(state["iterator"])
        source = iterator if stateful else dataset if by_itself else None
        return Stream(iterator, position, source, info, seeded=seeded)

    def _skip(self, stream: Stream, ticket: Ticket) -> None:
        """Make a batch that was made before, and drop it."""
        if not stream.seeded:
            self._host.seed(ticket.seed_of(stream.position))
        try:
            stream.take(ticket, self._status, self._streaming, self._on_error)
        except ExhaustedError:
            raise
        except Exception:  # noqa: BLE001, S110 - what it raised then has been reported then
            pass

    def _tell_state(self, run: int, shard: int, stream: Stream) -> None:
        begin = _clock()
        name = "dataset" if stream.source is not stream.iterator else "iterator"
        state = {name: stream.source.state_dict()}
        text, problem = as_json(state, f"{type(stream.source).__name__}.state_dict()")
        self._tell(run, shard, stream.position, text, problem)
        stream.told = _clock()
        cost = stream.told - begin
        stream.cost = min(cost, 2 * stream.cost) if stream.cost else cost  # one that was interrupted counts for little
