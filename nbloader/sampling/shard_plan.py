"""Which batch of which shard: the bookkeeping of an iterable dataset. Pure.

An iterable dataset has no indices to hand out: each worker iterates a shard of its own, which the dataset chooses by
`get_worker_info()`. What is dispatched in the place of indices is a ticket: "batch `position` of shard `shard`".

    take()  a ticket, round robin over the shards that are not known to be exhausted, for the worker with its iterator
    end()   that worker found the shard exhausted: the ticket is no batch, and its shard gives no more of them

A shard is not a worker: any worker can make any batch of any shard by iterating to it, so nothing is lost when the one
that has the iterator dies, and a shard goes on elsewhere when there are fewer workers than shards.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nbloader._util.rng import mix


class Item(NamedTuple):
    """A sample of an iterable dataset, in the place of its index."""

    number: int
    shard: int

    def __repr__(self) -> str:
        """As a message says it."""
        return f"{self.number} of shard {self.shard}"


class Ticket:
    """One batch of a shard, to be made. Stands where a map dataset has the indices of a batch.

    Args:
        shard: Which shard.
        shards: How many there are: the number of workers when the epoch began; 0 for a single one made without
            `get_worker_info()`, in the notebook's process.
        position: Batch number within the shard, from 0.
        size: Samples a batch; None where batching is off.
        seed: The epoch's base seed.
    """

    __slots__ = ("over", "position", "resume", "seed", "shard", "shards", "size")

    def __init__(self, shard: int, shards: int, position: int, size: int | None, seed: int) -> None:
        self.shard = shard
        self.shards = shards
        self.position = position
        self.size = size
        self.seed = seed
        self.over = False
        """Whether the shard is known to have no such batch."""
        self.resume: tuple[int, str] | None = None
        """For a worker that does not have the iterator: a position up to this one and the JSON of the state there."""

    def seed_of(self, position: int) -> int:
        """The seed of another batch of the shard: the same whoever makes it and whenever it was asked for."""
        return mix(self.seed, position * max(self.shards, 1) + self.shard)

    def __getitem__(self, position: int | slice) -> Any:
        """What to call the sample at a position in the batch; for a slice, a list."""
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(self.size or 1))]
        number = self.position * (self.size or 1) + position
        return Item(number, self.shard) if self.shards else number

    def __repr__(self) -> str:
        """As a message says it."""
        return f"<batch {self.position} of shard {self.shard}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Small: one goes to a worker for each batch."""
        return _ticket, (self.shard, self.shards, self.position, self.size, self.seed, self.over, self.resume)


def _ticket(*fields: Any) -> Ticket:
    ticket = Ticket(*fields[:5])
    ticket.over, ticket.resume = fields[5:]
    return ticket


class Progress:
    """How far one shard has come.

    Args:
        position: Batches delivered.
        beyond: Numbers delivered beyond that (only without order).
        over: Whether all its batches were delivered.
        state: JSON of the state of its iterator at `position` or before: (position, JSON).
    """

    __slots__ = ("beyond", "end", "position", "problem", "states")

    def __init__(
        self,
        position: int = 0,
        beyond: frozenset[int] = frozenset(),
        *,
        over: bool = False,
        state: tuple[int, str] | None = None,
    ) -> None:
        self.position = position
        self.beyond = set(beyond)
        self.end: int | None = position if over else None
        """Its number of batches, once that is known."""
        self.states: dict[int, str] = dict([state] if state else [])
        """States that came from workers, by the number of batches made before: the last delivered one and later."""
        self.problem = ""
        """Why its state cannot be kept."""

    @property
    def over(self) -> bool:
        """Whether all its batches were delivered."""
        return self.end is not None and self.position >= self.end

    def state(self, position: int) -> tuple[int, str] | None:
        """The last state at or before a position."""
        known = [at for at in list(self.states) if at <= position]
        return (max(known), self.states[max(known)]) if known else None

    def deliver(self, position: int) -> None:
        """A batch has reached the consumer."""
        self.beyond.add(position)
        while self.position in self.beyond:
            self.beyond.remove(self.position)
            self.position += 1
        if len(self.states) > 1:
            known = list(self.states)  # a copy: the supervisor's thread may add one meanwhile
            last = max((at for at in known if at <= self.position), default=0)
            for at in known:
                if at < last:
                    del self.states[at]


class Shards:
    """The shards of one iterator over an iterable dataset.

    Args:
        count: How many; 0 for a single one that is made without `get_worker_info()`.
        size: Samples a batch; None where batching is off.
        seed: The epoch's base seed.
        progress: How far each has come, to go on from there.
        in_order: Whether the shards are asked in turn. Otherwise that is asked of which the fewest batches are out, so
            that a slow one does not take up the whole window.
    """

    def __init__(
        self,
        count: int,
        *,
        size: int | None,
        seed: int,
        progress: list[Progress] | None = None,
        in_order: bool = True,
    ) -> None:
        self.count = count
        self.size = size
        self.seed = seed
        self.progress = progress or [Progress() for _ in range(max(count, 1))]
        """By shard."""
        self.homes: dict[int, int] = {}
        """Shard -> the worker that has its iterator, by the unique number of its process."""
        self._in_order = in_order
        # by shard: the batch that it is asked for next, and how many tickets were not taken back
        self._next = {shard: p.position for shard, p in enumerate(self.progress) if not p.over}
        self._out = dict.fromkeys(self._next, 0)

    def take(self) -> Ticket | None:
        """The next ticket; None when all shards are exhausted."""
        while self._next:
            shard = min(self._next, key=self._turn)
            position = self._next[shard]
            progress = self.progress[shard]
            if progress.end is not None and position >= progress.end:
                del self._next[shard]
                continue
            self._next[shard] = position + 1
            if position not in progress.beyond:
                self._out[shard] += 1
                return Ticket(shard, self.count, position, self.size, self.seed)
        return None

    def _turn(self, shard: int) -> tuple[int, int, int]:
        return 0 if self._in_order else self._out[shard], self._next[shard], shard

    def take_back(self, ticket: Ticket) -> None:
        """The batch has come to the consumer, who may not have looked at it yet."""
        self._out[ticket.shard] -= 1

    def deliver(self, ticket: Ticket) -> None:
        """A batch, or its error, has reached the consumer."""
        self.progress[ticket.shard].deliver(ticket.position)

    def place(self, ticket: Ticket, worker: int) -> None:
        """A ticket goes to a worker, with what that needs to get there if it does not have the iterator."""
        progress = self.progress[ticket.shard]
        ticket.over = progress.end is not None and ticket.position >= progress.end
        moved = self.homes.get(ticket.shard) != worker
        ticket.resume = progress.state(ticket.position) if moved else None
        self.homes[ticket.shard] = worker

    def end(self, ticket: Ticket) -> None:
        """There is no such batch: the shard was exhausted before."""
        progress = self.progress[ticket.shard]
        progress.end = ticket.position if progress.end is None else min(progress.end, ticket.position)

    def advance(self, shard: int, position: int, state: str | None, problem: str) -> None:
        """A worker tells the state of its iterator.

        Args:
            shard: Which shard.
            position: Batches made until then.
            state: As JSON; None when it cannot be kept.
            problem: Why it cannot.
        """
        progress = self.progress[shard]
        progress.problem = problem
        if state is not None:
            progress.states[position] = state
