"""Recorded runs: what is written is read again, whatever happens to the loader, the disk, the process and the file."""

from __future__ import annotations

import errno
import functools
import gc
import gzip
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import typing
import weakref
from pathlib import Path

import pytest
from datasets import wait_for
from fake_loader import FakeLoader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbloader
from nbloader import RecordingError, play
from nbloader.dashboard.panels import PANELS, Frame
from nbloader.events import BatchRecord, EpochEnded, SampleFailed, WorkerDied, WorkerRestarted, records
from nbloader.metrics.snapshot import Snapshot
from nbloader.recording import codec, recorder
from nbloader.recording.file import FORMAT, FULL, VERSION, End, Header, Mark, PanelSpec, Recording, Writer, read
from nbloader.recording.recorder import Recorder

pytestmark = pytest.mark.unit

HEADER = Header(FORMAT, VERSION, nbloader.__version__, 5, (PanelSpec("summary", "", True, 1),))
LIMIT = 1_000_000
TIMEOUT = 90

TEXTS = st.text(max_size=30)
INDICES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda parts: st.lists(parts, max_size=3).map(tuple),
    max_leaves=4,
).filter(lambda index: depth(index) <= codec.DEPTH)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(TEXTS, parts, max_size=3),
    max_leaves=5,
)
MESSAGES = st.builds(
    lambda payloads, news: {"payloads": payloads, "news": news},
    st.dictionaries(TEXTS, JSON, max_size=2),
    st.dictionaries(TEXTS, st.lists(JSON, max_size=2), max_size=2),
)


def depth(index):
    return 1 + max(map(depth, index), default=0) if isinstance(index, tuple) else 0


@functools.cache
def values(kind):
    """Values of a type as it is annotated."""
    simple = {
        typing.Any: INDICES, int: st.integers(-(2**60), 2**60), bool: st.booleans(), str: TEXTS,
        float: st.floats(allow_nan=False),
    }  # fmt: skip
    if kind in simple:
        return simple[kind]
    if typing.get_origin(kind) is tuple:
        return st.lists(values(typing.get_args(kind)[0]), max_size=2).map(tuple)
    if codec._is_record(kind):
        return st.builds(kind, **{name: values(hint) for name, hint in typing.get_type_hints(kind).items()})
    return st.one_of(st.none() if member is type(None) else values(member) for member in typing.get_args(kind))


EVENTS = st.lists(st.one_of([values(BatchRecord)] * 4 + [values(kind) for kind in codec.EVENTS.values()]), max_size=8)


def write(path, entries, flush_every=2):
    """Write a file of entries, with several members."""
    writer = Writer(path, HEADER, LIMIT)
    for i, (key, value) in enumerate(entries):
        writer.add(key, value)
        if i % flush_every == 0:
            writer.flush()
    writer.flush()
    writer.close()


