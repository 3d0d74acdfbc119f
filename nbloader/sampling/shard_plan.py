"""Shards of an iterable dataset: which worker produces which batch, and when a shard is exhausted. Performs no I/O.

An iterable dataset has no indices to distribute: each worker iterates over its own shard, which the dataset chooses
using `get_worker_info()`. A ticket is dispatched in place of indices: "batch `position` of shard `shard`".

    take()            a ticket, round robin over the shards that are not known to be exhausted
    assign()          the ticket goes to a worker, with the state to start from if the worker lacks the iterator
    mark_exhausted()  the worker found the shard exhausted: it has neither the ticket's batch nor any later one

A shard is not tied to a worker: any worker can produce any batch of any shard by iterating to it. So nothing is lost
when the worker that has the iterator dies, and a shard continues on another worker when there are fewer workers than
shards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from nbloader._util.rng import mix


class IterableOptions(NamedTuple):
    """How an iterable dataset is read."""

    drop_last: bool
    """Whether an incomplete last batch of a shard is dropped."""
    fresh: bool
    """Whether each iteration starts with a fresh copy of the dataset, as with torch's non-persistent workers."""
    alone: bool
    """Whether there is a single shard that uses the dataset itself, as in torch without workers."""
    prepare: Callable[[Any, int, int, int], None] | None = None
    """Prepares a dataset for one pass over a shard. Called with (dataset, shard, shards, base seed of the epoch)."""


class Item(NamedTuple):
    """A sample of an iterable dataset. Takes the place of an index of a map-style dataset."""

    number: int
    """Sample number within the shard, from 0."""
    shard: int

    def __repr__(self) -> str:
        """Return the text that messages show."""
        return f"{self.number} of shard {self.shard}"


class IteratorState(NamedTuple):
    """The state of a shard's iterator, from its `state_dict()`."""

    position: int
    """Number of batches of the shard that were produced before."""
    json: str


class Ticket:
    """One batch of a shard. Dispatched in place of the indices of a batch of a map-style dataset.

    Args:
        shard: Number of the shard, from 0.
        shards: Number of shards, which is the number of workers when the epoch began; 0 for a single shard in the
            notebook's process, without `get_worker_info()`.
        position: Batch number within the shard, from 0.
        size: Samples per batch; None if automatic batching is off.
        seed: The epoch's base seed.
    """

    __slots__ = ("exhausted", "position", "resume", "seed", "shard", "shards", "size")

    def __init__(self, shard: int, shards: int, position: int, size: int | None, seed: int) -> None:
        self.shard = shard
        self.shards = shards
        self.position = position
        self.size = size
        self.seed = seed
        self.exhausted = False
        """Whether the shard is known to have no such batch."""
        self.resume: IteratorState | None = None
        """The last known state at or before `position`, for a worker that does not have the iterator."""

    def seed_of(self, position: int) -> int:
        """Return the seed of any batch of the shard. It is the same on every worker and at any time."""
        return mix(self.seed, position * max(self.shards, 1) + self.shard)

    def __getitem__(self, position: int | slice) -> Any:
        """Return the name of the sample at a position in the batch; for a slice, a list of names.

        Raises:
            IndexError: The batch has no such position. So a ticket can be iterated.
        """
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(self.size or 1))]
        if not 0 <= position < (self.size or 1):
            raise IndexError(f"{self!r} has {self.size or 1} samples: it has no position {position}")
        number = self.position * (self.size or 1) + position
        return Item(number, self.shard) if self.shards else number

    def __repr__(self) -> str:
        """Return the text that messages show."""
        return f"<batch {self.position} of shard {self.shard}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the pickle small: a ticket is sent to a worker for each batch."""
        resume = None if self.resume is None else tuple(self.resume)
        return _ticket, (self.shard, self.shards, self.position, self.size, self.seed, self.exhausted, resume)


def _ticket(
    shard: int, shards: int, position: int, size: int | None, seed: int, exhausted: bool, resume: tuple[int, str] | None
) -> Ticket:
    ticket = Ticket(shard, shards, position, size, seed)
    ticket.exhausted = exhausted
    ticket.resume = None if resume is None else IteratorState(*resume)
    return ticket


