"""Whatever happens to workers and iterations, and in whatever order, each batch is delivered once and in order.

To the dispatcher, errors are results like any other. A worker that is restarted is gone without blame; a stalled one
with blame.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nbloader.scheduler.dispatcher import MAX_DEATHS, Dispatcher
from nbloader.scheduler.gate import Gate

pytestmark = pytest.mark.unit

GIVEN_UP = "given up"


def assignments(dispatcher):
    """What is to be sent, as (worker, task) by job number."""
    pairs = [(assign.worker, task) for assign in dispatcher.assignments() for task in assign.tasks]
    return sorted(pairs, key=lambda pair: (pair[1].epoch, pair[1].job))


class Played(Dispatcher):
    """A dispatcher with a consumer that takes batches, and a gate that the consumer observes."""

    def __init__(self, policy, **options):
        self.gate = Gate()
        super().__init__(policy, self.gate, **options)

    def take(self, epoch):
        """Take the next batch; None if it has not arrived or the loader is paused."""
        delivery = None if self.gate.closed else self.iterations[epoch].take()
        if delivery is not None:
            self.gate.delivered()
        return delivery

    def refill_size(self, epoch):
        """How many batches the consumer requests."""
        state = self.iterations[epoch]
        return self.window.room(state.outstanding, state.reorder.reordering)

    def outstanding(self, epoch):
        return self.iterations[epoch].outstanding


class FixedPolicy:
    """A policy with numbers that a test chooses."""

    def __init__(self, depth: int, window: int = 8):
        self.limit = depth
        self.window = window
        self.affordable = 10**9

    def room(self, outstanding: int, blocked: int) -> int:
        return max(self.window, 1) - outstanding

    def depth(self, blocked: int) -> int:
        return self.limit

    def affords(self, outstanding: int) -> bool:
        return outstanding < self.affordable


NOW = 10


class Chaos(RuleBasedStateMachine):
    """Workers that produce, stall, send twice and die; iterations that begin, end and are parked.

    The machine knows what each worker really has (`inboxes`): a worker may have begun a batch that is cancelled, and a
    result may be in flight when its worker is declared dead.
    """

    def __init__(self):
        super().__init__()
        self.uids = 0
        self.epochs = 0
        self.inboxes: dict[int, list[tuple[int, int]]] = {}  # live workers: (epoch, number) sent to them
        self.in_flight: list[tuple[int, int, int]] = []  # (worker, epoch, number): results in flight
        self.wanted: dict[int, list[int]] = {}  # epoch -> numbers still to be delivered, in order
        self.out_of_order: set[int] = set()
        self.suspects: dict[tuple[int, int], int] = {}
        self.accepted: set[tuple[int, int]] = set()
        self.outdated: set[int] = set()  # workers that existed when everything was to be produced again
        self.steps = 0  # batches that may be taken though the loader is paused
        self.owed = 0  # and sent
        self.windows: dict[int, int] = {}  # epoch -> the largest window that it has had

    @initialize(depth=st.integers(1, 4), workers=st.integers(0, 3), window=st.integers(0, 6), data=st.data())
    def begin(self, depth, workers, window, data):
        self.policy = FixedPolicy(depth)
        self.dispatcher = Played(self.policy)
        self.depth = depth  # the largest so far
        for _ in range(workers):
            self.worker_starts()
        self.iteration_begins(window, True)
        self.sampler_is_asked(data)

    def dispatch(self, data):
        """As the engine does after almost everything that happens."""
        if data.draw(st.sampled_from([True, True, False]), label="dispatch"):
            self.batches_are_sent()

    # ---- workers

    @rule()
    def worker_starts(self):
        self.uids += 1
        self.inboxes[self.uids] = []
        self.dispatcher.worker_ready(self.uids)

    @precondition(lambda self: self.inboxes)
    @rule(data=st.data(), blame=st.booleans(), sent=st.booleans())
    def worker_dies(self, data, blame, sent):
        worker = data.draw(st.sampled_from(sorted(self.inboxes)))
        inbox = self.inboxes.pop(worker)
        if sent and inbox:  # its last result is in flight
            self.in_flight.append((worker, *inbox[0]))
        before = self.dispatcher.held_by(worker)
        held, fatal = self.dispatcher.worker_gone(worker, blame=blame)
        assert held == before
        assert self.dispatcher.held_by(worker) == []
        if blame and held:
            key = held[0].epoch, held[0].number
            self.suspects[key] = self.suspects.get(key, 0) + 1
            assert held[0].deaths == self.suspects[key]
            assert (fatal is held[0]) == (self.suspects[key] >= MAX_DEATHS)
        else:
            assert fatal is None
        if data.draw(st.booleans(), label="replaced"):
            self.worker_starts()
        self.dispatch(data)
        if fatal is not None:
            self.dispatcher.fail(fatal, GIVEN_UP, NOW)
            self.accept(fatal.epoch, fatal.number, fatal)

    @precondition(lambda self: any(self.inboxes.values()))
    @rule(data=st.data(), position=st.integers(0, 3))
    def worker_produces_a_batch(self, data, position):
        worker = data.draw(st.sampled_from(sorted(w for w, inbox in self.inboxes.items() if inbox)))
        inbox = self.inboxes[worker]
        epoch, number = inbox.pop(min(position, len(inbox) - 1))
        self.arrive(worker, epoch, number)
        self.dispatch(data)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def result_in_flight_arrives(self, data):
        self.arrive(*self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1))))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def result_arrives_again(self, data):
        epoch, number = data.draw(st.sampled_from(sorted(self.accepted)))
        assert self.dispatcher.result(data.draw(st.integers(0, self.uids)), epoch, number, "again", NOW) is None

    def arrive(self, worker, epoch, number):
        accepted = self.dispatcher.result(worker, epoch, number, f"{epoch}:{number}", NOW)
        if worker in self.outdated:
            assert accepted is None or worker in self.inboxes, "it is of the old dataset"
            if accepted is None:
                return  # it waits for another worker, as the invariants check
        self.accept(epoch, number, accepted)

    def accept(self, epoch, number, accepted):
        if accepted is None:  # rejected: then it must not be the only copy of a batch that is still wanted
            elsewhere = any((epoch, number) in inbox for inbox in self.inboxes.values())
            assert epoch not in self.wanted or (epoch, number) in self.accepted or elsewhere
            return
        assert (accepted.epoch, accepted.number) == (epoch, number)
        if epoch in self.wanted:
            assert (epoch, number) not in self.accepted
            self.accepted.add((epoch, number))

    def cancel(self, cancels, data):
        """Cancel batches of a closed iteration. A worker that has begun such a batch still produces it."""
        for worker, epoch, numbers in cancels:
            inbox = self.inboxes[worker]
            for number in numbers:
                assert (epoch, number) in inbox
                if data.draw(st.booleans(), label="cancelled in time"):
                    inbox.remove((epoch, number))

    # ---- iterations

    @rule(window=st.integers(0, 6), in_order=st.booleans())
    def iteration_begins(self, window, in_order):
        epoch, self.epochs = self.epochs, self.epochs + 1
        self.set_window(window)
        self.dispatcher.open_iteration(epoch, in_order=in_order)
        self.wanted[epoch] = []
        self.windows[epoch] = window
        if not in_order:
            self.out_of_order.add(epoch)
        assert all(state.parked for number, state in self.dispatcher.iterations.items() if number != epoch)

    def set_window(self, window):
        self.policy.window = window
        for epoch, largest in self.windows.items():
            self.windows[epoch] = max(largest, window)

    @precondition(lambda self: len(self.wanted) > 1)
    @rule(data=st.data())
    def iteration_is_closed(self, data):
        epoch = data.draw(st.sampled_from(sorted(self.wanted)))
        state = self.dispatcher.iterations[epoch]
        ready = len(state.ready) + state.reorder.reordering
        unwanted, cancels = self.dispatcher.close_iteration(epoch)
        assert len(unwanted) == ready
        self.cancel(cancels, data)
        del self.wanted[epoch]
        self.accepted = {key for key in self.accepted if key[0] != epoch}
        assert self.dispatcher.close_iteration(epoch) == ([], [])

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), parked=st.booleans())
    def iteration_is_parked_or_asked(self, data, parked):
        epoch = data.draw(st.sampled_from(sorted(self.wanted)))
        if parked:
            self.dispatcher.park(epoch)
        else:
            self.dispatcher.unpark(epoch)

    @rule(affordable=st.integers(1, 9))
    def memory_is_short(self, affordable):
        self.policy.affordable = affordable

    @rule(paused=st.booleans())
    def loader_is_paused_or_resumed(self, paused):
        if paused:
            self.dispatcher.gate.pause()
        else:
            self.dispatcher.gate.resume()
            self.steps = self.owed = 0

    @rule(data=st.data())
    def loader_takes_a_step(self, data):
        self.dispatcher.gate.pause()
        self.dispatcher.gate.step()
        self.steps += 1
        self.dispatch(data)

    @rule(workers=st.integers(0, 4), depth=st.integers(1, 4), window=st.integers(0, 6), data=st.data())
    def loader_is_resized(self, workers, depth, window, data):
        self.policy.limit = depth
        self.depth = max(self.depth, depth)
        self.set_window(window)
        for worker in sorted(self.inboxes)[workers:]:
            inbox = self.inboxes.pop(worker)
            if inbox:  # its last result is in flight
                self.in_flight.append((worker, *inbox[0]))
            _held, fatal = self.dispatcher.dismiss(worker)
            assert fatal is None
            self.outdated.add(worker)
        while len(self.inboxes) < workers:
            self.worker_starts()
        self.dispatch(data)

    @rule()
    def what_has_arrived_is_dropped(self):
        outside = {(epoch, number) for epoch, numbers in self.wanted.items() for number in numbers}
        self.outdated |= set(self.inboxes)
        assert len(self.dispatcher.redo()) == len(self.accepted & outside)
        self.accepted -= outside

    # ---- the consumer

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def sampler_is_asked(self, data):
        epoch = data.draw(st.sampled_from(sorted(self.wanted)))
        room = max(0, self.dispatcher.refill_size(epoch))
        for _ in range(data.draw(st.sampled_from([room, min(1, room)]))):
            task = self.dispatcher.add(epoch, ["index"], seed=7)
            assert (task.epoch, task.indices, task.seed) == (epoch, ["index"], 7)
            self.wanted[epoch].append(task.number)
        self.dispatch(data)

    @rule()
    def batches_are_sent(self):
        given = assignments(self.dispatcher)
        if self.dispatcher.gate.paused and not self.steps:
            assert len(given) <= self.owed
            self.owed -= len(given)
        for worker, task in given:
            assert not self.dispatcher.iterations[task.epoch].parked
            self.inboxes[worker].append((task.epoch, task.number))
            assert task.attempt >= 1

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def consumer_takes(self, data):
        epoch = data.draw(st.sampled_from(sorted(self.wanted)))
        self.dispatcher.unpark(epoch)
        while self.take(epoch) and data.draw(st.booleans(), label="more"):
            pass
        self.sampler_is_asked(data)

    def take(self, epoch):
        item = self.dispatcher.take(epoch)
        if item is None:
            return False
        if self.dispatcher.gate.paused:
            assert self.steps, "nothing is delivered while paused"
            self.steps -= 1
            self.owed += 1
        task, result = item.task, item.outcome
        assert result in (f"{epoch}:{task.number}", GIVEN_UP)
        assert (epoch, task.number) in self.accepted
        if epoch in self.out_of_order:
            self.wanted[epoch].remove(task.number)
        else:
            assert self.wanted[epoch].pop(0) == task.number
        return True

    # ---- always

    @invariant()
    def no_worker_holds_more_than_the_queue_depth(self):
        if not hasattr(self, "dispatcher"):
            return
        held = [self.dispatcher.held_by(worker) for worker in self.inboxes]
        assert all(len(tasks) <= self.depth for tasks in held)
        keys = [(task.epoch, task.number) for tasks in held for task in tasks]
        assert len(keys) == len(set(keys)), "a batch is with two workers"
        for epoch, state in self.dispatcher.iterations.items():
            assert state.assigned == sum(key[0] == epoch for key in keys)
            assert self.dispatcher.outstanding(epoch) == len(self.wanted[epoch])
            assert len(self.wanted[epoch]) <= max(self.windows[epoch], 1)

    @invariant()
    def no_batch_is_lost(self):
        if not hasattr(self, "dispatcher"):
            return
        held = {(t.epoch, t.number) for w in self.inboxes for t in self.dispatcher.held_by(w)}
        for epoch, numbers in self.wanted.items():
            waiting = {task.number for task in self.dispatcher.iterations[epoch].waiting}
            for number in numbers:
                places = [number in waiting, (epoch, number) in held, (epoch, number) in self.accepted]
                assert places.count(True) == 1, (epoch, number, places)

    def teardown(self):
        """With one reliable worker everything that is outstanding is delivered."""
        if not hasattr(self, "dispatcher"):
            return
        self.dispatcher.gate.resume()
        self.steps = self.owed = 0
        self.policy.affordable = 1
        for worker in list(self.inboxes):
            self.dispatcher.worker_gone(worker, blame=False)
        self.inboxes = {}
        self.worker_starts()
        (worker,) = self.inboxes
        for epoch in list(self.wanted):
            self.dispatcher.unpark(epoch)
        while any(self.wanted.values()):
            self.batches_are_sent()
            progress = bool(self.inboxes[worker])
            while self.inboxes[worker]:
                self.arrive(worker, *self.inboxes[worker].pop(0))
            for epoch in self.wanted:
                while self.take(epoch):
                    progress = True
            assert progress, f"no progress; still wanted: {self.wanted}"


Chaos.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestChaos = Chaos.TestCase


def produced(dispatcher: Played, worker: int, number: int, epoch: int = 0):
    """The result of a batch arrives. Returns the batches that can be delivered since then; None if it is rejected."""
    state = dispatcher.iterations.get(epoch)
    before = len(state.ready) if state else 0
    if dispatcher.result(worker, epoch, number, f"batch {number}", NOW) is None:
        return None
    freed = list(state.ready)[before:]
    assert all(delivery.task.in_order == NOW for delivery in freed)
    return [delivery.task.number for delivery in freed]


def dispatcher_with(
    workers: int, *, depth: int = 2, window: int = 8, batches: int = 8, round_robin: bool = False
) -> Played:
    dispatcher = Played(FixedPolicy(depth, window), round_robin=round_robin)
    dispatcher.slots = workers
    for worker in range(workers):
        dispatcher.worker_ready(worker, slot=worker)
    dispatcher.open_iteration(0)
    for _ in range(batches):
        dispatcher.add(0, None, 0)
    return dispatcher


def sent(dispatcher: Played) -> list[tuple[int, int]]:
    return [(worker, task.number) for worker, task in assignments(dispatcher)]


def test_a_batch_goes_to_the_worker_whose_turn_it_is():
    dispatcher = dispatcher_with(3)
    assert sent(dispatcher) == [(0, 0), (1, 1), (2, 2), (0, 3), (1, 4), (2, 5)]
    assert produced(dispatcher, 1, 1) == []
    assert sent(dispatcher) == [(1, 7)]


def test_round_robin_a_batch_waits_for_its_worker_even_if_another_is_idle():
    dispatcher = dispatcher_with(2, round_robin=True)
    assert sent(dispatcher) == [(0, 0), (1, 1), (0, 2), (1, 3)]
    assert (produced(dispatcher, 1, 1), produced(dispatcher, 1, 3)) == ([], [])
    assert sent(dispatcher) == [(1, 5), (1, 7)]
    assert (produced(dispatcher, 1, 5), produced(dispatcher, 1, 7)) == ([], [])
    assert sent(dispatcher) == []
    assert produced(dispatcher, 0, 0) == [0, 1]
    assert sent(dispatcher) == [(0, 4)]


def test_round_robin_what_a_dead_worker_held_waits_for_its_replacement():
    dispatcher = dispatcher_with(2, round_robin=True)
    sent(dispatcher)
    dispatcher.worker_gone(0, blame=True)
    assert (produced(dispatcher, 1, 1), sent(dispatcher)) == ([], [(1, 5)])
    dispatcher.worker_ready(7, slot=0)
    assert sent(dispatcher) == [(7, 0), (7, 2)]


def test_round_robin_and_out_of_order_others_take_what_exceeds_the_queue_of_a_worker_that_is_not_ready():
    dispatcher = Played(FixedPolicy(2), round_robin=True)
    dispatcher.slots = 2
    dispatcher.worker_ready(1, slot=1)
    dispatcher.open_iteration(0, in_order=False)
    for _ in range(8):
        dispatcher.add(0, None, 0)
    assert sent(dispatcher) == [(1, 1), (1, 3)]
    assert (produced(dispatcher, 1, 1), produced(dispatcher, 1, 3)) == ([1], [3])
    assert sent(dispatcher) == [(1, 5), (1, 7)]
    assert (produced(dispatcher, 1, 5), produced(dispatcher, 1, 7)) == ([5], [7])
    assert sent(dispatcher) == [(1, 4), (1, 6)]
    dispatcher.worker_ready(0, slot=0)
    assert sent(dispatcher) == [(0, 0), (0, 2)]


def test_what_a_dead_worker_held_is_assigned_first():
    dispatcher = dispatcher_with(2)
    sent(dispatcher)
    held, fatal = dispatcher.worker_gone(0, blame=True)
    assert ([t.number for t in held], fatal) == ([0, 2], None)
    dispatcher.worker_ready(7)
    assert sent(dispatcher) == [(7, 0), (7, 2)]
    assert dispatcher.held_by(7)[0].attempt == 2


def test_only_the_batch_being_processed_is_blamed_and_only_for_an_unexpected_death():
    dispatcher = dispatcher_with(1, depth=3)
    sent(dispatcher)
    held, _ = dispatcher.worker_gone(0, blame=True)
    assert [t.deaths for t in held] == [1, 0, 0]
    dispatcher.worker_ready(1)
    sent(dispatcher)
    held, _ = dispatcher.worker_gone(1, blame=False)
    assert [t.deaths for t in held] == [1, 0, 0]


def test_a_poisoned_batch_is_failed_and_the_rest_goes_on():
    dispatcher = dispatcher_with(1, batches=3)
    for death in range(MAX_DEATHS):
        dispatcher.worker_ready(death)
        assert sent(dispatcher)[0] == (death, 0)
        _held, fatal = dispatcher.worker_gone(death, blame=True)
    assert fatal is not None
    assert (fatal.number, fatal.deaths) == (0, MAX_DEATHS)
    assert dispatcher.fail(fatal, "error", NOW) is None
    dispatcher.worker_ready(9)
    assert sent(dispatcher) == [(9, 1), (9, 2)]
    produced(dispatcher, 9, 2)
    produced(dispatcher, 9, 1)
    assert [dispatcher.take(0).outcome for _ in range(3)] == ["error", "batch 1", "batch 2"]


def test_a_parked_iteration_yields_the_workers_when_they_have_done_what_they_hold():
    dispatcher = dispatcher_with(2)
    assert sent(dispatcher) == [(0, 0), (1, 1), (0, 2), (1, 3)]
    dispatcher.open_iteration(1)
    dispatcher.add(1, None, 0)
    dispatcher.add(1, None, 0)
    assert assignments(dispatcher) == []
    assert produced(dispatcher, 0, 0) == [0]
    assert [(w, t.epoch, t.number) for w, t in assignments(dispatcher)] == [(0, 1, 0)]
    assert produced(dispatcher, 0, 2) == []
    assert assignments(dispatcher) == []
    dispatcher.unpark(0)
    assert sent(dispatcher) == [(0, 4)]


def test_nothing_is_assigned_or_delivered_while_paused_but_results_are_kept():
    dispatcher = dispatcher_with(1)
    sent(dispatcher)
    dispatcher.gate.pause()
    assert produced(dispatcher, 0, 0) == [0]
    assert (dispatcher.take(0), sent(dispatcher)) == (None, [])
    dispatcher.gate.resume()
    assert dispatcher.take(0).task.number == 0
    assert sent(dispatcher) == [(0, 2)]


def test_a_step_delivers_one_batch_and_assigns_another():
    dispatcher = dispatcher_with(1, depth=2, window=4, batches=4)
    assert sent(dispatcher) == [(0, 0), (0, 1)]
    dispatcher.gate.pause()
    produced(dispatcher, 0, 0)
    produced(dispatcher, 0, 1)
    assert (dispatcher.take(0), sent(dispatcher)) == (None, [])
    dispatcher.gate.step()
    assert dispatcher.take(0).task.number == 0
    assert dispatcher.take(0) is None
    assert (sent(dispatcher), sent(dispatcher)) == ([(0, 2)], [])


def test_unused_steps_expire_with_the_last_iteration():
    dispatcher = dispatcher_with(1, batches=1)
    sent(dispatcher)
    produced(dispatcher, 0, 0)
    dispatcher.gate.pause()
    dispatcher.gate.step()
    dispatcher.gate.step()
    assert dispatcher.take(0) is not None
    dispatcher.close_iteration(0)
    dispatcher.open_iteration(1)
    dispatcher.add(1, None, 0)
    assert (dispatcher.gate.closed, dispatcher.assignments()) == (True, [])


def test_the_batch_that_delays_an_iteration_and_the_worker_that_holds_it():
    dispatcher = dispatcher_with(2)
    assert dispatcher.delay(0) == (0, None)
    sent(dispatcher)
    produced(dispatcher, 0, 0)
    assert dispatcher.delay(0) == (1, 1)


def test_round_robin_the_worker_that_delays_an_iteration_may_hold_a_later_batch():
    dispatcher = dispatcher_with(3, depth=1, round_robin=True)
    assert sent(dispatcher) == [(0, 0), (1, 1), (2, 2)]
    assert (produced(dispatcher, 0, 0), produced(dispatcher, 1, 1)) == ([0], [1])
    assert sent(dispatcher) == [(0, 3), (1, 4)]
    dispatcher.slots = 2
    dispatcher.worker_gone(2, blame=False)
    assert sent(dispatcher) == []
    assert dispatcher.delay(0) == (2, 0)
    produced(dispatcher, 0, 3)
    assert dispatcher.delay(0) == (2, None)
    assert sent(dispatcher) == [(0, 2)]


@pytest.mark.parametrize(("window", "room"), [(0, 1), (1, 1), (3, 3)])
def test_the_window_bounds_outstanding_batches(window, room):
    dispatcher = dispatcher_with(1, window=window, batches=0)
    assert dispatcher.refill_size(0) == room
    for _ in range(room):
        dispatcher.add(0, None, 0)
    assert dispatcher.refill_size(0) == 0
    sent(dispatcher)
    produced(dispatcher, 0, 0)
    assert dispatcher.refill_size(0) == 0, "a batch that is ready and was not taken counts"
    dispatcher.take(0)
    assert dispatcher.refill_size(0) == 1


def test_a_result_of_a_closed_iteration_is_rejected():
    dispatcher = dispatcher_with(1)
    sent(dispatcher)
    produced(dispatcher, 0, 1)
    assert dispatcher.close_iteration(0) == (["batch 1"], [])
    assert produced(dispatcher, 0, 0) is None
    assert dispatcher.held_by(0) == []


def test_another_worker_takes_a_batch_only_if_it_would_soon_be_idle():
    dispatcher = dispatcher_with(2, depth=2)
    assert sent(dispatcher) == [(0, 0), (1, 1), (0, 2), (1, 3)]
    assert (produced(dispatcher, 1, 1), sent(dispatcher)) == ([], [(1, 5)])
    assert (produced(dispatcher, 1, 3), sent(dispatcher)) == ([], [(1, 7)])
    assert (produced(dispatcher, 1, 5), sent(dispatcher)) == ([], [])
    assert (produced(dispatcher, 1, 7), sent(dispatcher)) == ([], [(1, 4)])
    assert (produced(dispatcher, 0, 0), sent(dispatcher)) == ([0, 1], [(0, 6)])


def test_while_batches_are_fast_another_worker_takes_several_at_once():
    dispatcher = dispatcher_with(2, depth=8, window=32, batches=32)
    assert [number for worker, number in sent(dispatcher) if worker == 1] == list(range(1, 16, 2))
    for number in range(1, 16, 2):
        produced(dispatcher, 1, number)
    assert [number for _worker, number in sent(dispatcher)] == [17, 19, 21, 23, 25, 27, 29, 31]
    for number in range(17, 32, 2):
        produced(dispatcher, 1, number)
    assert sent(dispatcher) == [(1, number) for number in (16, 18, 20, 22, 24, 26)]


def test_a_late_result_of_a_closed_iteration_is_dropped():
    dispatcher = dispatcher_with(1, batches=2)
    sent(dispatcher)
    _first, second = dispatcher.held_by(0)
    produced(dispatcher, 0, 0)
    dispatcher.close_iteration(0)  # leaves what the worker seems to process
    assert dispatcher.held_by(0) == [second]
    assert produced(dispatcher, 0, 1) is None
    assert dispatcher.held_by(0) == []


def test_idle_workers_are_assigned_batches_in_turn():
    """As in torch's loader."""
    dispatcher = dispatcher_with(3, batches=0)
    order = []
    for number in range(6):  # one at a time: all of them are idle when the next one is added
        dispatcher.add(0, None, 0)
        ((worker, _number),) = sent(dispatcher)
        order.append(worker)
        produced(dispatcher, worker, number)
    assert order == [0, 1, 2, 0, 1, 2]