def message(now, kind="tick", **payloads):
    return ("show", {"kind": kind, "now": now, "payloads": payloads, "news": {}})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("recording") / "run.nbl"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A complete recording of two epochs, with a hang, a mark, a restart and a failure."""
    path = tmp_path_factory.mktemp("run") / "run.nbl"
    loader = FakeLoader(batches=6, pace=0.01, hang_at=3)
    with Recorder(loader, path, LIMIT) as recording:
        for _epoch in range(2):
            for _batch in loader:
                if loader.done == 2 and loader.epoch == 0:
                    recording.mark("worker 1 hangs")
                    hung = time.perf_counter_ns()
                    loader.events.publish(SampleFailed(hung, 0, 2, 1, 65, "OSError: <b>", "Traceback", "skipped"))
                    loader.restart_workers([1])
                    loader.hang_at = None
    loader.close()
    return path


# ---- the format -----------------------------------------------------------------------------------------------------


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(EVENTS, values(Snapshot), st.lists(MESSAGES, max_size=3), st.lists(values(Mark), max_size=2))
def test_any_events_snapshot_and_messages_survive_writing_and_reading(path, events, snapshot, messages, marks):
    shown = [m | {"kind": "tick" if i else "full", "now": 250.5 * i} for i, m in enumerate(messages)]
    entries = [(key, value) for entry in codec.encode_events(events) for key, value in entry.items()]
    entries += [("show", m) for m in shown] + [("mark", codec.encode(mark)) for mark in marks]
    entries += [("snapshot", codec.encode(snapshot)), ("from the future", 7), ("end", codec.encode(End(9.0, FULL, 3)))]
    write(path, entries)
    assert read(path) == Recording("run.nbl", HEADER, shown, events, snapshot, marks, End(9.0, FULL, 3))


def test_every_event_can_be_recorded():
    assert {*codec.EVENTS.values(), BatchRecord} == set(typing.get_args(records.Event))


def test_what_json_cannot_hold_becomes_text_and_texts_are_bounded():
    class Odd:
        def __str__(self):
            return "\x1b[31m" + "x" * 10_000

    failed = SampleFailed(1, 0, 0, 0, (Odd(), math.nan, {1: 2}, b"\xff"), "\ud800" + "e" * 10_000, "", "skipped")
    ((_, (name, fields)),) = (item for entry in codec.encode_events([failed]) for item in entry.items())
    decoded = codec.decode_event(json.loads(json.dumps([name, fields])))
    assert decoded.sample[0].startswith("\N{REPLACEMENT CHARACTER}[31mxxx")
    assert decoded.sample[1:] == ("nan", "{1: 2}", "b'\\xff'")
    assert len(decoded.error) == codec.TEXT
    cycle = [1]
    cycle.append(cycle)
    assert len(json.dumps(codec.plain(cycle))) < 200


def test_a_field_that_a_version_does_not_know_is_ignored_and_one_that_is_missing_has_its_default():
    value = codec.encode(FakeLoader().stats())
    del value["stages"][0]["p99"]
    with pytest.raises(ValueError, match="StageStats without p99"):
        codec.decoder(Snapshot)(value)
    value = codec.encode(FakeLoader().stats()) | {"of_the_future": 1}
    assert codec.decoder(Snapshot)(value).cause == ""
    assert codec.decode_event(["EventOfTheFuture", {}]) is None


# ---- files that are not as they should be ---------------------------------------------------------------------------


def test_a_file_that_breaks_off_anywhere_plays_up_to_there_and_says_so(run, tmp_path):
    data = run.read_bytes()
    whole = read(run)
    assert whole.end is not None
    assert whole.note == ""
    members = [match.start() for match in re.finditer(rb"\x1f\x8b\x08\x00\x00\x00\x00\x00", data)]
    assert len(members) >= 2
    cut = tmp_path / "cut.nbl"
    for length in sorted(
        {0, 1, 9, *members[1:], *(m - 1 for m in members[1:]), *(m + 20 for m in members), len(data) - 1}
    ):
        cut.write_bytes(data[:length])
        if length < members[1]:
            with pytest.raises(RecordingError, match=r"cut\.nbl"):
                read(cut)
            continue
        part = read(cut)
        assert part.end is None
        assert "breaks off" in part.note
        assert part.messages == whole.messages[: len(part.messages)]
        assert part.events == whole.events[: len(part.events)]
        assert play(cut).html(plots=False)


@settings(max_examples=60)
@given(st.data())
def test_a_changed_byte_is_noticed_or_without_effect(run, path, data):
    content = bytearray(run.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    try:
        found = read(path)
    except RecordingError:
        return
    whole = read(run)
    if found.end is None:  # the header of a member claims more than there is
        assert found.messages == whole.messages[: len(found.messages)]
    else:
        assert (found.messages, found.events, found.snapshot) == (whole.messages, whole.events, whole.snapshot)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "it is empty"),
        (b"\x89PNG\r\n", r"begins with b'\\x89PNG"),
        (gzip.compress(b"hello"), "damaged, or not a recording"),
        (gzip.compress(b'{"a": 1}\n'), "its first line is not a recording header"),
        (gzip.compress(b"[" * 100_000), "damaged, or not a recording"),
        (gzip.compress(b'{"recording":{"format":"nbloader recording","version":3,"nbloader":"9"}}'), "nbloader 9, in"),
        (gzip.compress(b'{"recording":{"format":"nbloader recording","version":1,"nbloader":"0"}}'), "reads version 2"),
        (gzip.compress(b'{"recording":{"format":"nbloader recording","version":2}}'), "Header without nbloader"),
    ],
    ids=["empty", "picture", "text", "json", "nested", "newer", "older", "header"],
)
def test_what_is_not_a_recording_is_refused_with_a_reason(tmp_path, content, text):
    (tmp_path / "other.nbl").write_bytes(content)
    with pytest.raises(RecordingError, match=text):
        play(tmp_path / "other.nbl")


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([message(0)], "the first message, and no other, must be full"),
        ([message(0, "full"), message(1, "full")], "must be full"),
        ([message(5, "full"), message(4)], "not in chronological order"),
        ([("show", {"kind": "full", "now": "<", "payloads": {}, "news": {}})], "a message is malformed"),
        ([("show", {"kind": "full", "now": 0, "payloads": {}, "news": {"a": 3}})], "not a list"),
        ([("event", ["WorkerDied", {"time": "soon"}])], "WorkerDied without"),
        ([("event", 3)], "3' where list is expected"),
        ([("batches", {"epoch": [1]})], "'None' where list is expected"),
        ([("snapshot", [])], r"'\[\]' where dict is expected"),
    ],
)
def test_a_malformed_entry_is_named(path, entries, text):
    write(path, entries)
    with pytest.raises(RecordingError, match=text):
        read(path)


def test_a_file_that_would_fill_the_memory_is_refused(path, monkeypatch):
    monkeypatch.setattr("nbloader.recording.file.LARGEST_CONTENT", 100_000)
    write(path, [message(0, "full", summary="a" * 200_000)])
    assert path.stat().st_size < 2000
    with pytest.raises(RecordingError, match="larger than 100 kB"):
        read(path)
    monkeypatch.setattr("nbloader.recording.file.LARGEST_FILE", 1000)
    path.write_bytes(b"\x1f\x8b" * 600)
    with pytest.raises(RecordingError, match="so this is not one"):
        read(path)


BOMBS = {
    "lines": b'{"x":1}\n' * (1 << 20),
    "numbers": b'{"x":[' + b"1.5," * (1 << 22) + b"1]}\n",
    "dicts": b'{"show":[' + b'{"":0},' * (1 << 21) + b"0]}\n",
    "text": b'{"x":"' + b"a" * (15 << 20) + b'"}\n',
    "header": b"",
}
READ = """
import resource, sys
from nbloader import RecordingError
from nbloader.recording.file import read
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read(sys.argv[1])
except RecordingError as error:
    print(str(error)[:200])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("bomb", "begins"), [(bomb, True) for bomb in BOMBS] + [("lines", False)])
