"""Read and write the file of a recorded run: compressed lines of JSON, which `zcat run.nbl` shows.

A file is a sequence of gzip members. Each member is written with one call and has its own checksum, so that a file
whose writer was killed can be read up to its last complete member. Each line in a member is an object with one key:

    {"recording": {...}}    first: `Header`
    {"show": {...}}         a message for the browser, see `dashboard/feed.py`; the first one is full
    {"event": [...]}        an event: its name, and its fields (`codec.py`)
    {"batches": {...}}      batch records, in columns
    {"snapshot": {...}}     the result of `loader.stats()`, at the end of an epoch and from time to time
    {"mark": {...}}         `Mark`
    {"end": {...}}          last: `End`; missing if the writer was killed

Readers ignore keys that they do not know; `VERSION` changes when that is not enough. A file contains one run. The
player combines several files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nbloader._util.format import clean, duration, megabytes
from nbloader._util.version import __version__
from nbloader.dashboard.feed import Message
from nbloader.errors import RecordingError
from nbloader.events import Event
from nbloader.metrics.snapshot import Snapshot
from nbloader.recording import codec
from nbloader.report.trace import Trace

FORMAT, VERSION = "nbloader recording", 2
LARGEST_FILE, LARGEST_CONTENT = 16 << 20, 128 << 20
"""Largest file that can be read, in bytes, compressed and uncompressed."""
LARGEST_MEMBER = 16 << 20
"""Largest uncompressed size of one member, bytes. Writers begin a new one after 200 kB."""
LARGEST_VALUES = 16_000_000
"""Largest number of JSON values in a file. A value takes up to 80 bytes of memory."""
LARGEST_TIME = 1e14
"""Largest time of a message, ms: 3,000 years."""
RESERVED = 300
"""Bytes of a file that are reserved for its end."""
CLOSED, FULL, FAILED = "closed", "full", "failed"
"""Values of `End.reason`."""
LONGEST_HEADER = 1 << 16
"""Largest size of the first line, bytes."""
_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 18


class PanelSpec(NamedTuple):
    """A panel of the dashboard that was recorded."""

    name: str
    title: str
    unfolded: bool
    version: int
    """See `Panel.version`."""


class Header(NamedTuple):
    """First entry of a recording."""

    format: str
    """`FORMAT`."""
    version: int
    """`VERSION`."""
    nbloader: str
    """Version of nbloader that wrote the file."""
    origin: int
    """Origin of the times in messages and marks, perf_counter ns of the recorded process."""
    panels: tuple[PanelSpec, ...]
    """The recorded panels, from top to bottom."""


class Mark(NamedTuple):
    """A moment that the user named with `Recorder.mark`."""

    now: float
    """Time of the mark, ms since the origin."""
    text: str


class End(NamedTuple):
    """Last entry of a complete recording."""

    now: float
    """When the recording ended, ms since the origin."""
    reason: str
    """"closed", "full" (its limit was reached) or "failed"."""
    left_out: int = 0
    """Number of events that were left out to keep the file small. The messages for the browser are complete."""


@dataclass(frozen=True)
class Recording:
    """A recorded run; `read()` returns one."""

    name: str
    """Name of the file."""
    header: Header
    messages: list[Message] = field(repr=False, default_factory=list)
    """Messages for the browser; the first one is full."""
    events: list[Event] = field(repr=False, default_factory=list)
    """Recorded events, oldest first. Of an epoch with many batches, only the first ones are recorded."""
    snapshot: Snapshot | None = field(repr=False, default=None)
    """The last snapshot."""
    marks: list[Mark] = field(default_factory=list)
    end: End | None = None
    """None if the recording is truncated."""

    @property
    def trace(self) -> Trace:
        """The recorded events as a trace."""
        return Trace(self.events)

    @property
    def length(self) -> float:
        """Length of the recording, ms."""
        return float(self.messages[-1]["now"]) if self.messages else 0.0

    @property
    def note(self) -> str:
        """What is missing, as a sentence; "" if the recording is complete."""
        if self.end is None:
            return f"The recording breaks off after {duration(self.length / 1e3)}: its process ended too early."
        if self.end.reason == FULL:
            return f"The recording ends after {duration(self.length / 1e3)}: the file had reached its limit."
        if self.end.reason == FAILED:
            return f"The recording ends after {duration(self.length / 1e3)}: it could not be continued."
        return ""


# ---- writing --------------------------------------------------------------------------------------------------------


class Writer:
    """Writes a recording. Not thread-safe.

    Args:
        path: The file to write. An existing file is replaced.
        header: The first entry.
        limit: Largest size of the file, bytes.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, path: Path, header: Header, limit: int) -> None:
        self._file = path.open("wb", buffering=0)
        self._limit = limit - RESERVED
        self._lines: list[str] = []
        self.size = 0
        """Number of bytes written."""
        self.waiting = 0
        """Number of characters that have not been written yet."""
        self.add("recording", codec.encode(header))

    def add(self, key: str, value: codec.Json) -> None:
        """Add a line. The next `flush()` writes it."""
        line = json.dumps({key: value}, separators=(",", ":"), default=codec.plain)
        self._lines.append(line)
        self.waiting += len(line)

    def end(self, end: End) -> None:
        """Discard lines that have not been written yet, and write the last entry, for which space is reserved.

        Raises:
            OSError: The entry cannot be written.
        """
        self._lines = []
        self._limit += RESERVED
        self.add("end", codec.encode(end))
        self.flush()

    def flush(self) -> bool:
        """Write the added lines as one gzip member.

        Returns:
            Whether the lines fitted into the limit. If not, they are discarded.

        Raises:
            OSError: The lines cannot be written. The file is restored to its previous size, as far as the system
                allows.
        """
        lines, self._lines, self.waiting = self._lines, [], 0
        if not lines:
            return True
        member = memoryview(gzip.compress("".join(f"{line}\n" for line in lines).encode(), 6, mtime=0))
        if self.size + len(member) > self._limit:
            return False
        done = 0
        try:
            while done < len(member):
                done += self._file.write(member[done:]) or 0
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), self.size)
            raise
        self.size += done
        return True

    def close(self) -> None:
        """Close the file, and discard lines that have not been written yet."""
        self._file.close()


