"""`compare_uploads`: measures what pinned memory and a separate stream gain for uploads, on the device at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbloader._util import palette
from nbloader._util.format import duration, percent
from nbloader.metrics.snapshot import PinnedBatches
from nbloader.metrics.stage_times import upload_stats
from nbloader.report.render import html_table, text_table

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812  a class in spite of its name

    from nbloader.device.accelerator import Accelerator, MemoryKind


class UploadVariant(NamedTuple):
    """A way to upload batches."""

    name: str
    memory: MemoryKind
    """The kind of memory that the device reads, see `events.Placed.memory`."""
    side_stream: bool
    """Whether copies run on a separate stream."""


VARIANTS = (
    UploadVariant("pageable", "pageable", side_stream=False),
    UploadVariant("copied to pinned memory", "copied", side_stream=False),
    UploadVariant("pinned in place", "registered", side_stream=False),
    UploadVariant("pinned in place, side stream", "registered", side_stream=True),
)

_BATCHES = 40
"""Batches of the default dataset."""


class RandomImages:
    """A dataset of random numbers in the shape of images, which are drawn in advance.

    Args:
        length: Number of samples.
        shape: Shape of a sample.
        distinct: Number of distinct samples; then they repeat.
    """

    def __init__(self, length: int, shape: Sequence[int] = (3, 224, 224), distinct: int = 64) -> None:
        self._length = length
        self._samples = np.random.default_rng(0).random((distinct, *shape), dtype=np.float32)

    def __len__(self) -> int:
        """Number of samples."""
        return self._length

    def __getitem__(self, i: int) -> np.ndarray[Any, Any]:
        """Return a sample."""
        sample: np.ndarray[Any, Any] = self._samples[i % len(self._samples)]
        return sample


@dataclass(frozen=True, slots=True)
class UploadRow:
    """The measurements of one variant."""

    name: str
    ways: tuple[PinnedBatches, ...]
    """As in `UploadStats.ways`: the memory that was actually used, which differs if pinning in place did not work."""
    batches: int
    """Number of batches measured."""
    seconds: float
    """Wall time for all of them, including the loop's steps, until the device had finished."""
    copy: float | None
    """Mean time of a copy, by the device's clock, milliseconds; None if unknown."""
    gb_per_second: float | None
    """Throughput of the copies, 1e9 bytes per second; None if unknown."""
    hidden: float | None
    """Share of the time of the copies that overlapped the loop's steps, 0 to 1; None if unknown."""

    @property
    def ms(self) -> float:
        """Milliseconds per batch, including the loop's step."""
        return 1e3 * self.seconds / self.batches


@dataclass(frozen=True, slots=True)
class UploadComparison:
    """One epoch uploaded in four ways. `print` it, leave it as the last line of a cell, or show its `figure()`."""

    device: str
    """Name of the device."""
    nbytes: int
    """Size of a batch, bytes."""
    step: float
    """Duration of the loop's step without loading, milliseconds."""
    rows: tuple[UploadRow, ...]
    """One per variant."""

    def _table(self) -> list[list[str]]:
        return [
            [
                row.name,
                ", ".join(way for way, _count in row.ways),
                f"{row.ms:.2f}",
                f"{1e3 / row.ms:,.1f}",
                "" if row.copy is None else f"{row.copy:.2f}",
                "" if row.gb_per_second is None else f"{row.gb_per_second:.1f}",
                "" if row.hidden is None else percent(row.hidden),
            ]
            for row in self.rows
        ]

    def _head(self) -> str:
        return (
            f"Batches of {self.nbytes / 1e6:,.1f} MB to {self.device}; the loop's step alone takes "
            f"{duration(self.step / 1e3)}"
        )

    def __str__(self) -> str:
        """The table as text."""
        return f"{self._head()}\n{text_table([list(_COLUMNS), *self._table()], left=(0, 1))}"

    def _repr_html_(self) -> str:
        return f"<div>{self._head()}</div>{html_table(list(_COLUMNS), self._table(), left=(0, 1))}"

    def figure(self) -> Figure:
        """A Bokeh figure of the milliseconds per batch of each variant, and of the step; for `bokeh.plotting.show`."""
        from bokeh.models import FactorRange, Range1d, VSpan
        from bokeh.plotting import figure

        right = [row.ms for row in reversed(self.rows)]
        longest = max(*right, self.step)
        names = [row.name for row in reversed(self.rows)]
        fig = figure(
            y_range=FactorRange(factors=names), x_range=Range1d(start=0, end=1.1 * longest),
            height=60 + 45 * len(names), sizing_mode="stretch_width", title=self._head(), toolbar_location=None,
            x_axis_label="ms per batch (line: the step alone)",
        )  # fmt: skip
        fig.hbar(y=names, right=right, height=0.6, color=palette.STAGES["transport"])
        fig.add_glyph(VSpan(x=self.step, line_color=palette.STAGES["step"], line_width=2))
        return fig