def test_a_small_file_takes_little_memory(bomb, begins, tmp_path):
    """Its content is repeated up to the largest size of a file's content; the memory stays within a bound."""
    path = tmp_path / "bomb.nbl"
    header = json.dumps({"recording": codec.encode(HEADER)}).encode() + b"\n" if begins else b'{"x":1}\n'
    body = BOMBS[bomb] or b"x" * (15 << 20)
    member = gzip.compress(body, 9)
    path.write_bytes(gzip.compress(header) + member * ((128 << 20) // len(body)))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=TIMEOUT, check=True
    )
    *errors, peak = done.stdout.splitlines()
    assert int(peak) < (700_000 if begins else 40_000), "kB"
    if not begins:
        assert "its first line is not a recording header" in errors[0]


def test_the_number_of_values_and_the_size_of_a_part_are_bounded(path, monkeypatch):
    write(path, [message(0, "full", summary=[{}] * 5000)])
    read(path)
    monkeypatch.setattr("nbloader.recording.file.LARGEST_VALUES", 5000)
    with pytest.raises(RecordingError, match="more than 5,000 values, which would take too much memory"):
        read(path)
    monkeypatch.setattr("nbloader.recording.file.LARGEST_MEMBER", 5000)
    with pytest.raises(RecordingError, match="is larger than 5"):
        read(path)


WEIRD = st.sampled_from(
    [None, True, 0, -1, 10**30, 10**400, 0.5, "nan", "inf", "-inf", "<b>", "stage", [], [None], {}, {"a": []}, [[1]]]
)
TOO_LARGE = ["1e999", "-1e999", "NaN", "Infinity", "-Infinity"]


def lines_of(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def paths_in(value, path=()):
    """The paths to all values in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from paths_in(part, (*path, key))


def changed(lines, path, value):
    """The lines with another value at a path; without it if the value is `_GONE`."""
    lines = json.loads(json.dumps(lines))
    parent = functools.reduce(lambda part, key: part[key], path[:-1], lines)
    if value is _GONE:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return lines


_GONE = object()


def show(path, *, plots):
    """All that a recording is used for; plots take a second."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    player = play(path)
    json.loads(player._content(plots=plots), parse_constant=refuse)
    assert player._static()
    assert player.html(plots=False)
    assert repr(player)
    report = player.report()
    assert report._repr_html_()
    assert repr(report)
    if plots:
        assert report.html()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_changed_recording_is_shown_or_refused_with_an_explanation(run, path, data):
    lines = lines_of(run)
    kind = data.draw(st.sampled_from(sorted({next(iter(line)) for line in lines})))
    number = data.draw(st.sampled_from([i for i, line in enumerate(lines) if kind in line]))
    where = data.draw(st.sampled_from([(number, *rest) for rest in paths_in(lines[number]) if rest]))
    value = data.draw(st.just(_GONE) | WEIRD | st.just("@"))
    text = "\n".join(map(json.dumps, changed(lines, where, value)))
    path.write_bytes(gzip.compress(text.replace('"@"', data.draw(st.sampled_from(TOO_LARGE))).encode(), 1))
    try:
        show(path, plots=data.draw(st.integers(0, 9)) == 9)
    except RecordingError as error:
        assert "run.nbl" in str(error)  # noqa: PT017 - either is right


def test_a_number_that_json_cannot_hold_is_no_number(run, path):
    lines = lines_of(run)
    lines.insert(-1, {"mark": {"now": "@", "text": "a"}})
    for number in TOO_LARGE:
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).replace('"@"', number).encode()))
        with pytest.raises(RecordingError, match="damaged"):
            read(path)
    lines[-2]["mark"]["now"] = "inf"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    assert [mark["text"] for mark in content_of(play(path))["runs"][0]["marks"] if mark["kind"] == "mark"] == [
        "worker 1 hangs"
    ]


