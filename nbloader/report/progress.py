"""A progress bar in the terminal, drawn by tqdm."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from nbloader._util.format import percent
from nbloader.report.render import outlook

EVERY = 0.5
"""Seconds between two updates of the statistics beside the bar."""


def progress(loader: Any, options: dict[str, Any]) -> Iterator[Any]:
    """Iterate over a loader and draw a bar; see `DataLoader.progress`."""
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
        for batch in batches:
            bar.update()
            if time.monotonic() > due:
                bar.set_postfix_str(f"loop waits {percent(loader.stats().wait_share)}", refresh=False)
                due = time.monotonic() + EVERY
            yield batch
        end = loader.stats()
        bar.set_postfix_str(f"loop waited {percent(end.wait_share_epoch)}")
    text = " ".join(part for part in (end.verdict, outlook(end)) if part)
    (options.get("file") or sys.stderr).write(f"{text}\n")
