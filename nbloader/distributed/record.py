"""The file that one rank in distributed training writes: who it is, and the statistics of its loader."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from nbloader.distributed import FOLDER
from nbloader.metrics.snapshot import Snapshot
from nbloader.recording import codec

log = logging.getLogger(__name__)

PATTERN = "rank-*.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What one rank reports. Times are in seconds since 1970, by the clock of its machine."""

    rank: int
    world: int
    """Number of ranks."""
    host: str
    pid: int
    space: str
    """See `_platform.process_space`: in the same space, `pid` tells whether the process exists."""
    began: float
    """When the process began to report."""
    time: float
    """When this was written."""
    ended: bool
    """Whether the process has closed its loaders, or is about to end."""
    error: str
    """The error that ends the process, such as "ValueError: bad"; "" if there is none."""
    snapshot: Snapshot
    """The statistics of its loader: `print(record.snapshot)`."""


def write(folder: Path, record: RankRecord) -> None:
    """Write or replace the file of a rank.

    Raises:
        OSError: The file cannot be written.
    """
    text = json.dumps(codec.encode(record), separators=(",", ":"), default=codec.plain)
    part = folder / f".rank-{record.rank}-{record.pid}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(folder / PATTERN.replace("*", str(record.rank)))


def read(folder: Path) -> list[RankRecord]:
    """Read the files of all ranks of the newest run, by rank. Files that are no such file are skipped, and logged.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {str(folder)!r}: start the training with {FOLDER} set to this folder for every rank, "
            "and then look again"
        )
    found = []
    for path in sorted(folder.glob(PATTERN)):
        try:
            found.append(codec.decoder(RankRecord)(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read: %s", path, error)
    return sorted(_of_newest_run(found), key=lambda record: record.rank)


def _of_newest_run(records: list[RankRecord]) -> list[RankRecord]:
    """Leave out ranks of earlier runs in the same folder: their last files are older than the start of the newest run.

    Ranks of one run begin at about the same time, and report each second from then on.
    """
    newest = max(records, key=lambda record: record.began, default=None)
    return [r for r in records if newest is not None and r.time >= newest.began and r.rank < newest.world]
