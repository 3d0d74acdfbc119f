"""Device transfers: when a batch is uploaded, and when its memory is released; scripted devices and real workers."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import gc
import logging
import mmap
import os
import weakref

import numpy as np
import pytest
import torch
from datasets import Images, Numbers, OnDevice, Structured, Uploads, flat, wait_for
from hypothesis import given
from hypothesis import strategies as st
from interleave import CountedInterrupt
from same import assert_same
from stand_in import DeviceFull, StandIn, StandInCopy
from torch.utils.data import default_collate

from nbloader import DataLoader, DatasetTransferError
from nbloader.device.accelerator import CopyTimes
from nbloader.device.pinning import Registry
from nbloader.device.record_queue import MAX_PENDING_RECORDS, PendingPlacement, RecordQueue
from nbloader.device.transfer import BatchKey, DeviceLane, DeviceTransfer, _all_in_flight
from nbloader.events import BatchRecord
from nbloader.shm import segment as shm

# ---- one lane, with a scripted device


class Scripted:
    """A device whose copies finish when the script says so."""

    name = "scripted:0"
    pins = True
    out_of_memory = DeviceFull

    def __init__(self):
        self.copies = []
        self.full = False
        self.ahead = True

    def can_upload_ahead(self, _batch):
        return self.ahead

    def copy(self, batch, mapping, *, ahead):
        self.copies.append(ScriptedCopy(self, batch))
        return self.copies[-1]

    def memory(self):
        return "1 of its 2 MB are free"

    def gauge(self):
        return None

    def close(self):
        pass

    def finish(self, count):
        for copy in [c for c in self.copies if c.started and not c.finished][:count]:
            copy.finished = True


class ScriptedCopy:
    memory, nbytes, pinned = "registered", 8, 0

    def __init__(self, device, batch):
        self.device = device
        self.batch = batch
        self.number = batch
        self.started = self.finished = self.delivered = self.waited = self.awaited = False

    def start(self):
        self.started = True
        if self.device.full:
            raise DeviceFull("tried to allocate 1 MB")

    def done(self):
        return self.finished or not self.started

    def begun(self):
        return self.awaited or self.finished

    def wait_until_begun(self):
        self.awaited = True

    def wait(self):
        self.waited = True
        while not self.finished:
            self.device.finish(1)

    def deliver(self):
        assert not self.delivered
        self.delivered = True
        return f"batch {self.batch} on the device"

    def times_known(self):
        return self.finished and self.delivered

    def times(self):
        return CopyTimes(1, 2, 3) if self.finished else CopyTimes()


class Box:
    """A payload that records when its memory is released."""

    mapping = None

    def __init__(self, number, returned):
        self.number = number
        weakref.finalize(self, returned.append, number)

    def open(self):
        return self.number


def actions():
    step = st.one_of(
        st.just(("deliver", 0)),
        st.tuples(st.just("ready"), st.integers(1, 3)),
        st.tuples(st.just("finish"), st.integers(1, 3)),
        st.tuples(st.just("full"), st.booleans()),
        st.just(("toggle type", 0)),
        st.just(("forget", 0)),
    )
    return st.lists(step, max_size=60)


@given(st.integers(0, 3), actions())
def test_memory_is_released_once_and_never_before_its_copy_is_done(ahead, script):  # noqa: C901 - a script
    device = Scripted()
    lane = DeviceLane(device, ahead)
    returned, line, delivered, made = [], collections.deque(), [], 0
    epoch = 0

    def check():
        by_number = collections.defaultdict(list)
        for copy in device.copies:
            by_number[copy.number].append(copy)
        assert len(set(returned)) == len(returned)
        for number in returned:
            assert all(c.done() for c in by_number[number]), "released while the device read it"
        assert sum(not c.done() for c in device.copies) <= lane.in_flight <= ahead + 1 + device.full
        assert delivered == sorted(delivered), "in order"
        begun = {c.number for c in device.copies if c.started and not c.delivered} - set(returned)
        assert len(begun - set(delivered)) <= ahead + 1

    for action, value in script:
        if action == "ready":
            for _ in range(value):
                line.append(Box(made, returned))
                made += 1
        elif action == "finish":
            device.finish(value)
        elif action == "full":
            device.full = value
        elif action == "toggle type":
            device.ahead = not device.ahead
        elif action == "forget":
            lane.forget(epoch)
            line.clear()
            epoch += 1
        elif line:
            try:
                batch, copy, _begin = lane.deliver(BatchKey(epoch, line[0].number), line[0])
            except DeviceFull:
                assert device.full
                check()
                continue
            box = line.popleft()
            assert batch == f"batch {box.number} on the device"
            assert copy.number == box.number
            delivered.append(box.number)
            del box, copy
            for box in list(line)[:ahead]:
                if not lane.start_ahead(BatchKey(epoch, box.number), box):
                    break
            box = None
        check()
    line.clear()
    lane.close()
    assert all(c.done() for c in device.copies)
    assert sorted(returned) == list(range(made)), "all memory was released"


def test_the_transfer_of_a_ready_batch_starts_while_the_consumer_has_the_previous_one():
    device, returned = Scripted(), []
    lane = DeviceLane(device, 1)
    first, second, third = boxes = [Box(i, returned) for i in range(3)]
    lane.deliver(BatchKey(0, 0), first)
    assert lane.start_ahead(BatchKey(0, 1), second)
    assert not lane.start_ahead(BatchKey(0, 2), third), "at most one ahead"
    assert [c.number for c in device.copies] == [0, 1]
    batch, copy, _begin = lane.deliver(BatchKey(0, 1), second)
    assert (batch, copy) == ("batch 1 on the device", device.copies[1])
    assert not copy.waited, "the device waits, not the host"
    del boxes, first, second, third


def test_the_host_waits_for_a_copy_only_if_too_many_are_in_flight():
    device, returned = Scripted(), []
    lane = DeviceLane(device, 1)
    for number in range(2):
        lane.deliver(BatchKey(0, number), Box(number, returned))
    assert not any(c.waited for c in device.copies)
    assert returned == [], "both are being read"
    lane.deliver(BatchKey(0, 2), Box(2, returned))
    assert [c.waited for c in device.copies] == [True, False, False]
    assert returned == [0]
    lane.close()


def test_a_host_that_runs_ahead_waits_first_for_the_work_before_the_oldest_copy():
    device, returned = Scripted(), []
    lane = DeviceLane(device, 1)
    boxes = [Box(number, returned) for number in range(3)]
    lane.catch_up()
    lane.deliver(BatchKey(0, 0), boxes[0])
    lane.start_ahead(BatchKey(0, 1), boxes[1])
    lane.catch_up()
    lane.deliver(BatchKey(0, 1), boxes[1])
    assert [(c.awaited, c.waited) for c in device.copies] == [(True, False), (False, False)]
    lane.start_ahead(BatchKey(0, 2), boxes[2])
    assert [c.waited for c in device.copies] == [True, False, False]
    lane.close()


@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("late", [1, 5])
def test_after_batches_that_were_not_ready_in_time_the_next_ones_are_uploaded_ahead_again(ahead, late):
    """Also if the host runs ahead of the device: its copies are done only when the host waits for them."""
    device, returned = Scripted(), []
    lane = DeviceLane(device, ahead)
    boxes = [Box(number, returned) for number in range(20)]
    for number in range(12):
        lane.catch_up()
        lane.deliver(BatchKey(0, number), boxes[number])
        for later in () if number < late else boxes[number + 1 :][:ahead]:
            if not lane.start_ahead(BatchKey(0, later.number), later):
                break
        if number >= late:
            assert len(lane.started) == ahead
    lane.close()


@given(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=12))
def test_a_transfer_waits_only_for_copies_that_the_device_has_begun(ahead, ready):
    """The wait for one that it has not begun is a wait for the loop's own work."""
    device, returned = Scripted(), []
    lane = DeviceLane(device, ahead)
    boxes = [Box(number, returned) for number in range(len(ready))]
    for number, count in enumerate(ready):
        lane.catch_up()
        lane.deliver(BatchKey(0, number), boxes[number])
        for later in boxes[number + 1 :][: min(ahead, count)]:
            if not lane.start_ahead(BatchKey(0, later.number), later):
                break
        assert [c.number for c in device.copies if c.waited and not c.awaited] == []
    lane.close()


