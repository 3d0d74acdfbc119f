"""Progress bar in the terminal, drawn by tqdm."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nbloader._util.format import duration, percent
from nbloader.metrics.ages import age_in
from nbloader.report.render import outlook, time_left, wait_share

if TYPE_CHECKING:
    from nbloader.metrics.snapshot import Snapshot

EVERY = 0.5
"""Seconds between two updates of the statistics beside the bar."""
LOOK = 1.0
"""Seconds between two checks of whether the loop is still waiting for a batch."""
STALLED = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<stalled{postfix}]"
"""Format of the bar while no batch arrives: without a rate and without the time left."""


def progress(loader: Any, options: dict[str, Any]) -> Iterator[Any]:
    """Iterate over a loader and draw a progress bar; see `DataLoader.progress`."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("loader.progress() needs tqdm: pip install tqdm", name="tqdm") from error
    return _iterate(loader, tqdm, options)


def _iterate(loader: Any, tqdm: Any, options: dict[str, Any]) -> Iterator[Any]:
    batches = iter(loader)
    start = loader.stats()
    settings = {"desc": f"epoch {start.epoch}", "total": start.batches_total, "unit": "batch"} | options
    due = time.monotonic() + EVERY
    with tqdm(**settings) as bar:
        with contextlib.nullcontext() if bar.disable else _Watch(loader, bar) as watch:
            for batch in batches:
                if watch is not None:
                    watch.batch_came()
                bar.update()
                if time.monotonic() > due:
                    bar.set_postfix_str(f"loop waits {percent(wait_share(loader.stats()))}", refresh=False)
                    due = time.monotonic() + EVERY
                yield batch
        end = loader.stats()
        bar.set_postfix_str(f"loop waited {percent(wait_share(end))}")
    text = " ".join(part for part in (end.verdict, outlook(end)) if part)
    (options.get("file") or sys.stderr).write(f"{text}\n")


@contextlib.contextmanager
def trial_bar(samples: int) -> Iterator[TrialBar]:
    """Context manager that draws a bar for the trials of `DataLoader.remedies`, and removes it at the end.

    Args:
        samples: Number of samples of all trials. There is no bar for 0, or without tqdm.
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        yield TrialBar(None)
        return
    shown = {"desc": "trying remedies", "unit": "sample", "leave": False, "mininterval": 0, "miniters": 1}
    with tqdm(total=samples, disable=not samples, **shown) as bar:
        yield TrialBar(bar)


class TrialBar:
    """Shows which line a trial is about, and how many samples have been tried.

    Args:
        bar: The bar of tqdm; None if nothing is shown.
    """

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def begin(self, place: str) -> None:
        """Say which line a trial is about."""
        if self._bar is not None:
            self._bar.set_postfix_str(place)

    def add(self, samples: int) -> None:
        """Count samples."""
        if self._bar is not None:
            self._bar.update(samples)


class _Watch:
    """Thread that keeps the bar up to date while the loop waits in `__next__`: before the first batch, or in a stall.

    Args:
        loader: The loader.
        bar: The bar of tqdm, which takes a lock of its own to draw.
    """

    def __init__(self, loader: Any, bar: Any) -> None:
        self._loader = loader
        self._bar = bar
        self._form = bar.bar_format
        self._lock = threading.RLock()  # a finalizer may end the loop on any thread
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nbloader-progress", daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:  # the thread is not joined: it may wait for a lock of the engine that a finalizer holds
            self._stop.set()
            self.batch_came()

    def batch_came(self) -> None:
        """Show a rate and the time left again, after a batch has arrived."""
        if self._bar.bar_format is STALLED:
            self._bar.bar_format = self._form

    def _run(self) -> None:
        while not self._stop.wait(LOOK):
            s = self._loader.stats()
            if s.state == "closed":
                return  # an error in the loop may keep its generator alive, in the traceback
            with self._lock:
                if not self._stop.is_set():
                    self._show(s)

    def _show(self, s: Snapshot) -> None:
        if s.stalled is not None:
            self._bar.bar_format = STALLED
            self._bar.set_postfix_str(f"no batch for {age_in(s, s.stalled)}")
        elif s.first_batch_in is not None:
            left = f", {time_left(s)} left" if s.eta is not None else ""
            self._bar.set_postfix_str(f"first batch in about {duration(s.first_batch_in)}{left}")
