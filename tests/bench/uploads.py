"""What pinned memory and a separate stream gain for uploads: part of `make bench-gpu`, or run this script.

The same epoch is uploaded in four ways: from pageable memory, pinned by a copy, pinned in place, and on a side stream.
Each runs twice, and the second run is measured: pinning in place costs time only once. Needs an accelerator.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nbloader import DataLoader
from nbloader._util.format import text_table
from nbloader.device.placement import check_device
from nbloader.metrics.stage_times import upload_stats

BATCHES = 40
WORKERS = 2
COLUMNS = ("variant", "memory used", "ms per batch", "copy, ms", "GB/s", "hidden")


class Variant(NamedTuple):
    """A way to upload batches."""

    name: str
    memory: str
    """The kind of memory that the device reads, see `events.Placed.memory`."""
    ahead: int
    """See `upload_ahead`: batches that are uploaded ahead are copied on a separate stream."""


VARIANTS = (
    Variant("pageable", "pageable", ahead=0),
    Variant("copied to pinned memory", "copied", ahead=0),
    Variant("pinned in place", "registered", ahead=0),
    Variant("pinned in place, ahead", "registered", ahead=1),
)


class Row(NamedTuple):
    """The measurements of one variant."""

    name: str
    ways: tuple[Any, ...]
    """As in `UploadStats.ways`: the memory that was actually used, which differs if pinning in place did not work."""
    ms: float
    """Milliseconds per batch, including the loop's step, until the device had finished."""
    copy: float | None
    """Mean time of a copy, by the device's clock, milliseconds; None if unknown."""
    gb_per_second: float | None
    hidden: float | None
    """Share of the time of the copies that overlapped the loop's steps, 0 to 1; None if unknown."""
    nbytes: int
    """Size of a batch."""


class RandomImages:
    """A dataset of random numbers in the shape of images, which are drawn in advance. After `distinct` they repeat."""

    def __init__(self, length, shape=(3, 224, 224), distinct=64):
        self._length = length
        self._samples = np.random.default_rng(0).random((distinct, *shape), dtype=np.float32)

    def __len__(self):
        return self._length

    def __getitem__(self, i):
        return self._samples[i % len(self._samples)]


def compare_uploads(
    dataset: Any, batch_size: int, accelerators: Callable[[str], Any], work: Callable[[Any], object]
) -> list[Row]:
    """Upload the same epoch in four ways.

    Args:
        dataset: What to load.
        batch_size: Samples per batch.
        accelerators: Called with the kind of memory; returns the accelerator.
        work: What the loop does with a batch.
    """
    return [_measure(variant, dataset, batch_size, accelerators(variant.memory), work) for variant in VARIANTS]


def _measure(variant, dataset, batch_size, accelerator, work):
    options = {"num_workers": WORKERS, "persistent_workers": True, "upload_ahead": variant.ahead}
    with DataLoader(dataset, batch_size, device=accelerator, **options) as loader:
        for _ in range(2):
            accelerator.synchronize()
            begin = time.perf_counter()
            for batch in loader:
                work(batch)
            accelerator.synchronize()
            seconds = time.perf_counter() - begin
        records = [r for r in loader.events.batches() if r.epoch == 1]
    uploads = upload_stats(records)
    return Row(
        variant.name, uploads.ways, 1e3 * seconds / len(records), uploads.copy, uploads.gb_per_second, uploads.hidden,
        records[0].nbytes,
    )  # fmt: skip


def table(rows: list[Row]) -> str:
    """The measurements as text."""
    cells = [
        [
            row.name,
            ", ".join(way for way, _count in row.ways),
            f"{row.ms:.2f}",
            *("" if value is None else f"{value:.2f}" for value in (row.copy, row.gb_per_second, row.hidden)),
        ]
        for row in rows
    ]
    return f"Batches of {rows[0].nbytes / 1e6:,.1f} MB\n{text_table([list(COLUMNS), *cells], left=(0, 1))}"


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--step", type=float, default=5.0, help="milliseconds of matrix products per batch")
    arguments = parser.parse_args()
    device = check_device(arguments.device)
    if device is None:
        parser.error(f"{arguments.device} is no accelerator")
    from nbloader.device.torch_backend import TorchAccelerator, cuda_registry

    def accelerator(memory):
        registry = cuda_registry() if memory == "registered" and device.type == "cuda" else None
        return TorchAccelerator(device, registry, pins=memory != "pageable")

    rows = compare_uploads(
        RandomImages(BATCHES * arguments.batch_size),
        arguments.batch_size,
        accelerator,
        matrix_products(arguments.device, arguments.step),
    )
    print(table(rows))


if __name__ == "__main__":
    main()