def test_the_report_of_a_recording_whose_statistics_were_changed_says_so(run, path):
    lines = lines_of(run)
    for line in lines:
        if "snapshot" in line:
            line["snapshot"]["stages"][0]["name"] = "brewing"
            line["snapshot"]["cause"] = "tea"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    player = play(path)
    with pytest.raises(RecordingError, match=r"run\.nbl cannot be shown, since its content was changed"):
        player.report()


# ---- recording ------------------------------------------------------------------------------------------------------


def test_a_recording_has_the_epochs_faults_and_marks_of_a_run(run):
    recording = read(run)
    assert recording.end.reason == "closed"
    assert [event.epoch for event in recording.events if isinstance(event, EpochEnded)] == [0, 1]
    assert [event.worker for event in recording.events if isinstance(event, WorkerRestarted)] == [1]
    assert [mark.text for mark in recording.marks] == ["worker 1 hangs"]
    assert [panel.name for panel in recording.header.panels] == [panel.name for panel in PANELS]
    assert recording.snapshot.batches_done == 6
    shown = [line["text"] for m in recording.messages for line in m["news"].get("events", [])]
    assert "worker 1 restarted by request" in shown
    last = {name: payload for m in recording.messages for name, payload in m["payloads"].items()}
    assert last["summary"]["progress"]["text"] == "epoch 1 · batch 6 of 6 · 100%"


