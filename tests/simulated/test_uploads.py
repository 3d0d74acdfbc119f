"""Uploads to a simulated accelerator (accelerator.cpp): the bytes that arrive, and what the device is asked to do.

Each batch is read late, by a kernel on the consumer's stream, and dropped at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import pathlib
import threading
import types

import numpy as np
import pytest
import simulator
import torch
from datasets import Images, Numbers, Structured, wait_for
from interleave import CountedInterrupt
from same import assert_same
from simulator import Read, Registers, count
from test_transfer import images, third_is_unreadable

from nbloader import DataLoader
from nbloader._platform import mapped
from nbloader.device import staging, torch_backend
from nbloader.device.accelerator import COPY_THREAD
from nbloader.device.pinning import Registry
from nbloader.device.transfer import BatchKey, DeviceLane
from nbloader.shm import segment as shm

pytestmark = pytest.mark.simulated

BATCH = 4 * 64 * 64 * 4
"""Bytes of the images of a batch."""


def accelerator(index=0, *, registry=None, backend=torch_backend, **options):
    return backend.TorchAccelerator(torch.device("simulated", index), registry, **options)


class WideImages(Images):
    """Images so large that a thread copies them to pinned memory: 1 MB for four."""

    def __getitem__(self, i):
        return np.full((4, 128, 128), i, np.float32), i


def wide(numbers):
    return [torch.tensor(numbers).float().view(-1, 1, 1, 1).expand(-1, 4, 128, 128), torch.tensor(numbers)]


def read(batch):
    """Start kernels that read the tensors of a batch."""
    return [Read(part) for part in batch]


def wrong(reads, expected=images, size=4):
    """How many batches arrived with wrong bytes."""
    results = [[part.result() for part in batch] for batch in reads]
    should = [expected(list(range(size * i, size * i + size))) for i in range(len(results))]
    return sum(not all(map(torch.equal, ours, theirs)) for ours, theirs in zip(results, should, strict=True))


def nothing_is_left():
    gc.collect()
    for index in range(simulator.DEVICES):
        simulator.synchronize(index)
    assert count("registered") == 0
    assert count("used") == 0
    assert count("unregistered_reads") == 0
    assert count("wrong_device") == 0


# ---- bytes


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("memory", ["registered", "copied", "pageable"])
@pytest.mark.parametrize("dataset", [Images, WideImages])
def test_batches_that_are_read_late_and_dropped_at_once_have_the_right_bytes(simulated, ahead, memory, dataset):
    simulator.speed(copy=1, kernel=1)
    registry = Registry(Registers()) if memory == "registered" else None
    device = accelerator(registry=registry, pins=memory != "pageable")
    expected = images if dataset is Images else wide
    with DataLoader(
        dataset(80), 4, num_workers=2, device=device, upload_ahead=ahead, persistent_workers=True
    ) as loader:
        for _ in range(2):
            assert wrong([read(batch) for batch in loader], expected) == 0
        records = loader.events.batches()
    assert {r.placed.memory for r in records} == {memory}
    assert all(0 < r.placed.upload_begin <= r.placed.uploaded for r in records if r.index < 10)
    nothing_is_left()


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2, "workers": "thread"},
        {"num_workers": 2, "chunk_size": 2},
        {"num_workers": 2, "in_order": False},
        {"num_workers": 2, "multiprocessing_context": "forkserver"},
    ],
    ids=str,
)
def test_every_way_to_load_has_the_right_bytes(simulated, options):
    simulator.speed(copy=1, kernel=1)
    device = accelerator(registry=Registry(Registers()))
    with DataLoader(Images(80), 4, device=device, **options) as loader:
        batches = [(int(label[0]), Read(image)) for image, label in loader]
    assert sorted(first for first, _read in batches) == list(range(0, 80, 4))
    for first, image in batches:
        assert torch.equal(image.result(), images(list(range(first, first + 4)))[0])
    nothing_is_left()


def test_every_structure_of_a_batch_is_uploaded(simulated):
    plain = list(DataLoader(Structured(12), 4))
    with DataLoader(Structured(12), 4, num_workers=2, device=accelerator(registry=Registry(Registers()))) as loader:
        for mine, theirs in zip(loader, plain, strict=True):
            assert mine["large"].device == torch.device("simulated", 0)
            assert_same({key: on_the_host(part) for key, part in mine.items()}, theirs)


def on_the_host(part):
    if isinstance(part, torch.Tensor):
        return part.cpu()
    if isinstance(part, list):
        return [on_the_host(child) for child in part]
    return {key: on_the_host(child) for key, child in part.items()} if isinstance(part, dict) else part


@pytest.mark.parametrize("inference", [False, True])
def test_batches_belong_to_the_stream_and_the_mode_of_the_consumer(simulated, inference):
    """It may iterate on another stream than the default one, from one batch to the next."""
    assert wrong_on_changing_streams(torch_backend, inference=inference) == 0
    nothing_is_left()


def wrong_on_changing_streams(backend, *, inference=False):
    """Batches with wrong bytes, if every other one is consumed on another stream."""
    simulator.speed(copy=0.5, kernel=2)
    device = accelerator(registry=Registry(Registers()), backend=backend)
    module = torch.get_device_module(device.device)
    streams = module.current_stream(), module.Stream()
    reads = []
    with (
        torch.inference_mode(inference),
        DataLoader(Images(240), 4, num_workers=2, device=device) as loader,
    ):
        it = iter(loader)
        for stream in itertools.islice(itertools.cycle(streams), 60):
            with module.stream(stream):
                batch = next(it)
                reads.append(read(batch))
                assert batch[0].is_inference() == inference
                del batch
                wait_for(lambda: loader.stats().ready, "the next batch") if len(reads) < 50 else None
    return wrong(reads)


def wrong_on_one_stream(backend):
    """Batches with wrong bytes, if the host runs ahead of a device whose kernels are slow."""
    simulator.speed(copy=1, kernel=2)
    device = accelerator(registry=Registry(Registers()), backend=backend)
    with DataLoader(Images(240), 4, num_workers=2, device=device) as loader:
        return wrong([read(batch) for batch in loader])


def wrong_with_fast_kernels(backend):
    """Batches with wrong bytes, if copies are slower than kernels."""
    simulator.speed(copy=2, kernel=0.1)
    device = accelerator(registry=Registry(Registers()), backend=backend)
    with DataLoader(Images(240), 4, num_workers=2, device=device) as loader:
        return wrong([read(batch) for batch in loader])


FAULTS = {
    "the consumer does not wait for the copy": (
        "consumer.wait_event(self._end)", "pass", wrong_with_fast_kernels,
    ),
    "the copy does not wait for the consumer": (
        "side.wait_stream(self._owner)", "pass", wrong_on_one_stream,
    ),
    "no record_stream": (
        "leaf.record_stream(consumer)", "pass", wrong_on_changing_streams,
    ),
    "the event comes before the copy": (
        "            try:\n                moves()", "            try:\n                self._record_end(); moves()",
        wrong_with_fast_kernels,
    ),
    "the copy is on another stream": (
        "with self._accelerator.module.stream(stream):",
        "with self._accelerator.module.stream(self._accelerator.module.Stream(self._accelerator.device)):",
        wrong_with_fast_kernels,
    ),
    "a copy is always done": (
        "return bool(self._end.query())",
        "self.times_known, self.times = (lambda: False), CopyTimes; return True",
        wrong_with_fast_kernels,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_order_of_the_work_is_noticed_here(simulated, fault):
    """The tests above would fail: the same checks find wrong bytes."""
    right, faulty, check = FAULTS[fault]
    source = pathlib.Path(torch_backend.__file__).read_text()
    assert source.count(right) == 1
    backend = types.ModuleType("faulty_backend")
    exec(compile(source.replace(right, faulty), "faulty_backend.py", "exec"), vars(backend))
    assert check(torch_backend) == 0
    assert any(check(backend) for _ in range(5))


# ---- several devices, and memory that is registered


def test_a_segment_is_registered_once_for_several_devices(simulated, caplog):
    simulator.speed(copy=1, kernel=1)
    registry = Registry(Registers())
    devices = [accelerator(index, registry=registry) for index in range(2)]
    before = count("registrations")
    with DataLoader(Images(160), 4, num_workers=2, device=devices, persistent_workers=True) as loader:
        reads = [read(batch) for step in loader for batch in step]
        assert {r.placed.memory for r in loader.events.batches()} == {"registered"}
        assert {r.placed.device for r in loader.events.batches()} == {"simulated:0", "simulated:1"}
    assert wrong(reads) == 0
    assert 0 < count("registrations") - before <= 40
    assert not caplog.records
    nothing_is_left()


def test_memory_is_unregistered_in_the_context_of_its_device(simulated):
    """Not in that of the current device, where it would create one."""
    with DataLoader(Images(80), 4, num_workers=2, device=accelerator(1, registry=Registry(Registers()))) as loader:
        reads = [read(batch) for batch in loader]
        assert torch.accelerator.current_device_index() == 0
    assert wrong(reads) == 0
    nothing_is_left()


def segment(size=1 << 16):
    fd = shm.anonymous_file(size)
    memory = mapped(fd, size)
    os.close(fd)
    return memory


class User:
    """Somebody who uses a registry."""


def test_nothing_is_unregistered_while_a_graph_may_be_captured(simulated):
    """A segment may be dropped at any time, on any thread. It is unmapped when the consumer asks for the next batch."""
    registry, user, device = Registry(Registers()), User(), torch.device("simulated", 0)
    registry.enter(user)
    memory = segment()
    address = ctypes.addressof(memory)
    assert registry.memory_for(memory, device) == "registered"
    before = count("calls_in_capture")
    with simulator.capture():
        dropping = threading.Thread(target=memory.__class__.__len__, args=(memory,))
        dropping.start()
        dropping.join()
        del memory, dropping
        gc.collect()
        assert ctypes.string_at(address, 1) == b"\0", "it is still mapped"
    assert count("registered") == 1 << 16
    assert registry.memory_for(None, device) == "copied"
    assert (count("registered"), count("calls_in_capture")) == (0, before)
    memory = segment()
    assert registry.memory_for(memory, device) == "registered"
    del user
    gc.collect()
    del memory
    gc.collect()
    assert count("registered") == 0, "nobody would ask later"


def test_uploads_do_not_touch_the_device_from_other_threads(simulated, monkeypatch):
    """The thread that copies to pinned memory allocates and registers nothing."""
    threads = {}

    def note(name, function):
        def noting(*arguments, **keywords):
            threads.setdefault(name, set()).add(threading.current_thread().name.partition("_")[0])
            return function(*arguments, **keywords)

        return noting

    monkeypatch.setattr(torch, "empty_like", note("allocate", torch.empty_like))
    monkeypatch.setattr(staging.ctypes, "memmove", note("copy", ctypes.memmove))
    with DataLoader(WideImages(80), 4, num_workers=2, device=accelerator()) as loader:
        reads = []
        for batch in loader:
            reads.append(read(batch))
            wait_for(lambda: loader.stats().ready >= 2 or len(reads) > 15, "the next batch, and the one after it")
    assert wrong(reads, wide) == 0
    assert threads["allocate"] == {"MainThread"}
    assert COPY_THREAD in threads["copy"]


def test_the_limit_of_pinned_memory_is_no_reason_to_copy_smaller_segments(simulated, caplog):
    simulator.limits(registered=3 << 16)
    registry, device = Registry(Registers()), torch.device("simulated", 0)
    large, *small = segment(4 << 16), segment(), segment(), segment(), segment()
    kinds = [registry.memory_for(memory, device) for memory in (large, *small, large)]
    assert kinds == ["copied", *["registered"] * 3, "copied", "copied"]
    assert len(caplog.records) == 1
    assert "0.3 MB of shared memory cannot be pinned, in addition to 0.0 MB (out of memory)" in caplog.text


def test_another_failure_concerns_one_segment(simulated, caplog):
    registry, device = Registry(Registers()), torch.device("simulated", 0)
    one, two = segment(), segment()
    simulated.load().simulated_register(ctypes.addressof(one), 1)
    assert [registry.memory_for(memory, device) for memory in (one, two, one)] == ["copied", "registered", "copied"]
    assert "(error 712): they are copied" in caplog.text
    assert len(caplog.records) == 1
    simulated.load().simulated_unregister(ctypes.addressof(one))


def test_memory_that_cannot_be_unregistered_stays_mapped(simulated, caplog):
    registry = Registry(Registers())
    memory = segment()
    address = ctypes.addressof(memory)
    registry.memory_for(memory, torch.device("simulated", 0))
    simulated.load().simulated_unregister(address)
    del memory
    gc.collect()
    assert "shared memory cannot be unpinned, and stays in use: error 713" in caplog.text
    assert ctypes.string_at(address, 1) == b"\0"


@pytest.mark.parametrize("limit", [0, 3 * BATCH])
def test_a_limit_of_pinned_memory_costs_no_bytes(simulated, limit):
    simulator.speed(copy=1, kernel=1)
    simulator.limits(registered=limit)
    with DataLoader(Images(160), 4, num_workers=2, device=accelerator(registry=Registry(Registers()))) as loader:
        assert wrong([read(batch) for batch in loader]) == 0
        assert "copied" in {r.placed.memory for r in loader.events.batches()}
    nothing_is_left()


# ---- memory of the device, errors and interrupts


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("memory", ["registered", "copied"])
def test_a_host_that_runs_ahead_needs_no_more_memory_of_the_device(simulated, ahead, memory):
    """It is stopped by copies that are in flight, and each batch can use the memory of one that was dropped."""
    simulator.speed(copy=0.5, kernel=4)
    simulator.load().simulated_forget_free()
    before = count("reserved")
    registry = Registry(Registers()) if memory == "registered" else None
    size = 1 << 20  # of the images
    with DataLoader(
        WideImages(480), 4, num_workers=2, prefetch_factor=4, device=accelerator(registry=registry), upload_ahead=ahead
    ) as loader:
        assert wrong([read(batch) for batch in loader], wide) == 0
        if registry is not None:
            assert count("registered") <= 40 * size, "of 120 batches: segments are used again"
    assert count("reserved") - before <= (ahead + 2) * (size + 4096)


def test_a_full_device_loses_no_batch(simulated):
    simulator.load().simulated_forget_free()
    simulator.limits(device=count("reserved") + BATCH)  # the images fit, the labels do not
    with DataLoader(Images(40), 4, num_workers=2, device=accelerator(registry=Registry(Registers()))) as loader:
        it = iter(loader)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError, match=r"batch 0 does not fit on simulated:0: .*tried"):
                next(it)
        simulator.limits()
        assert wrong([read(batch) for batch in it]) == 0
    nothing_is_left()


def test_an_error_of_a_batch_that_is_uploaded_ahead_is_raised_in_its_place(simulated):
    with DataLoader(Numbers(14), 2, num_workers=2, collate_fn=third_is_unreadable, device=accelerator()) as loader:
        it, got = iter(loader), []
        wait_for(lambda: loader.stats().ready >= 4, "the first batches")
        while True:
            try:
                got.append(next(it)[1])
            except ValueError as error:
                got.append(str(error))
            except StopIteration:
                break
    assert got == [0, 1, 2, "batch 3 cannot be read", 4, 5, 6]


@pytest.mark.parametrize("dataset", [Images, WideImages])
def test_an_interrupt_at_any_point_of_an_upload_costs_no_batch_and_no_byte(simulated, dataset):
    simulator.speed(copy=0.5, kernel=0.5)
    registry = Registry(Registers()) if dataset is Images else None
    expected = images if dataset is Images else wide
    files = [f"device/{name}.py" for name in ("torch_backend", "staging", "transfer", "pinning")]
    with DataLoader(
        dataset(24), 4, num_workers=2, device=accelerator(registry=registry), persistent_workers=True
    ) as loader:

        def epoch(number):
            it, reads = iter(loader), []
            reads.append(read(next(it)))
            wait_for(lambda: loader.stats().ready, "the next batch")
            interrupt = CountedInterrupt(*files, number=number)
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                reads.append(read(next(it)))
            reads += [read(batch) for batch in it]
            assert len(reads) == 6, number
            assert wrong(reads, expected) == 0, number
            return interrupt.passed

        points = epoch(0)
        assert points > 20
        for number in range(1, points + 1, 3):
            epoch(number)
    nothing_is_left()


def test_batches_of_an_abandoned_loop_are_not_overwritten_while_the_device_reads_them(simulated):
    simulator.speed(copy=2, kernel=1)
    device = accelerator(registry=Registry(Registers()))
    with DataLoader(Images(80), 4, num_workers=2, persistent_workers=True, device=device) as loader:
        for _ in range(5):
            it = iter(loader)
            reads = [read(next(it)) for _ in range(3)]
            del it
            again = [read(batch) for batch in loader]
            assert wrong(reads) == wrong(again) == 0
    nothing_is_left()


def test_the_device_is_not_used_before_the_first_copy(simulated):
    """Workers that are forked from a process that uses CUDA cannot use it."""
    before = count("created_streams")
    fresh = types.ModuleType("fresh_backend")
    source = pathlib.Path(torch_backend.__file__).read_text()
    exec(compile(source, torch_backend.__file__, "exec"), vars(fresh))
    loaders = [DataLoader(Images(8), 4, num_workers=1, device=accelerator(backend=fresh)) for _ in range(20)]
    assert count("created_streams") == before
    for loader in loaders:
        with loader:
            list(loader)
    assert count("created_streams") == before + 2, "shared by all loaders: torch has 32"


def test_a_lane_that_is_collected_on_the_thread_that_copies_waits_elsewhere(simulated):
    """The garbage collector runs on any thread."""
    device, thread = accelerator(pins=True), staging.CopyThread()
    lane = DeviceLane(device, 1)
    payload = types.SimpleNamespace(mapping=None, open=lambda: torch.ones(1 << 20))
    gate = threading.Event()
    device.thread.submit(gate.wait)
    assert lane.start_ahead(BatchKey(0, 0), payload)
    lanes = [lane]
    del lane
    done = device.thread.submit(lanes.clear)
    gate.set()
    done.result()
    wait_for(lambda: "nbloader-uploads" not in {t.name for t in threading.enumerate()}, "the end of the copies")
    thread.close()
    device.close()


# ---- types


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_tensors_that_cannot_be_pinned_are_uploaded(simulated):
    masked = torch.masked.masked_tensor(torch.arange(4.0), torch.tensor([True, False, True, True]))
    parts = {
        "expanded": torch.ones(1).expand(70_000),
        "strided": torch.arange(140_000.0)[::2],
        "transposed": torch.arange(120_000.0).view(300, 400).t(),
        "channels": torch.arange(4 * 3 * 80 * 80.0).view(4, 3, 80, 80).contiguous(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "grad": torch.ones(3, requires_grad=True),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "empty": torch.empty(0, 3),
        "number": 3,
    }
    device = accelerator()
    for ahead in (0, 1):
        loader = DataLoader([0, 1], 1, num_workers=0, collate_fn=lambda _: parts, device=device, upload_ahead=ahead)
        for batch in loader:
            for name, part in parts.items():
                if isinstance(part, torch.Tensor):
                    assert batch[name].device.type == "simulated"
                    assert torch.equal(batch[name].cpu(), part.detach().resolve_conj()), name
        loader.close()
    with DataLoader([0], 1, collate_fn=lambda _: masked, device=device) as loader:
        for batch in loader:
            assert type(batch) is type(masked)
            assert batch.get_data().device.type == "simulated"


class Wrapper(torch.Tensor):
    """A wrapper subclass whose dispatch lacks `record_stream` and pinning, as those of some libraries."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default:
            return cls(args[0].inner.to(kwargs["device"]))
        raise NotImplementedError(func)