def test_too_little_memory_for_a_batch_ahead_is_no_error_and_not_retried_in_that_iterator(caplog):
    device, returned = Scripted(), []
    lane = DeviceLane(device, 1)
    boxes = [Box(i, returned) for i in range(4)]
    lane.deliver(BatchKey(0, 0), boxes[0])
    device.full = True
    with caplog.at_level(logging.WARNING):
        assert not lane.start_ahead(BatchKey(0, 1), boxes[1])
    assert "scripted:0 has no memory for uploads ahead" in caplog.text
    device.full = False
    assert lane.deliver(BatchKey(0, 1), boxes[1])[0] == "batch 1 on the device"
    device.finish(9)
    assert not lane.start_ahead(BatchKey(0, 2), boxes[2])
    assert lane.start_ahead(BatchKey(1, 0), boxes[3]), "the next iterator tries again"
    lane.close()


def test_a_full_device_raises_a_clear_error_and_keeps_the_batch():
    device = Scripted()
    lane = DeviceLane(device, 1)
    box = Box(7, [])
    device.full = True
    with pytest.raises(DeviceFull, match=r"batch 7 does not fit on scripted:0: tried to allocate 1 MB \(1 of its 2 MB"):
        lane.deliver(BatchKey(0, 7), box)
    device.full = False
    assert lane.deliver(BatchKey(0, 7), box)[0] == "batch 7 on the device"
    lane.close()


