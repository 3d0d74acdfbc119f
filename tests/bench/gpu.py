"""Uploads compared with torch's: `make bench-gpu`, or `python tests/bench/gpu.py`. Needs a CUDA device.

    for each batch size and step:   torch, nbloader, torch, nbloader ...   in turns
    as limits: a plain copy from pinned memory (bandwidth), the step alone (rate)

Writes a table (Markdown) and all measurements (JSON).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from uploads import RandomImages, matrix_products

from nbloader import DataLoader

TURNS = 5
STEPS = (0.0, 5.0, 20.0)
"""Milliseconds of matrix products."""
SIZES = (("38.5 MB", 64, (3, 224, 224), 60), ("4 KB", 32, (32,), 2000))
"""Name, samples per batch, shape of a float32 sample, batches per turn."""
WORKERS = 2


def plain_copy(torch, nbytes):
    """Seconds of one copy from pinned memory, measured by the device."""
    source, target = torch.empty(nbytes, dtype=torch.uint8).pin_memory(), torch.empty(nbytes, dtype=torch.uint8).cuda()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for timed in (False, True):
        if timed:
            begin.record()
        for _ in range(50):
            target.copy_(source, non_blocking=True)
        end.record()
        torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / 50


def step_alone(torch, work, times):
    """Seconds of one step without loading."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        work(None)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times


def turn(torch, loader, work, upload):
    """Batches per second of one epoch, including the device's work."""
    torch.cuda.synchronize()
    begin, count = time.perf_counter(), 0
    for batch in loader:
        work(upload(batch))
        count += 1
    torch.cuda.synchronize()
    return count / (time.perf_counter() - begin)


def verify(torch, loader, expected):
    """Raise if an epoch on the device differs from what torch's loader gives on the host.

    The summation keeps the host ahead of the device, so that memory that is reused too early is detected.
    """
    sums = [batch.double().sum() for batch in loader]
    torch.cuda.synchronize()
    if not torch.allclose(torch.stack(sums).cpu(), expected, rtol=1e-9):
        raise ValueError("batches differ from torch's")


def measure(torch, size, ms):
    """One row of the table, as a dict."""
    name, batch_size, shape, batches = size
    data = RandomImages(batch_size * batches, shape)
    work = matrix_products("cuda", ms) if ms else lambda _batch: None
    theirs = torch.utils.data.DataLoader(
        data, batch_size, num_workers=WORKERS, pin_memory=True, persistent_workers=True
    )
    expected = torch.stack([batch.double().sum() for batch in torch.utils.data.DataLoader(data, batch_size)])
    with DataLoader(data, batch_size, num_workers=WORKERS, device="cuda", persistent_workers=True) as ours:
        verify(torch, ours, expected)
        turns = {"torch": [], "nbloader": []}
        for _ in range(TURNS):
            turns["torch"].append(turn(torch, theirs, work, lambda batch: batch.to("cuda", non_blocking=True)))
            turns["nbloader"].append(turn(torch, ours, work, lambda batch: batch))
        verify(torch, ours, expected)
        uploads = ours.stats().uploads
    nbytes = batch_size * data[0].nbytes
    return {
        "size": name, "ms": ms, "nbytes": nbytes, "turns": turns, "copy": plain_copy(torch, nbytes),
        "step": step_alone(torch, work, 50), "ways": uploads.ways, "gb_per_second": uploads.gb_per_second,
        "hidden": uploads.hidden,
    }  # fmt: skip


def line(row):
    """One line of the table: rates, the ratio to torch, and the share of the limit."""
    ours, theirs = (statistics.median(row["turns"][system]) for system in ("nbloader", "torch"))
    ratios = [a / b for a, b in zip(row["turns"]["nbloader"], row["turns"]["torch"], strict=True)]
    limit = max(row["copy"], row["step"])
    what = "a plain copy's bandwidth" if row["copy"] >= row["step"] else "the step's own rate"
    target = "90%" if row["copy"] >= row["step"] else "99%"
    target = f"{target}; 3x torch" if row["nbytes"] > 1 << 20 else target
    ways = ", ".join(f"{way} {count}" for way, count in row["ways"])
    hidden = "" if row["hidden"] is None else f"{100 * row['hidden']:.0f}%"
    return (
        f"| {row['size']}, step {row['ms']:g} ms | {theirs:,.1f} | {ours:,.1f} | {statistics.median(ratios):.1f}x "
        f"({min(ratios):.1f} - {max(ratios):.1f}) | {100 * ours * limit:.0f}% of {what} | {hidden} | {ways} "
        f"| {target} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/bench-gpu"))
    arguments = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"No GPU found by torch {torch.__version__}: nothing to measure.")
    rows = [measure(torch, size, ms) for size in SIZES for ms in STEPS]
    head = (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {WORKERS} workers, medians of {TURNS} interleaved "
        "turns; torch with pin_memory=True and .to(non_blocking=True)."
    )
    columns = (
        "| batches | torch, batch/s | nbloader, batch/s | ratio (range) | of the limit | hidden | memory | target |"
    )
    text = "\n".join([head, "", columns, "|" + "---|" * 8, *map(line, rows), ""])
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "table.md").write_text(text)
    (arguments.out / "results.json").write_text(json.dumps(rows, indent=1))
    print(text)


if __name__ == "__main__":
    main()
