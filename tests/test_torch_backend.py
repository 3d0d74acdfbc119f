"""Uploads through torch: the order of calls with a mock of torch's device module, and results on a real GPU."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import types
from typing import ClassVar

import pytest
import torch
from datasets import Images, Numbers
from interleave import CountedInterrupt
from same import assert_same
from test_transfer import assert_images, images, segment

from nbloader import DataLoader
from nbloader.device import torch_backend
from nbloader.device.transfer import BatchKey, DeviceLane, DeviceTransfer

gpu = pytest.mark.gpu
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

CPU = torch.device("cpu")


# ---- with a mock of torch's device module


class Notes:
    """Replaces `torch.cuda`: streams and events that record their calls; the CPU is the device."""

    def __init__(self):
        self.notes = []
        self.finished = True
        self.clock = itertools.count()
        self.consumer = self.Stream(device=None, name="consumer")

    def Stream(self, *, device, name=None):  # noqa: N802 - torch's name
        notes = self.notes
        name = name or f"stream {next(self.clock)}"
        return types.SimpleNamespace(
            name=name,
            wait_event=lambda event: notes.append((name, "waits for", event.name)),
            wait_stream=lambda stream: notes.append((name, "waits for", stream.name)),
        )

    def Event(self, *, enable_timing, blocking=False):  # noqa: N802
        return NotedEvent(self, f"event {next(self.clock)}")

    def current_stream(self, _device):
        return self.consumer

    @contextlib.contextmanager
    def stream(self, stream):
        self.notes.append(("within", stream.name))
        yield
        self.notes.append(("without", stream.name))

    def mem_get_info(self, _device):
        return 2_000_000, 80_000_000_000

    def memory_reserved(self, _device):
        return 79_000_000_000


class NotedEvent:
    def __init__(self, owner, name):
        self.owner, self.name, self.at = owner, name, None

    def record(self, stream):
        self.at = next(self.owner.clock)
        self.owner.notes.append((stream.name, "records", self.name))

    def query(self):
        return self.at is not None and self.owner.finished

    def synchronize(self):
        self.owner.notes.append(("host", "waits for", self.name))

    def elapsed_time(self, other):
        return float(other.at - self.at)


@pytest.fixture
def notes(monkeypatch):
    notes = Notes()
    monkeypatch.setattr(torch, "get_device_module", lambda _device: notes)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda self, s: notes.notes.append((s.name, "uses", tuple(self.shape)))
    )
    return notes


BATCH = {"x": torch.ones(2, 3), "name": "a"}


def accelerator():
    return torch_backend.TorchAccelerator(CPU, pins=False)


def test_an_early_upload_uses_the_side_stream_and_the_consumers_stream_waits_for_it(notes):
    device = accelerator()
    copy = device.copy(BATCH, None, ahead=True)
    notes.notes.clear()
    copy.start()
    side, (begin, end) = device.streams.side.name, (copy._begin.name, copy._end.name)
    assert notes.notes == [
        (side, "waits for", "consumer"), ("within", side), (side, "records", begin), (side, "records", end),
        ("without", side),
    ]  # fmt: skip
    assert copy.nbytes == 24
    notes.notes.clear()
    assert_same(copy.deliver(), BATCH)
    assert notes.notes == [("consumer", "records", copy._needed.name), ("consumer", "waits for", end)]
    assert copy.done()
    assert copy.times_known()
    begin_ns, end_ns, needed_ns = copy.times()
    assert begin_ns < end_ns < needed_ns
    copy.wait()
    assert notes.notes[-1] == ("host", "waits for", end)


def test_a_batch_that_is_consumed_on_another_stream_is_not_reused_before_that_streams_work(notes):
    copy = accelerator().copy(BATCH, None, ahead=True)
    copy.start()
    notes.notes.clear()
    notes.consumer = notes.Stream(device=None, name="another")
    copy.deliver()
    assert notes.notes[-1] == ("another", "uses", (2, 3))


def test_times_of_unfinished_work_are_unknown(notes):
    copy = accelerator().copy(BATCH, None, ahead=True)
    assert copy.done(), "nothing was started"
    copy.start()
    notes.finished = False
    copy.deliver()
    assert not copy.done()
    assert not copy.times_known()
    assert copy.times() == (0, 0, 0)


class Sent(torch.Tensor):
    """A tensor that notes when it is sent."""

    sent: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to:
            cls.sent.append(args[0])
        return super().__torch_function__(func, types, args, kwargs or {})


def test_an_interrupt_at_any_point_of_a_copy_hides_nothing_that_the_device_reads(notes):
    """What was sent is covered by an event that comes later."""
    device = accelerator()
    batch = [torch.ones(2).as_subclass(Sent), torch.ones(3).as_subclass(Sent)]

    def upload(number):
        copy = device.copy(batch, None, ahead=False)
        Sent.sent.clear()
        notes.finished = False
        count = CountedInterrupt("device/torch_backend.py", "batch/pytree.py", number=number)
        with contextlib.suppress(KeyboardInterrupt), count:
            copy.start()
        assert not (copy.done() and Sent.sent), number
        notes.notes.clear()
        copy.wait()
        assert ("host", "waits for", copy._end.name) in notes.notes or not Sent.sent
        assert copy._end.at is not None or not Sent.sent
        return count.passed

    points = upload(0)
    assert points > 8
    for number in range(1, points + 1):
        upload(number)


class Own:
    def to(self, _device, *, non_blocking):
        return self


@pytest.mark.parametrize("batch", [[Own(), torch.ones(2)], torch.ones(3).to_sparse()])
def test_types_with_their_own_method_to_are_copied_on_the_consumers_stream(notes, batch):
    device = accelerator()
    assert not device.can_upload_ahead(batch)
    copy = device.copy(batch, None, ahead=False)
    copy.start()
    copy.deliver()
    assert ("within", "consumer") in notes.notes
    assert not [note for note in notes.notes if "waits for" in note[1:2] and note[0] == "consumer"]


def test_the_error_of_a_full_device_has_its_sizes_and_started_copies_are_waited_for(notes, monkeypatch):
    class Full(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is torch.Tensor.to:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 38.00 MiB")
            return super().__torch_function__(func, types, args, kwargs or {})

    payload = types.SimpleNamespace(mapping=None, open=lambda: [torch.ones(2), torch.ones(2).as_subclass(Full)])
    lane = DeviceLane(accelerator(), 1)
    with pytest.raises(
        torch.cuda.OutOfMemoryError,
        match=r"Tried to allocate 38.*2 of its 80,000 MB are free; torch has reserved 79,000",
    ):
        lane.deliver(BatchKey(0, 3), payload)
    assert len([note for note in notes.notes if note[1] == "records"]) == 3, "of the clock, the begin, and the end"
    lane.close()


def test_memory_is_registered_with_the_runtime_and_a_failure_leaves_no_pending_error(monkeypatch):
    asked, entered, launched = [], [], []
    codes = [0, 2, 712, 0, 713]

    class Runtime:
        cudaError = types.SimpleNamespace(success=0)  # noqa: N815

        def cudaHostRegister(self, address, size, flags):  # noqa: N802
            asked.append((address, size, flags))
            return codes.pop(0)

        def cudaHostUnregister(self, address):  # noqa: N802
            asked.append(address)
            return codes.pop(0)

        def cudaGetErrorString(self, code):  # noqa: N802
            return f"error {code}"

    monkeypatch.setattr(torch_backend, "_runtime", Runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or contextlib.nullcontext())
    monkeypatch.setattr(torch, "ones", lambda *_, **__: types.SimpleNamespace(add_=launched.append))
    runtime = torch_backend._CudaMemory()
    runtime.register(64, 32, CPU)
    with pytest.raises(MemoryError, match="error 2"):
        runtime.register(64, 32, CPU)
    with pytest.raises(OSError, match="error 712"):
        runtime.register(64, 32, CPU)
    runtime.unregister(64, CPU)
    with pytest.raises(OSError, match="error 713"):
        runtime.unregister(64, CPU)
    assert asked == [(64, 32, torch_backend.PORTABLE)] * 3 + [64] * 2
    assert entered == [CPU] * 5
    assert launched == [1] * 3, "a kernel after each error"


def test_uploads_to_devices_without_streams_are_synchronous():
    device = torch_backend.SynchronousAccelerator(CPU)
    assert not device.can_upload_ahead(BATCH)
    with DataLoader(Images(40), 4, num_workers=2, device=device) as loader:
        assert_images(list(loader))
        placed = [r.placed for r in loader.events.batches()]
    assert {p.memory for p in placed} == {"pageable"}
    assert all(p.begin <= p.upload_begin < p.uploaded for p in placed)


def test_pin_memory_alone_copies_what_can_be_pinned():
    class Pinnable:
        def __init__(self, samples):
            self.samples, self.pinned = samples, False

        def pin_memory(self):
            self.pinned = True
            return self

    loader = DataLoader(Numbers(8), 4, collate_fn=Pinnable)
    loader._parts.transfer = DeviceTransfer([torch_backend.PinnedPool()], 1)
    with loader:
        batches = list(loader)
        stats = loader.stats()
    assert [(b.samples, b.pinned) for b in batches] == [([0, 1, 2, 3], True), ([4, 5, 6, 7], True)]
    assert stats.uploads.ways == (("copied", 2),)
    assert "Upload  no device, into copied memory" in str(stats)


# ---- on a GPU


@gpu
@no_gpu
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_batches_on_a_gpu_are_correct_while_the_host_runs_ahead(ahead):
    with DataLoader(Images(400), 4, num_workers=2, device="cuda", upload_ahead=ahead) as loader:
        for _ in range(3):
            kept = [(image.clone(), label.clone()) for image, label in loader]
            torch.cuda.synchronize()
            for i, (image, label) in enumerate(kept):
                assert image.is_cuda
                assert_same([image.cpu(), label.cpu()], images(list(range(4 * i, 4 * i + 4))))
        assert dict(loader.stats().uploads.ways).get("registered", 0) > 0


@gpu
@no_gpu
def test_registered_memory_is_pinned_for_torch_and_times_are_in_order():
    with DataLoader(Images(80), 4, num_workers=2, device="cuda") as loader:
        for _batch in loader:
            torch.cuda.synchronize()
        records = loader.events.batches()[:-1]
    for r in records:
        assert r.placed.upload_begin <= r.placed.uploaded
        assert r.dispatched < r.placed.upload_begin < r.returned
    memory = segment()
    assert torch_backend.cuda_registry().memory_for(memory, torch.device("cuda", 0)) == "registered"
    assert torch.frombuffer((ctypes.c_char * ctypes.sizeof(memory)).from_buffer(memory), dtype=torch.uint8).is_pinned()


@gpu
@no_gpu
def test_pin_memory_alone_delivers_pinned_batches():
    with DataLoader(Images(80), 4, num_workers=2, pin_memory=True) as loader:
        kept = []
        for image, label in loader:
            assert image.is_pinned()
            kept.append([image.to("cuda", non_blocking=True), label.to("cuda", non_blocking=True)])
        assert_images([[part.cpu() for part in batch] for batch in kept], 80)


@gpu
@no_gpu
def test_a_full_gpu_is_a_clear_error_and_the_epoch_continues():
    with DataLoader(Images(40), 4, num_workers=2, device="cuda") as loader:
        it = iter(loader)
        torch.cuda.set_per_process_memory_fraction(1e-6)
        torch.cuda.empty_cache()
        try:
            with pytest.raises(torch.cuda.OutOfMemoryError, match="batch 0 does not fit on cuda:0"):
                next(it)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert_images([[part.cpu() for part in batch] for batch in it])