PROGRAM = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from fake_loader import FakeLoader
from nbloader.recording import recorder
recorder.FLUSH_SECONDS = 0.0
loader = FakeLoader(batches=2, pace=0.01)
recording = recorder.Recorder(loader, {path!r}, 1_000_000)
size = recording.size
for _batch in loader:
    pass
while recording.size == size:
    pass
{end}
"""


def test_a_process_that_is_killed_leaves_what_it_has_recorded_and_one_that_exits_completes_it(tmp_path):
    ends = {"killed": "os.kill(os.getpid(), signal.SIGKILL)", "exited": ""}
    tests = str(Path(__file__).parent)
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(tests=tests, path=str(tmp_path / name), end=end)],
            stderr=subprocess.PIPE, text=True,
        )
        for name, end in ends.items()
    }  # fmt: skip
    errors = {name: process.communicate(timeout=TIMEOUT)[1] for name, process in processes.items()}
    assert processes["killed"].returncode == -signal.SIGKILL, errors
    assert processes["exited"].returncode == 0, errors
    assert read(tmp_path / "killed").end is None
    assert "breaks off" in read(tmp_path / "killed").note
    assert read(tmp_path / "exited").end.reason == "closed"
    assert read(tmp_path / "exited").snapshot.batches_done == 2


def test_closing_the_loader_or_losing_it_completes_the_recording(tmp_path):
    loader = FakeLoader(batches=2, pace=0.001)
    closed = Recorder(loader, tmp_path / "closed.nbl", LIMIT)
    for _batch in loader:
        pass
    loader.close()
    closed._publisher.thread.join(TIMEOUT)
    assert not closed.active
    assert read(closed.path).end.reason == "closed"
    assert read(closed.path).snapshot.state == "closed"
    lost = Recorder(loader := FakeLoader(), tmp_path / "lost.nbl", LIMIT)
    ref = weakref.ref(loader)
    del loader
    gc.collect()
    wait_for(lambda: ref() is None)  # its thread may look at the loader at this moment
    lost._publisher.thread.join(TIMEOUT)
    assert read(lost.path).end.reason == "closed"


def test_a_recording_that_has_ended_costs_the_loader_nothing_more(tmp_path):
    loader = FakeLoader()
    before = list(loader.events._subscribers)
    recording = Recorder(loader, tmp_path / "run.nbl", LIMIT)
    assert len(loader.events._subscribers) == len(before) + 1
    recording.close()
    recording.close()
    assert loader.events._subscribers == before


def test_recording_to_the_same_file_again_replaces_the_first_recording(tmp_path, monkeypatch):
    loader = FakeLoader()
    first = Recorder(loader, tmp_path / "run.nbl", LIMIT)
    monkeypatch.chdir(tmp_path)
    second = Recorder(loader, "run.nbl", LIMIT)
    assert not first.active
    assert second.active
    second.mark("again")
    second.close()
    assert [mark.text for mark in read("run.nbl").marks] == ["again"]


class SmallDisk:
    """A file on a disk that is full after some bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = self.file.write(data[: self.room])
        self.room -= done
        return done

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_full_disk_ends_the_recording_and_leaves_a_file_that_plays(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(recorder, "FLUSH_SECONDS", 0.0)
    loader = FakeLoader(batches=40, pace=0.01)
    recording = Recorder(loader, tmp_path / "run.nbl", LIMIT)
    recording._writer._file = SmallDisk(recording._writer._file, 60)
    delivered = sum(1 for _batch in loader)
    recording._publisher.thread.join(TIMEOUT)
    assert delivered == 40
    with pytest.warns(UserWarning, match=r"run\.nbl could not be continued after .* No space left on device"):
        recording.close()
    part = read(recording.path)
    assert (part.messages[0]["kind"], part.end) == ("full", None)
    assert recording.size == recording.path.stat().st_size
    assert "cannot be continued" in caplog.text


def test_a_panel_that_raises_ends_the_recording_and_not_the_loop(tmp_path, monkeypatch):
    loader = FakeLoader(batches=3, pace=0.01)
    recording = Recorder(loader, tmp_path / "run.nbl", LIMIT)
    monkeypatch.setattr(recording._feed.panels[0], "payload", lambda _frame: 1 / 0)
    assert sum(1 for _batch in loader) == 3
    recording._publisher.thread.join(TIMEOUT)
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        recording.close()
    assert read(recording.path).end.reason == "failed"
    assert "could not be continued" in play(recording.path)._run("", read(recording.path), set())["note"]


def test_a_file_that_cannot_be_written_is_an_error_at_once(tmp_path):
    loader = FakeLoader()
    with pytest.raises(FileNotFoundError, match=r"folder/run\.nbl"):
        Recorder(loader, tmp_path / "folder" / "run.nbl", LIMIT)
    with pytest.raises(OSError, match="No space left"):
        Recorder(loader, "/dev/full", LIMIT)
    with pytest.raises(ValueError, match="at least 20,000 bytes, not 5"):
        Recorder(loader, tmp_path / "run.nbl", 5)
    with pytest.raises(ValueError, match=r"at most 16,777,216 bytes, which nbloader\.play reads, not 100,000,000"):
        Recorder(loader, tmp_path / "run.nbl", 10**8)
    assert not loader.events._subscribers


def test_a_recording_ends_before_its_file_gets_larger_than_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "FLUSH_SECONDS", 0.0)
    loader = FakeLoader(batches=10**6, pace=0.001)
    recording = Recorder(loader, tmp_path / "run.nbl", 20_000)
    for _batch in loader:
        loader.events.publish(WorkerDied(time.perf_counter_ns(), 1, 1, 1, os.urandom(300).hex(), False, (), ""))
        if not recording.active:
            break
    recording.close()
    assert recording.path.stat().st_size <= 20_000
    assert read(recording.path).end.reason == FULL
    assert "had reached its limit" in read(recording.path).note


