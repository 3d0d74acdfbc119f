"""Shards of an iterable dataset: each batch is delivered exactly once, in a fixed order, whatever workers do."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from test_dispatcher import GIVEN_UP, NOW, FixedPolicy, Played, assignments

from nbloader.sampling.shard_plan import ShardPlan, ShardProgress, Ticket

pytestmark = pytest.mark.unit


class ShardChaos(RuleBasedStateMachine):
    """Shards of any lengths; workers produce batches, send iterator states, die at any moment, and are resized.

    A worker is modelled by how it reaches a batch: from the position of its iterator, from a state that it received, or
    from the start of the shard. Batches are delivered in the order of (position, shard).
    """

    def __init__(self):
        super().__init__()
        self.uids = 0
        self.living: dict[int, tuple[int, list[tuple[int, Ticket]]]] = {}  # worker -> (slot, tickets)
        self.iterators: dict[tuple[int, int], int] = {}  # (worker, shard) -> batches produced
        self.delivered: list[tuple[int, int]] = []
        self.errors: set[tuple[int, int]] = set()

    @initialize(
        lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
        slots=st.integers(1, 4),
        window=st.integers(0, 6),
        depth=st.integers(1, 3),
        in_order=st.booleans(),
    )
    def begin(self, lengths, slots, window, depth, in_order):
        self.lengths = lengths
        self.in_order = in_order
        self.dispatcher = Played(FixedPolicy(depth, window))
        self.dispatcher.slots = slots
        self.shards = ShardPlan(len(lengths), size=2, seed=5)
        self.dispatcher.open_iteration(0, in_order=in_order, shards=self.shards)
        for slot in range(slots):
            self.worker_starts(slot)

    def worker_starts(self, slot):
        self.uids += 1
        self.living[self.uids] = slot, []
        self.dispatcher.worker_ready(self.uids, slot)

    @rule()
    def dispatch_more(self):
        for _ in range(self.dispatcher.refill_size(0)):
            ticket = self.shards.take()
            if ticket is None:
                break
            self.dispatcher.add(0, ticket, ticket.seed_of(ticket.position))
        self.send_assignments()

    def send_assignments(self):
        for worker, task in assignments(self.dispatcher):
            slot, inbox = self.living[worker]
            assert task.indices.shard % self.dispatcher.slots == slot
            inbox.append((task.number, pickle.loads(pickle.dumps(task.indices))))  # as the channel does

    @precondition(lambda self: any(inbox for _slot, inbox in self.living.values()))
    @rule(data=st.data(), sends_state=st.booleans())
    def worker_produces_a_batch(self, data, sends_state):
        worker = data.draw(st.sampled_from(sorted(w for w, (_slot, inbox) in self.living.items() if inbox)))
        self.produce(worker, sends_state)
        self.send_assignments()

    def produce(self, worker, sends_state):
        number, ticket = self.living[worker][1].pop(0)
        at = self.iterators.get((worker, ticket.shard))
        if not ticket.exhausted and (at is None or at > ticket.position):
            at = 0
            if ticket.resume is not None:
                at, text = ticket.resume
                assert json.loads(text) == at
                assert at <= ticket.position, "a state beyond the batch"
        exists = ticket.position < self.lengths[ticket.shard]
        assert not (ticket.exhausted and exists), "a batch is skipped"
        if not exists:
            self.dispatcher.exhausted(worker, 0, number, NOW)
            return
        self.iterators[worker, ticket.shard] = ticket.position + 1
        if sends_state:
            self.shards.advance(ticket.shard, ticket.position + 1, json.dumps(ticket.position + 1), "")
        self.dispatcher.result(worker, 0, number, f"{ticket.position}:{ticket.shard}", NOW)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), replaced=st.booleans(), blame=st.booleans())
    def worker_dies(self, data, replaced, blame):
        worker = data.draw(st.sampled_from(sorted(self.living)))
        slot, _inbox = self.living.pop(worker)
        _held, fatal = self.dispatcher.worker_gone(worker, blame=blame)
        if fatal is not None:
            self.errors.add((fatal.indices.position, fatal.indices.shard))
            self.dispatcher.fail(fatal, GIVEN_UP, NOW)
        if replaced:
            self.worker_starts(slot)
        self.send_assignments()

    @rule(slots=st.integers(1, 4))
    def loader_is_resized(self, slots):
        for worker, (slot, _inbox) in list(self.living.items()):
            if slot >= slots:
                self.living.pop(worker)
                self.dispatcher.worker_gone(worker, blame=False)
        before, self.dispatcher.slots = self.dispatcher.slots, slots
        for slot in range(before, slots):
            self.worker_starts(slot)
        self.send_assignments()

    @rule(parked=st.booleans())
    def iteration_is_parked_or_unparked(self, parked):
        if parked:
            self.dispatcher.park(0)
        else:
            self.dispatcher.unpark(0)

    @rule()
    def consumer_takes_a_batch(self):
        self.take()

    def take(self):
        item = self.dispatcher.take(0)
        if item is None:
            return False
        task, result = item.task, item.outcome
        key = task.indices.position, task.indices.shard
        assert (result == GIVEN_UP) if key in self.errors else (result == f"{key[0]}:{key[1]}")
        self.delivered.append(key)
        self.shards.deliver(task.indices)
        for shard, progress in enumerate(self.shards.progress):
            mine = {position for position, s in self.delivered if s == shard}
            assert mine == {*range(progress.position), *progress.beyond}
            assert progress.position not in mine
        return True

    def teardown(self):
        """Without further faults all remaining batches are delivered, in the order of a run without faults."""
        if not hasattr(self, "dispatcher"):
            return
        self.dispatcher.unpark(0)
        slots = {slot for slot, _inbox in self.living.values()}
        for slot in set(range(self.dispatcher.slots)) - slots:
            self.worker_starts(slot)
        while True:
            none_outstanding = not self.dispatcher.outstanding(0)
            self.dispatch_more()
            if none_outstanding and not self.dispatcher.outstanding(0):
                break
            for worker, (_slot, inbox) in self.living.items():
                while inbox:
                    self.produce(worker, sends_state=True)
            while self.take():
                pass
            self.send_assignments()
        expected = {(position, s) for s, n in enumerate(self.lengths) for position in range(n)}
        # A batch that was given up may lie past the end of its shard: no worker survived to report that.
        assert expected <= set(self.delivered) <= expected | self.errors
        assert len(self.delivered) == len(set(self.delivered)), "a batch was delivered twice"
        if self.in_order:
            assert self.delivered == sorted(self.delivered)


TestShardChaos = ShardChaos.TestCase


def fault_free_order(lengths):
    return sorted((position, shard) for shard, n in enumerate(lengths) for position in range(n))


def tickets(shards, lengths):
    """The tickets of a run without faults, in order."""
    out = []
    while (ticket := shards.take()) is not None:
        if ticket.position >= lengths[ticket.shard]:
            shards.mark_exhausted(ticket)
        else:
            out.append((ticket.position, ticket.shard))
    return out


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_tickets_are_round_robin_without_exhausted_shards(lengths):
    assert tickets(ShardPlan(len(lengths), size=1, seed=0), lengths) == fault_free_order(lengths)


def test_out_of_order_the_shard_with_the_fewest_outstanding_batches_is_next():
    shards = ShardPlan(2, size=1, seed=0, in_order=False)
    first = [shards.take() for _ in range(4)]
    assert [(ticket.shard, ticket.position) for ticket in first] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    for ticket in (first[0], first[2]):
        shards.received(ticket)
        another = shards.take()
        assert another.shard == 0
        first.append(another)
    shards.mark_exhausted(first[-1])
    shards.received(first[1])
    assert [shards.take().shard for _ in range(3)] == [1, 1, 1]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.data())
def test_a_resumed_plan_skips_delivered_batches(lengths, data):
    order = fault_free_order(lengths)
    delivered = data.draw(st.sets(st.sampled_from(order)) if order else st.just(set()))
    progress = []
    for shard, n in enumerate(lengths):
        of_shard = ShardProgress()
        for position in data.draw(st.permutations([p for p, s in delivered if s == shard])):
            of_shard.deliver(position)
        progress.append(
            ShardProgress(of_shard.position, frozenset(of_shard.beyond), over=of_shard.position == n and n > 0)
        )
    resumed = ShardPlan(len(lengths), size=1, seed=0, progress=progress)
    assert tickets(resumed, lengths) == [key for key in order if key not in delivered]


def test_seeds_differ_by_batch_and_shard_and_one_shard_has_those_of_none():
    seeds = {(shard, k): Ticket(shard, 3, 0, 1, 7).seed_of(k) for shard in range(3) for k in range(50)}
    assert len(set(seeds.values())) == len(seeds)
    assert [Ticket(0, 1, 0, 1, 7).seed_of(k) for k in range(9)] == [Ticket(0, 0, 0, 1, 7).seed_of(k) for k in range(9)]


def test_states_that_are_no_longer_needed_are_dropped():
    shards = ShardPlan(1, size=1, seed=0)
    for position in range(1, 6):
        shards.advance(0, position, json.dumps(position), "")
    assert shards.progress[0].state(3) == (3, "3")
    for position in range(3):
        shards.progress[0].deliver(position)
    assert sorted(shards.progress[0].states) == [3, 4, 5]
    assert shards.progress[0].state(2) is None


def test_a_sample_is_named_by_its_shard_and_number():
    assert repr(Ticket(2, 3, 4, 10, 0)[5]) == "45 of shard 2"
    assert Ticket(0, 0, 4, 10, 0)[5] == 45
    assert list(Ticket(0, 0, 4, 3, 0)) == [12, 13, 14]
    assert repr(Ticket(2, 3, 4, 10, 0)) == "<batch 4 of shard 2>"