def test_a_garbage_collected_lane_waits_for_its_copies_before_releasing_memory():
    device, returned = Scripted(), []
    lane = DeviceLane(device, 1)
    lane.deliver(BatchKey(0, 0), Box(0, returned))
    del lane
    gc.collect()
    assert device.copies[0].waited
    assert returned == [0]


def test_the_transfer_of_a_batch_that_was_produced_again_is_restarted():
    device, returned = Scripted(), []
    lane = DeviceLane(device, 1)
    old, new = Box(1, returned), Box(2, returned)
    assert lane.start_ahead(BatchKey(0, 1), old)
    assert lane.deliver(BatchKey(0, 1), new)[0] == "batch 2 on the device"
    lane.close()


def test_batches_alternate_between_devices_and_a_transfer_to_the_wrong_device_is_restarted():
    devices = Scripted(), Scripted()
    transfer = DeviceTransfer([*devices, None], 1)
    assert transfer.ahead == 3
    returned = []
    boxes = [Box(i, returned) for i in range(6)]
    got = [transfer.deliver(BatchKey(0, i), boxes[i], i) for i in range(3)]
    assert [batch for batch, _placement in got] == ["batch 0 on the device", "batch 1 on the device", 2]
    assert got[2][1] is None
    transfer.start_ahead([(BatchKey(0, i), boxes[i]) for i in (3, 4)], 3)
    assert [[c.number for c in d.copies] for d in devices] == [[0, 3], [1, 4]]
    transfer.deliver(BatchKey(0, 4), boxes[4], 3)  # batch 3 was skipped
    assert [[c.number for c in d.copies] for d in devices] == [[0, 3, 4], [1, 4]]
    transfer.forget(0)
    transfer.close()
    assert all(lane.in_flight == 0 for lane in transfer._lanes if lane)


class Late(ScriptedCopy):
    """A copy of which parts are enqueued when its start fails."""

    def start(self):
        self.started = True
        if self.device.full:
            raise self.device.error


@pytest.mark.parametrize("error", [ValueError("cannot be pinned"), MemoryError(), RuntimeError("the device is lost")])
def test_an_error_of_a_batch_ahead_is_raised_once_when_the_batch_is_due(error):
    device, returned = Scripted(), []
    device.error = error
    device.copy = lambda batch, _mapping, *, ahead: device.copies.append(Late(device, batch)) or device.copies[-1]
    lane = DeviceLane(device, 2)
    boxes = [Box(i, returned) for i in range(3)]
    lane.deliver(BatchKey(0, 0), boxes[0])
    device.full = True
    assert not lane.start_ahead(BatchKey(0, 1), boxes[1])
    with pytest.raises(type(error)) as raised:
        lane.deliver(BatchKey(0, 1), boxes[1])
    assert raised.value is error
    del raised
    error.__traceback__ = boxes[1] = None
    device.full = False
    assert not returned, "the device may read what was enqueued before the error"
    device.finish(9)
    assert lane.deliver(BatchKey(0, 2), boxes[2])[0] == "batch 2 on the device"
    assert returned == [1]
    lane.close()