class ShardProgress:
    """Progress of one shard.

    Args:
        position: Number of batches delivered without gaps.
        beyond: Numbers of the batches delivered beyond that (only if batches are not in order).
        over: Whether all batches of the shard were delivered.
        state: State of the shard's iterator at `position` or before.
    """

    __slots__ = ("beyond", "end", "position", "problem", "states")

    def __init__(
        self,
        position: int = 0,
        beyond: frozenset[int] = frozenset(),
        *,
        over: bool = False,
        state: IteratorState | None = None,
    ) -> None:
        self.position = position
        self.beyond = set(beyond)
        self.end: int | None = position if over else None
        """Number of batches of the shard; None until it is known."""
        self.states: dict[int, str] = {} if state is None else {state.position: state.json}
        """JSON of the states that workers sent, by position: the last one that was delivered, and later ones."""
        self.problem = ""
        """Why the shard's state cannot be saved; empty if it can."""

    @property
    def over(self) -> bool:
        """Whether all batches of the shard were delivered."""
        return self.end is not None and self.position >= self.end

    def state(self, position: int) -> IteratorState | None:
        """Return the last state at or before a position; None if there is none."""
        known = max((at for at in list(self.states) if at <= position), default=None)
        return None if known is None else IteratorState(known, self.states[known])

    def deliver(self, position: int) -> None:
        """Record that a batch was delivered to the consumer."""
        self.beyond.add(position)
        while self.position in self.beyond:
            self.beyond.remove(self.position)
            self.position += 1
        if len(self.states) > 1:
            known = list(self.states)  # a copy: the thread of the loop may add one at the same time
            last = max((at for at in known if at <= self.position), default=0)
            for at in known:
                if at < last:
                    del self.states[at]


class ShardPlan:
    """The shards of one iterator over an iterable dataset.

    Args:
        count: Number of shards; 0 for a single shard without `get_worker_info()`.
        size: Samples per batch; None if automatic batching is off.
        seed: The epoch's base seed.
        progress: Progress of each shard, to resume from.
        in_order: Whether tickets are issued round robin. Otherwise, the shard with the fewest outstanding batches is
            next, so that a slow shard does not fill the prefetch window.
    """

    def __init__(
        self,
        count: int,
        *,
        size: int | None,
        seed: int,
        progress: list[ShardProgress] | None = None,
        in_order: bool = True,
    ) -> None:
        self.count = count
        self.size = size
        self.seed = seed
        self.progress = progress or [ShardProgress() for _ in range(max(count, 1))]
        """Progress of each shard."""
        self.worker_of: dict[int, int] = {}
        """Maps a shard to the uid of the worker that has its iterator."""
        self._in_order = in_order
        # Both by shard: position of the next ticket, and number of tickets whose batch was not received.
        self._next = {shard: p.position for shard, p in enumerate(self.progress) if not p.over}
        self._outstanding = dict.fromkeys(self._next, 0)

    def take(self) -> Ticket | None:
        """Issue the next ticket; None when all shards are exhausted."""
        while self._next:
            shard = min(self._next, key=self._priority)
            position = self._next[shard]
            progress = self.progress[shard]
            if progress.end is not None and position >= progress.end:
                del self._next[shard]
                continue
            self._next[shard] = position + 1
            if position not in progress.beyond:
                self._outstanding[shard] += 1
                return Ticket(shard, self.count, position, self.size, self.seed)
        return None

    def _priority(self, shard: int) -> tuple[int, int, int]:
        return 0 if self._in_order else self._outstanding[shard], self._next[shard], shard

    def received(self, ticket: Ticket) -> None:
        """Record that the consumer has taken the batch from the buffer; it may not have been delivered yet."""
        self._outstanding[ticket.shard] -= 1

    def deliver(self, ticket: Ticket) -> None:
        """Record that a batch, or its error, was delivered to the consumer."""
        self.progress[ticket.shard].deliver(ticket.position)

    def assign(self, ticket: Ticket, worker: int) -> None:
        """Assign a ticket to a worker; add the state to start from if the worker does not have the iterator."""
        progress = self.progress[ticket.shard]
        ticket.exhausted = progress.end is not None and ticket.position >= progress.end
        moved = self.worker_of.get(ticket.shard) != worker
        ticket.resume = progress.state(ticket.position) if moved else None
        self.worker_of[ticket.shard] = worker

    def mark_exhausted(self, ticket: Ticket) -> None:
        """Record that the ticket's batch does not exist: the shard was exhausted before."""
        progress = self.progress[ticket.shard]
        progress.end = ticket.position if progress.end is None else min(progress.end, ticket.position)

    def advance(self, shard: int, position: int, state: str | None, problem: str) -> None:
        """Record the state of a shard's iterator, sent by the worker that has the iterator.

        Args:
            shard: Number of the shard.
            position: Number of batches produced before.
            state: The state as JSON; None if it cannot be saved.
            problem: Why the state cannot be saved.
        """
        progress = self.progress[shard]
        progress.problem = problem
        if state is not None:
            progress.states[position] = state