def test_of_a_long_epoch_the_first_batches_are_kept_and_the_others_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "BATCHES", 10)
    loader = FakeLoader()
    blank = dict.fromkeys(BatchRecord._fields, 0) | {
        "transport": "inline",
        "indices": (),
        "placed": None,
        "transfer": None,
    }
    for epoch in range(3):
        for index in range(15):
            loader.events.publish(BatchRecord(**blank | {"epoch": epoch, "index": index}))
    with Recorder(loader, tmp_path / "run.nbl", LIMIT):
        for index in range(15):
            loader.events.publish(BatchRecord(**blank | {"epoch": 3, "index": index}))
    recording = read(tmp_path / "run.nbl")
    kept = [(event.epoch, event.index) for event in recording.events]
    assert kept == [(epoch, index) for epoch in (2, 3) for index in range(10)], (
        "earlier epochs are none of this recording"
    )
    assert recording.end.left_out == 10


@pytest.mark.parametrize("name", ["do-nothing.nbl", "restart-worker.nbl", "late-batch.nbl"])
def test_the_recordings_of_the_documentation_have_all_that_the_panels_draw_now(name):
    recording = read(Path(__file__).parents[1] / "docs" / "recordings" / name)
    assert recording.end is not None
    frame = Frame(FakeLoader().stats())
    for panel in (panel() for panel in PANELS):
        payload = recording.messages[0]["payloads"][panel.name]
        recorded = [row for message in recording.messages for row in message["news"].get(panel.name, [])]
        assert payload.keys() == panel.payload(frame).keys(), "run python docs/recordings/record.py"
        for row in panel.news(frame):
            assert row.keys() <= recorded[0].keys(), "run python docs/recordings/record.py"