def test_an_interrupt_of_an_upload_at_any_point_releases_no_memory_that_the_device_reads():
    """At each point of the lane. Whoever tries again gets the batch."""

    def upload(number):
        device, returned = Scripted(), []
        lane = DeviceLane(device, 1)
        count = CountedInterrupt("device/transfer.py", number=number)
        boxes = [Box(i, returned) for i in range(4)]
        due = 0

        def check():
            reading = {copy.number for copy in device.copies if not copy.done()}
            assert not reading & set(returned), number

        def deliver():
            nonlocal due
            while due < len(boxes):
                assert lane.deliver(BatchKey(0, due), boxes[due])[0] == f"batch {due} on the device"
                boxes[due] = None
                due += 1
                check()
                device.finish(1)
                if due < len(boxes):
                    lane.start_ahead(BatchKey(0, due), boxes[due])

        with contextlib.suppress(KeyboardInterrupt), count:
            deliver()
        check()
        deliver()
        lane.close()
        assert sorted(returned) == [0, 1, 2, 3]
        return count.passed

    points = upload(0)
    assert points > 60
    for number in range(1, points + 1):
        upload(number)


@pytest.mark.parametrize("end", ["close", "collect"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt of a finalizer
def test_an_interrupt_of_the_end_releases_no_memory_that_the_device_reads(end):
    class Interrupted(ScriptedCopy):
        def wait(self):
            if not self.waited:
                self.waited = True
                raise KeyboardInterrupt
            super().wait()

    device, returned = Scripted(), []
    device.copy = lambda batch, _mapping, *, ahead: (
        device.copies.append(Interrupted(device, batch)) or device.copies[-1]
    )
    lane = DeviceLane(device, 1)
    lane.deliver(BatchKey(0, 0), Box(0, returned))
    if end == "close":
        with pytest.raises(KeyboardInterrupt):
            lane.close()
        assert returned == []
        lane.close()
        assert returned == [0]
    else:
        del lane
        gc.collect()
        assert device.copies[0].waited
        assert returned == []
        ((key, _queue),) = ((key, queue) for key, queue in _all_in_flight.items() if queue)
        _all_in_flight.pop(key)


# ---- records


def record(number):
    return BatchRecord(**dict.fromkeys(BatchRecord._fields, 0) | {"index": number})  # type: ignore[arg-type]


def test_records_wait_for_the_times_of_the_device_and_stay_in_order():
    device, published = Scripted(), []
    copies = [ScriptedCopy(device, i) for i in range(3)]
    records = RecordQueue(published.append)
    for number, copy in enumerate(copies):
        copy.started = copy.delivered = True
        records.add(record(number), PendingPlacement("scripted:0", copy, 5))
    records.add(record(3), None)
    assert published == []
    copies[1].finished = True
    records.flush()
    assert published == [], "the times of the first are unknown"
    copies[0].finished = True
    records.flush()
    assert [r.index for r in published] == [0, 1]
    assert published[0].placed == ("scripted:0", "registered", 5, 0, 1, 2, 3, 8)
    records.flush(at_once=True)
    assert [r.index for r in published] == [0, 1, 2, 3]
    assert published[2].placed.uploaded == 0
    assert not published[3].placed


def test_the_number_of_waiting_records_is_bounded():
    published = []
    records = RecordQueue(published.append)
    copy = ScriptedCopy(Scripted(), 0)
    for number in range(MAX_PENDING_RECORDS + 5):
        records.add(record(number), PendingPlacement("scripted:0", copy, 0))
    assert [r.index for r in published] == [0, 1, 2, 3, 4]


# ---- pinning in place


def segment(size=mmap.PAGESIZE):
    fd = shm.anonymous_file(size)
    memory = shm.mapped(fd, size)
    os.close(fd)
    return memory


class Runtime:
    """Registers memory and notes it; `errors` are raised in turn, None for success."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.log = []

    def register(self, address, size, device):
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.log.append(("register", address, size, device))

    def unregister(self, address, device):
        ctypes.string_at(address, mmap.PAGESIZE)  # crashes unless it is still mapped
        self.log.append(("unregister", address, device))


def test_a_segment_is_registered_once_and_unregistered_before_it_is_unmapped():
    runtime = Runtime()
    registry = Registry(runtime)
    memory = segment()
    address = ctypes.addressof(memory)
    assert [registry.memory_for(memory, device) for device in (0, 1, 0)] == ["registered"] * 3
    assert runtime.log == [("register", address, mmap.PAGESIZE, 0)]
    view = np.frombuffer((ctypes.c_char * mmap.PAGESIZE).from_buffer(memory), np.uint8)
    del memory
    gc.collect()
    assert len(runtime.log) == 1, "an array still references it"
    del view
    gc.collect()
    assert runtime.log[1:] == [("unregister", address, 0)], "in the context of the device that registered it"


def test_after_a_failed_registration_batches_are_copied(caplog):
    runtime = Runtime(None, MemoryError("the limit of locked memory is reached"))
    registry = Registry(runtime)
    one, two, three = segment(), segment(), segment()
    assert registry.memory_for(one, 0) == "registered"
    assert registry.memory_for(two, 0) == "copied"
    assert "0.0 MB of shared memory cannot be pinned, in addition to 0.0 MB (the limit of locked" in caplog.text
    assert registry.memory_for(three, 0) == "copied", "not tried"
    assert len(runtime.log) == 1
    del one
    assert registry.memory_for(three, 0) == "registered", "there is room again"


class User:
    """Somebody who uses a registry."""


@pytest.mark.parametrize("end", ["ask", "leave", "collect"])
def test_a_segment_that_is_dropped_is_unmapped_when_the_consumer_asks_for_the_next_batch(end):
    runtime, user = Runtime(), User()
    registry = Registry(runtime)
    registry.enter(user)
    memory = segment()
    address = ctypes.addressof(memory)
    registry.memory_for(memory, 0)
    del memory
    gc.collect()
    ctypes.string_at(address, mmap.PAGESIZE)  # crashes unless it is still mapped
    assert len(runtime.log) == 1
    if end == "ask":
        registry.memory_for(None, 0)
    elif end == "leave":
        registry.leave(user)
    else:
        del user
    assert runtime.log[1:] == [("unregister", address, 0)]


def test_a_batch_outside_of_segments_is_copied():
    assert Registry(Runtime()).memory_for(None, 0) == "copied"


# ---- loaders with real workers and late copies


def images(numbers):
    return [torch.tensor(numbers).float().view(-1, 1, 1).expand(-1, 64, 64), torch.tensor(numbers)]


def assert_images(batches, n=40, size=4):
    expected = [images(list(range(i, min(i + size, n)))) for i in range(0, n, size)]
    assert len(batches) == len(expected)
    for mine, theirs in zip(batches, expected, strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize("lag", [0, 1, 3, None])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_late_copies_read_what_the_worker_wrote(lag, ahead):
    device = StandIn(lag)
    with DataLoader(Images(40), 4, num_workers=2, device=device, upload_ahead=ahead) as loader:
        for _ in range(2):
            batches = list(loader)
            device.synchronize()
            assert_images(batches)
    assert device.most_in_flight <= ahead + 1
    assert not device.registered, "all memory was unregistered"
    assert not [line for line in device.log if line[0] == "unregistered while being read"]


def test_batches_are_uploaded_while_the_consumer_has_the_previous_one():
    device = StandIn(None)
    seen = []
    with DataLoader(Images(40), 4, num_workers=2, device=device) as loader:
        for _batch in loader:
            wait_for(lambda: loader.stats().ready >= 2 or len(seen) >= 6, "the next batch, and the one after it")
            seen.append(len(device._queue))
    assert max(seen) == 2, "this one, and one ahead"


@pytest.mark.parametrize("workers", ["process", "thread"])
@pytest.mark.parametrize(("collate_fn", "ahead"), [(None, 1), (default_collate, 1), (list, 0)])
def test_batches_in_chunks_are_uploaded_ahead_unless_they_must_be_joined(workers, collate_fn, ahead):
    class Counting(StandIn):
        copies = 0

        def copy(self, batch, mapping, *, ahead):
            self.copies += 1
            return super().copy(batch, mapping, ahead=ahead)

    device = Counting(0)
    seen = []
    with DataLoader(
        Images(40), 4, num_workers=2, workers=workers, chunk_size=2, device=device, collate_fn=collate_fn
    ) as loader:
        for number, _batch in enumerate(loader, 1):
            seen.append(device.copies - number)
            wait_for(lambda: loader.stats().ready >= 2 or len(seen) >= 6, "the next batch, and the one after it")
    assert max(seen) == ahead


@pytest.mark.parametrize("lag", [0, 3, None])
@pytest.mark.parametrize("ahead", [1, 2])
def test_late_copies_of_chunked_batches_read_what_the_workers_wrote(lag, ahead):
    device = StandIn(lag)
    with DataLoader(Images(40), 4, num_workers=2, chunk_size=2, device=device, upload_ahead=ahead) as loader:
        for _ in range(2):
            batches = list(loader)
            device.synchronize()
            assert_images(batches)
    gc.collect()
    assert not device.registered, "all memory was unregistered"
    assert not [line for line in device.log if line[0] == "unregistered while being read"]


@pytest.mark.parametrize("way", ["copied", "pageable"])
def test_copied_and_pageable_memory_give_the_same_batches(way):
    device = StandIn(3, way=way)
    with DataLoader(Images(40), 4, num_workers=2, device=device) as loader:
        batches = list(loader)
        device.synchronize()
        assert {r.placed.memory for r in loader.events.batches()} == {way}
    assert_images(batches)
    assert device.log == []


def test_a_failed_registration_during_an_epoch_switches_to_copies():
    device = StandIn(3, register_fails_at=1)
    with DataLoader(Images(80), 4, num_workers=2, device=device) as loader:
        batches = list(loader)
        device.synchronize()
        ways = {r.placed.memory for r in loader.events.batches()}
    assert_images(batches, 80)
    assert ways == {"registered", "copied"}
    assert len([line for line in device.log if line[0] == "register"]) == 1


def test_records_contain_the_placement():
    device = StandIn(1)
    with DataLoader(Images(40), 4, num_workers=2, device=device) as loader:
        list(loader)
        records = loader.events.batches()
    assert [r.index for r in records] == list(range(10))
    placed = [r.placed for r in records]
    assert {(p.device, p.memory, p.nbytes) for p in placed} == {("stand-in:0", "registered", 4 * 64 * 64 * 4 + 4 * 8)}
    for r, p in zip(records[:-2], placed[:-2], strict=True):
        assert r.in_order <= p.begin <= r.delivered
        assert 0 < p.pinned < p.upload_begin < p.uploaded
        assert p.needed > 0


def test_stats_say_how_batches_are_uploaded():
    device = StandIn(1)
    with DataLoader(Images(40), 4, num_workers=2, device=device) as loader:
        assert loader.stats().uploads is None
        list(loader)
        stats = loader.stats()
    assert (stats.pinned, stats.device) == (True, "stand-in:0")
    assert stats.uploads.ways == (("registered", 10),)
    assert "Upload  to stand-in:0 from registered memory" in str(stats)
    assert "Upload to stand-in:0 from registered memory" in stats._repr_html_()


def test_without_a_device_records_have_no_placement():
    with DataLoader(Numbers(8), 4, num_workers=1) as loader:
        list(loader)
        assert {r.placed for r in loader.events.batches()} == {None}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_structure_of_a_batch_is_uploaded(num_workers):
    device = StandIn(2)
    plain = list(DataLoader(Structured(12), 4))
    with DataLoader(Structured(12), 4, num_workers=num_workers, device=device) as loader:
        batches = list(loader)
        device.synchronize()
    for mine, theirs in zip(batches, plain, strict=True):
        assert_same(mine, theirs)


def test_small_batches_and_those_of_custom_collate_functions_are_uploaded():
    def pairs(samples):
        return torch.tensor(samples), {"big": torch.full((100, 100), float(samples[0])), "name": "x"}

    device = StandIn(2)
    with (
        DataLoader(Numbers(12), 4, num_workers=2, device=device) as small,
        DataLoader(Numbers(12), 4, num_workers=2, device=device, collate_fn=pairs) as own,
    ):
        mine, theirs = list(small), list(own)
        device.synchronize()
        assert flat(mine) == list(range(12))
        for i, (numbers, rest) in enumerate(theirs):
            assert numbers.tolist() == list(range(4 * i, 4 * i + 4))
            assert torch.equal(rest["big"], torch.full((100, 100), 4.0 * i))
            assert rest["name"] == "x"
        assert {r.placed.memory for r in small.events.batches()} == {"copied"}
        assert {r.placed.memory for r in own.events.batches()} == {"registered"}


class Ragged:
    """A custom batch type with a method `to`."""

    def __init__(self, values):
        self.values = values
        self.device = "here"

    def to(self, device, *, non_blocking):
        moved = Ragged(self.values)
        moved.device = device, non_blocking
        return moved


def test_custom_batch_types_are_moved_by_their_own_method():
    device = StandIn(2, ahead=False)
    with DataLoader(Numbers(8), 4, num_workers=1, device=device, collate_fn=Ragged) as loader:
        batches = list(loader)
    assert [b.values for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert {b.device for b in batches} == {("stand-in:0", True)}


def segments_out(loader):
    """Segments that are lent, by worker."""
    return sum(len(handle.segments._lent) for handle in loader._engine._group.pool.handles.values())


def test_an_abandoned_loop_releases_what_was_uploaded_ahead():
    device = StandIn(None)
    with DataLoader(Images(80), 4, num_workers=2, persistent_workers=True, device=device) as loader:
        for _ in range(5):
            next(iter(loader))
            batches = list(loader)  # the workers overwrite what was abandoned
            device.synchronize()
            assert_images(batches, 80)
            del batches
        loader._parts.transfer.close()
        gc.collect()
        assert segments_out(loader) == 0


def test_closing_the_loader_waits_for_its_copies():
    device = StandIn(None)
    loader = DataLoader(Images(80), 4, num_workers=2, device=device)
    batch = next(iter(loader))
    assert device._queue
    loader.close()
    assert not device._queue
    assert_same(batch, images([0, 1, 2, 3]))
    gc.collect()
    assert not device.registered


def test_a_garbage_collected_loader_waits_for_its_copies():
    device = StandIn(None)
    batch = next(iter(DataLoader(Images(80), 4, num_workers=2, device=device)))
    wait_for(lambda: gc.collect() is not None and not device.registered, "the end of the loader")
    assert_same(batch, images([0, 1, 2, 3]))
    assert not [line for line in device.log if line[0] == "unregistered while being read"]


def test_the_memory_of_restarted_workers_lives_until_it_is_copied():
    device = StandIn(None)
    with DataLoader(Images(80), 4, num_workers=2, device=device) as loader:
        batches = []
        for i, batch in enumerate(loader):
            batches.append(batch)
            if i in (3, 9):
                loader.restart_workers()
        device.synchronize()
    assert_images(batches, 80)
    assert not [line for line in device.log if line[0] == "unregistered while being read"]


def test_a_pause_withholds_batches_that_are_uploaded_already():
    device = StandIn(None)
    with DataLoader(Images(40), 4, num_workers=2, device=device) as loader:
        it = iter(loader)
        batches = [next(it)]
        wait_for(lambda: loader.stats().ready >= 2, "batches that are ready")
        batches.append(next(it))
        assert len(device._queue) == 2
        loader.pause()
        wait_for(lambda: loader.stats().state == "paused", "the pause")
        loader.on_wait(loader.resume)
        batches += it
        device.synchronize()
    assert_images(batches)


def test_a_full_device_loses_no_batch_and_the_loader_stays_usable():
    device = StandIn(1, room=4 * 64 * 64 * 4 + 10)  # the images fit, the labels do not
    with DataLoader(Images(16), 4, num_workers=2, device=device) as loader:
        it = iter(loader)
        with pytest.raises(DeviceFull, match=r"batch 0 does not fit on stand-in:0: tried to allocate 32 bytes"):
            next(it)
        with pytest.raises(DeviceFull, match="batch 0"):
            next(it)
        device.room = None
        batches = list(it)
        device.synchronize()
        assert_images(batches, 16)
        batches = list(loader)
        device.synchronize()
        assert_images(batches, 16)


class Unreadable:
    """A batch that cannot be unpickled in the notebook's process."""

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return _unreadable, (self.number,)


def _unreadable(number):
    raise ValueError(f"batch {number} cannot be read")


def third_is_unreadable(samples):
    number = samples[0] // 2
    return [torch.full((9000,), float(number)), Unreadable(3) if number == 3 else number]


def numbers_and_errors(epoch):
    """The numbers of the batches, and errors in their places."""
    got = []
    while True:
        try:
            got.append(next(epoch)[1])
        except StopIteration:
            return got
        except ValueError as error:
            got.append(str(error))


@pytest.mark.parametrize("ahead", [None, 0, 1, 3])
def test_an_error_of_a_batch_is_raised_in_its_place_once(ahead):
    options = {} if ahead is None else {"device": StandIn(1), "upload_ahead": ahead}
    options |= {"num_workers": 2, "prefetch_factor": 4}
    with DataLoader(Numbers(14), 2, collate_fn=third_is_unreadable, **options) as loader:
        epoch = iter(loader)
        first = next(epoch)[1]
        wait_for(lambda: loader.stats().ready >= 6, "the other batches")
        assert [first, *numbers_and_errors(epoch)] == [0, 1, 2, "batch 3 cannot be read", 4, 5, 6]


def test_an_interrupt_of_the_wait_after_an_error_of_a_batch_costs_nothing():
    with DataLoader(Numbers(14), 2, num_workers=2, collate_fn=third_is_unreadable) as loader:
        epoch = iter(loader)
        assert [next(epoch)[1] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="batch 3 cannot be read"):
            next(epoch)
        loader.pause()
        wait_for(lambda: loader.stats().state == "paused", "the pause")
        loader.on_wait(interrupt_once := Once(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            next(epoch)
        assert interrupt_once.called
        loader.resume()
        assert numbers_and_errors(epoch) == [4, 5, 6]


class Once:
    """Raises at its first call."""

    def __init__(self, error):
        self.error = error
        self.called = False

    def __call__(self):
        if not self.called:
            self.called = True
            raise self.error


@pytest.mark.parametrize("point", ["open", "pin", "copy", "deliver", "next"])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_an_interrupt_of_an_upload_costs_no_batch(point, chunk_size):
    """Not even the batch that is being uploaded."""
    device = InterruptedDevice(point)
    options = {"num_workers": 2, "prefetch_factor": 5, "chunk_size": chunk_size}
    with DataLoader(Images(40), 4, device=device, **options) as loader:
        epoch, batches = iter(loader), []
        wait_for(lambda: loader.stats().ready >= 8, "batches that are ready")
        while True:
            try:
                batches.append(next(epoch))
            except KeyboardInterrupt:
                continue
            except StopIteration:
                break
        device.synchronize()
        assert device.interrupts >= 1  # how often a batch is opened ahead depends on the speed of the machine
        assert_images(batches)
        assert [r.index for r in loader.events.batches()] == list(range(10))


class InterruptedDevice(StandIn):
    """A device on which a third of the calls are interrupted at one point.

    Args:
        point: "open" (before the copy), "pin", "copy" (after it was enqueued), "deliver", or "next" (after the batch
            is on the device, while the next one is started).
    """

    def __init__(self, point):
        super().__init__(1)
        self.point = point
        self.calls = self.interrupts = self.delivered = 0

    def passes(self, point):
        if point == self.point:
            self.calls += 1
            if self.calls % 3 == 2:  # not the first, and every third
                self.interrupts += 1
                raise KeyboardInterrupt

    def can_upload_ahead(self, batch):
        self.passes("open")
        return super().can_upload_ahead(batch)

    def copy(self, batch, mapping, *, ahead):
        return InterruptedCopy(self, batch, self.memory_for(mapping))


class InterruptedCopy(StandInCopy):
    def start(self):
        if self.device.delivered:
            self.device.passes("next")
        self.device.passes("pin")
        super().start()
        self.device.passes("copy")

    def deliver(self):
        self.device.passes("deliver")
        self.device.delivered += 1
        return super().deliver()


def test_batches_alternate_between_several_devices():
    devices = StandIn(2, name="stand-in:0"), StandIn(None, name="stand-in:1")
    devices[1].registry = devices[0].registry  # there is one for all devices of a kind
    with DataLoader(Images(40), 4, num_workers=2, device=devices) as loader:
        steps = list(loader)
        for device in devices:
            device.synchronize()
        assert [r.placed.device for r in loader.events.batches()] == ["stand-in:0", "stand-in:1"] * 5
    assert [len(step) for step in steps] == [2] * 5
    assert_images([batch for step in steps for batch in step])


# ---- no accelerators in workers


@pytest.mark.parametrize("options", [{"collate_fn": list}, {"batch_size": None}])
def test_a_gpu_tensor_from_a_worker_is_a_clear_error(options):
    with (
        DataLoader(Uploads(4), **{"batch_size": 2, "num_workers": 1} | options) as loader,
        pytest.raises(TypeError, match=r"a tensor on cuda:0 cannot be sent.*give the loader device='cuda:0'"),
    ):
        next(iter(loader))


def test_a_gpu_tensor_in_the_dataset_is_a_clear_error():
    with (
        DataLoader(Numbers(4, table=OnDevice()), 2, num_workers=1, multiprocessing_context="forkserver") as loader,
        pytest.raises(DatasetTransferError, match="a tensor on cuda:0 cannot be sent"),
    ):
        next(iter(loader))
