"""A lesson: what pinned memory and a stream of their own do for uploads, measured on the device at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbloader._util import palette
from nbloader._util.format import duration, percent
from nbloader.metrics.stage_times import upload_stats
from nbloader.report.render import html_table, text_table

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812  a class in spite of its name

    from nbloader.device.transfer import Accelerator

WAYS = (
    ("pageable", "pageable", False),
    ("copied to pinned memory", "copied", False),
    ("pinned in place", "registered", False),
    ("pinned in place, side stream", "registered", True),
)
"""What is compared: a name, how memory is pinned (`upload.WAYS`), whether copies have a stream of their own."""


class Noise:
    """Samples of random numbers, all drawn before.

    Args:
        length: Samples.
        shape: Of each.
        different: Samples that differ; after them they come again.
    """

    def __init__(self, length: int, shape: Sequence[int] = (3, 224, 224), different: int = 64) -> None:
        self._length = length
        self._samples = np.random.default_rng(0).random((different, *shape), dtype=np.float32)

    def __len__(self) -> int:
        """Samples."""
        return self._length

    def __getitem__(self, i: int) -> np.ndarray[Any, Any]:
        """One of them."""
        sample: np.ndarray[Any, Any] = self._samples[i % len(self._samples)]
        return sample


@dataclass(frozen=True, slots=True)
class UploadRow:
    """One way to upload, and what it gave."""

    name: str
    ways: tuple[tuple[str, int], ...]
    """As `UploadStats.ways`: what was really used, where pinning in place did not work."""
    batches: int
    seconds: float
    """For all of them, the steps of the loop included, until the device was done."""
    copy: float | None
    """Mean milliseconds of a copy, by the device's clock."""
    gb_per_second: float | None
    hidden: float | None
    """Share of the copies that was hidden behind the steps, 0 to 1."""

    @property
    def ms(self) -> float:
        """Milliseconds a batch, everything included."""
        return 1e3 * self.seconds / self.batches


@dataclass(frozen=True, slots=True)
class UploadComparison:
    """The same epoch uploaded in four ways. `print` it, leave it as the last line of a cell, or take its `figure()`."""

    device: str
    nbytes: int
    """Of a batch."""
    step: float
    """Milliseconds of the loop's own step, alone."""
    rows: tuple[UploadRow, ...]

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
            f"Batches of {self.nbytes / 1e6:,.1f} MB to {self.device}; the loop's own step takes "
            f"{duration(self.step / 1e3)}"
        )

    def __str__(self) -> str:
        """Give the table as text."""
        return f"{self._head()}\n{text_table([list(_COLUMNS), *self._table()], left=(0, 1))}"

    def _repr_html_(self) -> str:
        return f"<div>{self._head()}</div>{html_table(list(_COLUMNS), self._table(), left=(0, 1))}"

    def figure(self) -> Figure:
        """Draw milliseconds a batch by way, beside what the step alone takes; for `bokeh.plotting.show`."""
        from bokeh.models import FactorRange, Range1d, VSpan
        from bokeh.plotting import figure

        right = [row.ms for row in reversed(self.rows)]
        longest = max(*right, self.step)
        names = [row.name for row in reversed(self.rows)]
        fig = figure(
            y_range=FactorRange(factors=names), x_range=Range1d(start=0, end=1.1 * longest),
            height=60 + 45 * len(names), sizing_mode="stretch_width", title=self._head(), toolbar_location=None,
            x_axis_label="ms a batch (line: the step alone)",
        )  # fmt: skip
        fig.hbar(y=names, right=right, height=0.6, color=palette.STAGES["transport"])
        fig.add_glyph(VSpan(x=self.step, line_color=palette.STAGES["step"], line_width=2))
        return fig


_COLUMNS = ("memory", "used", "ms a batch", "batches/s", "copy, ms", "GB/s", "hidden")


def compare_uploads(
    dataset: Any = None,
    *,
    device: Any = "cuda",
    batch_size: int = 64,
    num_workers: int = 2,
    step: float | Callable[[Any], object] = 5.0,
    accelerator: Callable[[str, bool], Accelerator] | None = None,
) -> UploadComparison:
    """Run the same epoch four ways: pageable memory, pinned by a copy, pinned in place, and that with a side stream.

    Each is run twice and the second run counts: pinning in place is paid for once. Untested on a GPU.

    Args:
        dataset: What to load; by default 40 batches of 3x224x224 float32.
        device: Where to, such as "cuda:0".
        batch_size: Samples a batch.
        num_workers: Worker processes.
        step: What the loop does with a batch: a function of it, or milliseconds of matrix products on the device.
        accelerator: Makes the accelerator of a way (one of `upload.WAYS`) and whether it has a side stream, in place of
            torch's.

    Raises:
        RuntimeError: There is no such device here.
    """
    make = _torch_accelerators(device) if accelerator is None else accelerator
    work: Any = step if callable(step) else products(device, step)
    data = Noise(40 * batch_size) if dataset is None else dataset
    rows, name, nbytes, alone = [], str(device), 0, 0.0
    for title, way, side_stream in WAYS:
        chosen: Any = make(way, side_stream)
        row, nbytes, batch = _run(title, data, chosen, work, batch_size, num_workers)
        rows.append(row)
        name = chosen.name
        if not alone:
            alone = _time_alone(work, batch, chosen)
    return UploadComparison(name, nbytes, alone, tuple(rows))


def products(device: Any, ms: float) -> Callable[[Any], object]:
    """A step of about so many milliseconds of matrix products on a device, whatever the batch."""
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


def _torch_accelerators(device: Any) -> Callable[[str, bool], Accelerator]:
    from nbloader.device.placement import check_device

    chosen = check_device(device)
    if chosen is None:
        raise RuntimeError(f"device={device!r} is no accelerator: there is nothing to upload to")

    from nbloader.device.torch_backend import TorchAccelerator

    return lambda way, side_stream: TorchAccelerator(chosen, way=way, side_stream=side_stream)


def _run(
    title: str, data: Any, accelerator: Any, work: Any, batch_size: int, num_workers: int
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
    row = UploadRow(title, uploads.ways, len(records), seconds, uploads.copy, uploads.gb_per_second, uploads.hidden)
    return row, records[0].nbytes, batch


def _time_alone(work: Any, batch: Any, accelerator: Any, times: int = 20) -> float:
    """Milliseconds of a step on a batch that is there."""
    accelerator.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        work(batch)
    accelerator.synchronize()
    return 1e3 * (time.perf_counter() - begin) / times