# ---- playing --------------------------------------------------------------------------------------------------------


def content_of(player):
    return json.loads(player._sources(plots=True)["recording"]())


def test_the_player_gets_the_messages_and_the_moments_of_each_run(run):
    player = play({"Do nothing": run, "Restart <it>": run}, fork="worker 1 hangs")
    content = content_of(player)
    assert [panel["name"] for panel in content["panels"]] == [panel.name for panel in PANELS]
    assert [r["name"] for r in content["runs"]] == ["Do nothing", "Restart <it>"]
    first = content["runs"][0]
    mark = next(mark for mark in first["marks"] if mark["kind"] == "mark")
    assert (mark["text"], mark["ms"]) == ("worker 1 hangs", first["fork"])
    assert "worker 1 restarted by request" in [mark["text"] for mark in first["marks"]]
    assert [now for now, _payloads, _news in first["messages"]] == [m["now"] for m in read(run).messages]
    assert content["figures"]["charts"]


def test_a_fork_that_a_run_does_not_have_is_an_error_with_those_that_it_has(run):
    with pytest.raises(ValueError, match=r"run\.nbl has no mark 'later'\. Its marks: 'worker 1 hangs'"):
        play({"a": run}, fork="later")
    with pytest.raises(ValueError, match="the dict is empty"):
        play({})


def test_panels_of_another_version_are_left_out_and_named(run, monkeypatch):
    monkeypatch.setattr(PANELS[0], "version", 2)
    content = content_of(play(run))
    assert PANELS[0].name not in [panel["name"] for panel in content["panels"]]
    assert PANELS[0].name not in content["runs"][0]["messages"][0][1]
    assert "Not shown" in content["runs"][0]["note"]
    monkeypatch.setattr("nbloader.recording.player.PANELS", [])
    with pytest.raises(RecordingError, match="none of its panels"):
        play(run)


def test_a_page_is_one_small_file_without_links_in_which_no_text_is_markup(run, tmp_path):
    title = "</script><script>alert(1)</script>"
    path = play(run).save(tmp_path / "run.html", title=title)
    html = path.read_text()
    assert path.stat().st_size < 700_000
    assert title not in html
    assert not re.search(r"(src|href)=|https?://|url\(", html)
    assert "default-src &#x27;none&#x27;" in html
    small = play(run).html(plots=False)
    assert len(small) < 120_000


def test_a_page_that_would_be_too_large_is_refused(run, monkeypatch):
    monkeypatch.setattr("nbloader.recording.player.LARGEST_PAGE", 50_000)
    with pytest.raises(ValueError, match=r"the page would have .* and may have 50.0 kB: .*plots=False saves"):
        play(run).html()


def test_a_run_can_be_reported_and_what_is_shown_without_a_kernel_is_escaped(run):
    player = play(run)
    assert player.report().snapshot.batches_done == 6
    assert player.recordings[""].trace.events == tuple(read(run).events)
    recording = read(run)
    player.recordings[""] = Recording("<b>.nbl", recording.header, recording.messages)
    assert "&lt;b&gt;.nbl" in player._static()
    with pytest.raises(RecordingError, match="has no statistics"):
        player.report()


def test_a_recorder_can_be_played_at_once(tmp_path):
    loader = FakeLoader()
    recording = Recorder(loader, tmp_path / "run.nbl", LIMIT)
    assert "recording" in repr(recording)
    assert "run.nbl" in repr(play(recording))
    assert not recording.active