_COLUMNS = ("variant", "memory used", "ms per batch", "batches/s", "copy, ms", "GB/s", "hidden")


def compare_uploads(
    dataset: Any = None,
    *,
    device: Any = "cuda",
    batch_size: int = 64,
    num_workers: int = 2,
    step: float | Callable[[Any], object] = 5.0,
    accelerator: Callable[[MemoryKind, bool], Accelerator] | None = None,
) -> UploadComparison:
    """Upload the same epoch in four ways: pageable memory, pinned by a copy, pinned in place, and on a side stream.

    Each variant runs twice, and the second run is measured: pinning in place costs time only once. Untested on a GPU.

    Args:
        dataset: What to load; by default 40 batches of 3x224x224 float32.
        device: Where to upload to, such as "cuda:0".
        batch_size: Samples per batch.
        num_workers: Number of worker processes.
        step: What the loop does with a batch: a function of the batch, or milliseconds of matrix products on the
            device.
        accelerator: Called with the kind of memory and whether copies have a separate stream; returns the accelerator
            to use instead of torch's.

    Returns:
        The measurements.

    Raises:
        RuntimeError: This machine has no such device.
    """
    make_accelerator = _torch_accelerators(device) if accelerator is None else accelerator
    work: Any = step if callable(step) else matrix_products(device, step)
    data = RandomImages(_BATCHES * batch_size) if dataset is None else dataset
    rows, name, nbytes, step_ms = [], str(device), 0, 0.0
    for variant in VARIANTS:
        chosen: Any = make_accelerator(variant.memory, variant.side_stream)
        row, nbytes, batch = _measure(variant.name, data, chosen, work, batch_size, num_workers)
        rows.append(row)
        name = chosen.name
        if not step_ms:
            step_ms = _measure_step(work, batch, chosen)
    return UploadComparison(name, nbytes, step_ms, tuple(rows))


def matrix_products(device: Any, ms: float) -> Callable[[Any], object]:
    """Return a function that multiplies matrices on a device for about `ms` milliseconds, and ignores its argument."""
    import torch

    module: Any = torch.get_device_module(torch.device(device))
    matrix = torch.rand(1024, 1024, device=device)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    multiply(50)
    module.synchronize(device)
    begin = time.perf_counter()
    multiply(200)
    module.synchronize(device)
    count = round(ms / 1e3 / ((time.perf_counter() - begin) / 200))
    return lambda _batch: multiply(count)


def _torch_accelerators(device: Any) -> Callable[[MemoryKind, bool], Accelerator]:
    from nbloader.device.placement import check_device

    chosen = check_device(device)
    if chosen is None:
        raise RuntimeError(f"device={device!r} is no accelerator: batches are not uploaded to it")

    from nbloader.device.torch_backend import TorchAccelerator

    return lambda memory, side_stream: TorchAccelerator(chosen, memory=memory, side_stream=side_stream)


def _measure(
    name: str, data: Any, accelerator: Any, work: Any, batch_size: int, num_workers: int
) -> tuple[UploadRow, int, Any]:
    from nbloader.loader.dataloader import DataLoader

    loader: DataLoader[Any] = DataLoader(
        data, batch_size, num_workers=num_workers, device=accelerator, persistent_workers=True
    )
    with loader:
        for batch in loader:
            work(batch)
        accelerator.synchronize()
        begin = time.perf_counter()
        for batch in loader:
            work(batch)
        accelerator.synchronize()
        seconds = time.perf_counter() - begin
        records = [r for r in loader.events.batches() if r.run == 1]
    uploads: Any = upload_stats(records)
    row = UploadRow(name, uploads.ways, len(records), seconds, uploads.copy, uploads.gb_per_second, uploads.hidden)
    return row, records[0].nbytes, batch


def _measure_step(work: Any, batch: Any, accelerator: Any, times: int = 20) -> float:
    """Mean milliseconds of a step, without loading."""
    accelerator.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        work(batch)
    accelerator.synchronize()
    return 1e3 * (time.perf_counter() - begin) / times