def test_a_subclass_of_tensors_is_uploaded_by_its_own_method(simulated):
    device = accelerator()
    with DataLoader(Numbers(8), 2, collate_fn=lambda numbers: Wrapper(torch.tensor(numbers)), device=device) as loader:
        batches = list(loader)
    assert {type(batch) for batch in batches} == {Wrapper}
    assert [batch.inner.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert {batch.inner.device.type for batch in batches} == {"simulated"}


# ---- pin_memory


def test_pinned_batches_are_copied_by_a_thread_and_may_be_dropped_during_an_upload(simulated, monkeypatch):
    simulator.speed(copy=2, kernel=1)
    threads = []
    memmove = ctypes.memmove
    monkeypatch.setattr(
        staging.ctypes,
        "memmove",
        lambda *arguments: threads.append(threading.current_thread().name) or memmove(*arguments),
    )
    reads = []
    with DataLoader(WideImages(80), 4, num_workers=2, prefetch_factor=4, pin_memory=True) as loader:
        it = iter(loader)
        wait_for(lambda: loader.stats().ready >= 6, "batches that are ready")
        threads.clear()
        for number, batch in enumerate(it):
            assert all(part.is_pinned() for part in batch)
            reads.append(read([part.to("simulated", non_blocking=True) for part in batch]))
            del batch
            if number == 3:
                in_time = list(threads)
    assert wrong(reads, wide) == 0
    late = [name for name in in_time if not name.startswith(COPY_THREAD)]
    assert len(late) <= 2, "the first batch, which is due at once, has two tensors"
    assert count("pinned_copies") > 0


def test_without_a_device_that_pins_memory_a_warning_says_so(simulated, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.warns(UserWarning, match="pin_memory=True has no effect: MPS has no pinned memory"):
        loader = DataLoader(Numbers(4), 2, pin_memory=True)
    with loader:
        assert not loader.stats().pinned
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_an_accelerator_that_is_unknown_is_uploaded_to_synchronously(simulated):
    before = count("blocking_copies")
    with DataLoader(Images(16), 4, num_workers=1, device="simulated") as loader:
        assert wrong([read(batch) for batch in loader]) == 0
        assert {r.placed.memory for r in loader.events.batches()} == {"pageable"}
    assert count("blocking_copies") - before == 8
