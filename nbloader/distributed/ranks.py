"""`nbloader.ranks()`: the ranks in distributed training side by side, as text, HTML and a view that is refreshed."""

from __future__ import annotations

import html
import os
import sys
import textwrap
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import psutil

from nbloader._platform import process_space
from nbloader._util import palette
from nbloader._util.format import clean, consumable, duration, number, percent, text_table
from nbloader.distributed import FOLDER, compare
from nbloader.distributed.record import read
from nbloader.metrics.snapshot import ENDED
from nbloader.report.render import WIDTH, dot, fragment, html_table, meter, verdict_box

if TYPE_CHECKING:
    from nbloader.distributed.record import RankRecord

COLUMNS = (
    "rank", "host", "state", "epoch", "batch", "batches/s", "loop waits", "step", "batch takes", "headspace",
)  # fmt: skip
TEXT = "nbloader ranks"
"""The plain-text form of the view. It is constant, so that executed notebooks can be compared."""
CLEAR = "\x1b[H\x1b[2J"
"""What clears a terminal."""
OVER = ("ended", "failed", "died")
_LEFT = (1, 2)


def ranks(folder: str | os.PathLike[str] | None = None) -> Ranks:
    """Look at the loaders of all ranks in distributed training, side by side; `print` it, or end a cell with it.

    ::

        NBLOADER_RANKS=ranks torchrun --nproc-per-node=8 train.py        # in a terminal
        nbloader.ranks("ranks")                                          # in a notebook, at any time
        nbloader.ranks("ranks").watch()                                  # refreshed until the training ends

    It says in a sentence who holds up whom: which rank waits for data while the others wait for it in their step, which
    one is behind, and which one has failed or died.

    Args:
        folder: The folder into which the ranks write: their environment variable `NBLOADER_RANKS`. By default, that of
            this process.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: No folder is given, and `NBLOADER_RANKS` is not set.
    """
    given = os.environ.get(FOLDER, "") if folder is None else os.fspath(folder)
    if not given:
        raise ValueError(f"ranks() needs the folder into which the ranks write: pass it, or set {FOLDER}")
    return Ranks(Path(given))


class Ranks(Sequence["RankRecord"]):
    """The ranks of a training run, as they were when this object was created.

    Args:
        folder: The folder of their reports.

    Raises:
        FileNotFoundError: There is no such folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records = tuple(read(folder))
        now, gone = time.time(), {record.rank for record in self._records if _is_gone(record)}
        self.states = {record.rank: compare.state_of(record, now, gone) for record in self._records}
        """The state of each rank: that of its loader, or "ended", "failed", "died" or "silent"."""
        self.findings = tuple(compare.findings(self._records, now, gone))
        """What the ranks do, in sentences; the most important one comes first."""

    def __len__(self) -> int:
        """Return the number of ranks that have reported."""
        return len(self._records)

    @overload
    def __getitem__(self, position: int) -> RankRecord: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[RankRecord]: ...
    def __getitem__(self, position: int | slice) -> RankRecord | Sequence[RankRecord]:
        """Return a report; `print(ranks[3].snapshot)` shows all that is known of it."""
        return self._records[position]

    def __repr__(self) -> str:
        """The sentences and the table as text."""
        if not self._records:
            return self._nothing
        sentences = ["\n".join(textwrap.wrap(text, WIDTH)) for text in self.findings]
        return "\n\n".join([*sentences, text_table([COLUMNS, *map(self._row, self._records)], left=_LEFT)])

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        if not self._records:
            return fragment([html.escape(self._nothing)])
        bad = any(state in ("failed", "died", "silent") for state in self.states.values())
        box = verdict_box(self.findings, palette.BAD if bad else palette.WAIT if self._waits else palette.GOOD)
        rows = []
        for record in self._records:
            row = [html.escape(cell) for cell in self._row(record)]
            row[2] = dot(_color(self.states[record.rank]), radius="50%") + row[2]
            row[6] = meter(compare.figures(record).wait_share / 2, palette.WAIT) + row[6]
            rows.append(row)
        return fragment([box, html_table(COLUMNS, rows, left=_LEFT)])

    def watch(self, seconds: float = 1.0) -> None:
        """Refresh the view below this cell, or in the terminal, until all ranks have ended. An interrupt ends it, too.

        Args:
            seconds: Time between two looks.
        """
        from nbloader.frontend.host import host
        from nbloader.frontend.outputs import display

        name, notebook, shown = uuid.uuid4().hex[:12], host() is not None, False
        now = self
        while True:
            if notebook:
                display(name, TEXT, {"text/html": now._repr_html_()}, update=shown)
            elif sys.stdout.isatty():
                print(f"{CLEAR}{now}", flush=True)  # noqa: T201 - the view in a terminal
            shown = True
            if now._over:
                break
            try:
                time.sleep(seconds)
                now = Ranks(self._folder)
            except KeyboardInterrupt:
                break
        if not notebook and not sys.stdout.isatty():
            print(now, flush=True)  # noqa: T201 - a log gets the last state only

    @property
    def _over(self) -> bool:
        """Whether there will be no more reports."""
        everyone = bool(self._records) and len(self._records) == self._records[0].world
        return everyone and all(state in OVER for state in self.states.values())

    @property
    def _waits(self) -> bool:
        return any(compare.figures(record).wait_share >= compare.MATTERS for record in self._records)

    @property
    def _nothing(self) -> str:
        return (
            f"No rank has reported in {str(self._folder)!r}: start the training with {FOLDER} set to this folder for "
            "every rank. A rank reports from its first epoch on."
        )

    def _row(self, record: RankRecord) -> list[str]:
        s, f = record.snapshot, compare.figures(record)
        free = s.headspace_epoch if s.state in ENDED else s.headspace
        total = "" if s.batches_total is None else f" of {s.batches_total:,}"
        return [
            str(record.rank),
            clean(record.host, 20),
            self.states[record.rank],
            str(s.epoch),
            f"{s.batches_done:,}{total}",
            number(f.rate) if f.rate else "-",
            percent(f.wait_share),
            "-" if f.step is None else duration(f.step),
            "-" if f.make is None else duration(f.make),
            "-" if free is None else consumable(free),
        ]


def _color(state: str) -> str:
    if state in ("failed", "died", "silent"):
        return palette.BAD
    return palette.OTHER if state in (*ENDED, "ended", "starting", "paused") else palette.GOOD


def _is_gone(record: RankRecord) -> bool:
    """Whether the process of a rank on this machine does not exist any more. Of other machines, that is unknown."""
    if record.space != process_space():
        return False
    try:
        process = psutil.Process(record.pid)
        return process.status() == psutil.STATUS_ZOMBIE or process.create_time() > record.began + 1
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
