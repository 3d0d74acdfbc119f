"""`python -m nbloader`: checks an installation in about a second, and says what is installed."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time

import nbloader
from nbloader._platform import CAN_START_PROCESSES
from nbloader.workers.registry import Workers

SAMPLES, BATCH_SIZE, WORKERS = 1000, 32, 2
NAMESAKE = "nbloader"
"""A project on the Python package index with a module `nbloader`; this project's distribution is `nbloader-torch`."""


def installed(name: str) -> str:
    """Return a distribution with its version, such as "torch 2.14.1", or "no torch"."""
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no {name}"


def check() -> str:
    """Load a small dataset with two workers.

    Returns:
        A sentence that says what was loaded.

    Raises:
        AssertionError: The samples were not those of the dataset, in order.
        WorkerStartError: The system provides no processes.
    """
    begin = time.perf_counter()
    kind: Workers = "process" if CAN_START_PROCESSES else "thread"
    with nbloader.DataLoader(list(range(SAMPLES)), BATCH_SIZE, num_workers=WORKERS, workers=kind) as loader:
        samples = [int(sample) for batch in loader for sample in batch]
    took = time.perf_counter() - begin
    if samples != list(range(SAMPLES)):
        raise AssertionError(f"{WORKERS} workers delivered {len(samples)} samples, not 0 to {SAMPLES - 1} in order")
    return f"{WORKERS} workers delivered {SAMPLES:,} samples, each once and in order, in {took:.2f} s."


def main() -> None:
    """Print what is installed, and the result of the check."""
    packages = ", ".join(map(installed, ("torch", "numpy", "ipywidgets", "anywidget", "bokeh")))
    say = sys.stdout.write
    say(f"nbloader {nbloader.__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}\n")
    say(f"With {packages}.\n")
    if not installed(NAMESAKE).startswith("no "):
        say(f"{installed(NAMESAKE)} is another project with the same name for imports: pip uninstall {NAMESAKE}\n")
    say(f"{check()}\n")


if __name__ == "__main__":
    main()