# ---- reading --------------------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> Recording:
    """Read a recording.

    Args:
        path: The file to read.

    Raises:
        RecordingError: The file is not a recording, is damaged, or has another version of the format.
        OSError: The file cannot be read.
    """
    path = Path(path)
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise RecordingError(
            f"{path} is {megabytes(size)}; a recording is at most {megabytes(LARGEST_FILE)}, so this is not one"
        )
    data = path.read_bytes()
    if not data.startswith(_GZIP):
        raise RecordingError(
            f"{path} is not a recording of nbloader: "
            + (
                f"it begins with {data[:8]!r}"
                if data
                else "it is empty: its process may have been killed before anything was written"
            )
        )
    try:
        _check_beginning(path.name, data)
        return _recording(path.name, map(_entry, _lines(data)))
    except RecordingError:
        raise
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise RecordingError(f"{path} is damaged, or not a recording of nbloader: {clean(error)}") from error


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Raise a `RecordingError` if a recording whose values have the right types cannot be shown.

    Its values can still contradict each other, or name what does not exist. Code that shows a loader of this process
    does not check for that.
    """
    try:
        yield
    except RecordingError:
        raise
    except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError) as error:
        raise RecordingError(
            f"{name} cannot be shown, since its content was changed or comes from another version of nbloader "
            f"({type(error).__name__}: {clean(error)}). This is nbloader {__version__}: record the run again"
        ) from error


def _check_beginning(name: str, data: bytes) -> None:
    """Check the header, before anything else is decompressed.

    Raises:
        RecordingError: The recording has another version of the format.
        ValueError: The file does not begin with a header.
    """
    try:
        begin = zlib.decompressobj(wbits=31).decompress(data, LONGEST_HEADER)
    except zlib.error as error:
        raise ValueError(f"the part that begins at byte 0 is corrupt ({error})") from error
    _header(name, _entry(begin.split(b"\n", 1)[0]))


def _lines(data: bytes) -> Iterator[bytes]:
    """Return the lines of the complete members.

    Raises:
        ValueError: A member is damaged, or the content is too large.
    """
    values = 0
    for member in _members(data):
        values += sum(map(member.count, (b",", b":", b"[", b"{")))
        if values > LARGEST_VALUES:
            raise ValueError(f"it has more than {LARGEST_VALUES:,} values, which would take too much memory")
        at = 0
        while at < len(member):
            end = member.find(b"\n", at)
            end = len(member) if end < 0 else end
            yield bytes(member[at:end])
            at = end + 1


def _members(data: bytes) -> Iterator[bytearray]:
    """Decompress the complete members. A truncated member at the end of the file is skipped.

    Raises:
        ValueError: A member is damaged, or the content is too large.
    """
    at = total = 0
    while at < len(data):
        begin, member, inflate = at, bytearray(), zlib.decompressobj(wbits=31)
        while not inflate.eof:
            piece = data[at : at + _CHUNK]
            try:
                content = inflate.decompress(piece, _CHUNK)
            except zlib.error as error:
                raise ValueError(f"the part that begins at byte {begin:,} is corrupt ({error})") from error
            at += len(piece) - len(inflate.unconsumed_tail) - len(inflate.unused_data)
            member += content
            total += len(content)
            if total > LARGEST_CONTENT:
                raise ValueError(f"its content is larger than {megabytes(LARGEST_CONTENT)}")
            if len(member) > LARGEST_MEMBER:
                raise ValueError(f"the part that begins at byte {begin:,} is larger than {megabytes(LARGEST_MEMBER)}")
            if not (piece or content):
                return
        yield member


class _Entry(NamedTuple):
    """A line of a recording."""

    kind: str
    value: codec.Json


def _entry(line: bytes) -> _Entry:
    entry = json.loads(line, parse_constant=lambda _name: None, parse_float=_finite)
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError("a line is not an object with one key")
    ((key, value),) = entry.items()
    return _Entry(key, value)


def _finite(text: str) -> float | None:
    """Convert a number; None for one that is too large, which no JSON could hold, as for NaN and Infinity."""
    value = float(text)
    return value if math.isfinite(value) else None


def _header(name: str, entry: _Entry) -> Header:
    first = entry.value
    if entry.kind != "recording" or not isinstance(first, dict) or first.get("format") != FORMAT:
        raise ValueError("its first line is not a recording header")
    if first.get("version") != VERSION:
        raise RecordingError(
            f"{name} was recorded by nbloader {clean(first.get('nbloader'), 20)}, in version "
            f"{clean(first.get('version'), 8)} of the format. This is nbloader {__version__}, which reads "
            f"version {VERSION}: install the other one to play it"
        )
    header: Header = codec.decoder(Header)(first)
    return header


def _recording(name: str, entries: Iterator[_Entry]) -> Recording:
    first = next(entries, None)
    if first is None:
        raise ValueError("its first part is incomplete")
    recording = Recording(name, _header(name, first))
    snapshot, end = None, None
    for key, value in entries:
        if key == "show":
            recording.messages.append(_message(value, recording))
        elif key == "event":
            event = codec.decode_event(value)
            recording.events.extend([] if event is None else [event])
        elif key == "batches":
            recording.events.extend(codec.decode_batches(value))
        elif key == "snapshot":
            snapshot = codec.decoder(Snapshot)(value)
        elif key == "mark":
            recording.marks.append(codec.decoder(Mark)(value))
        elif key == "end":
            end = codec.decoder(End)(value)
    return dataclasses.replace(recording, snapshot=snapshot, end=end)


def _message(value: codec.Json, recording: Recording) -> Message:
    """Check the structure of a message, and return its known keys. The payloads are not checked: panels define them."""
    keys: dict[str, Any] = {"kind": str, "now": (int, float), "payloads": dict, "news": dict}
    if not isinstance(value, dict) or not all(isinstance(value.get(key), kind) for key, kind in keys.items()):
        raise ValueError("a message is malformed")
    if not all(isinstance(entries, list) for entries in value["news"].values()):
        raise ValueError("news of a message is not a list")
    before = recording.messages[-1]["now"] if recording.messages else None
    if isinstance(value["now"], bool) or float(value["now"]) > LARGEST_TIME:
        raise ValueError("the time of a message is not a time")
    if (value["kind"] == "full") != (before is None):
        raise ValueError("the first message, and no other, must be full")
    if before is not None and value["now"] < before:
        raise ValueError("messages are not in chronological order")
    return {key: value[key] for key in keys}
