"""The stores of the cache of samples: what is kept, and what is left by processes that die while they write."""

from __future__ import annotations

import errno
import json
import os
import threading

import numpy as np
import pytest
from datasets import run_script
from hypothesis import given
from hypothesis import strategies as st

from nbloader.cache import memory_store
from nbloader.cache.disk_store import DamagedError, DiskStore
from nbloader.cache.entry import decode, encode
from nbloader.cache.memory_store import CONFIG_AT, PAGE, WAYS, MemoryStore
from nbloader.cache.policy import GRACE, MARGIN, victims, worth
from nbloader.cache.sample_cache import CacheOptions, SampleCache

MS = 1_000_000


def key_of(number):
    return number.to_bytes(8, "little") + bytes(7) + b"k"


@pytest.fixture
def create():
    """Creates stores, and closes them after the test."""
    stores = []

    def create(limit):
        stores.append(MemoryStore.create(limit))
        return stores[-1]

    yield create
    for store in stores:
        store.close()


def value_in(store, key):
    found = store.get(key)
    return None if found is None else decode(found.meta, found.buffers)


def use(store, number, value, cost_ns):
    """Get an entry, or add it, as a cached function does. Returns whether it was there."""
    found = store.get(key_of(number)) is not None
    store.count(hit=found)
    if not found:
        store.put(key_of(number), encode(value), cost_ns)
    return found


# ---- which entries are kept -----------------------------------------------------------------------------------------

entries = st.lists(st.tuples(st.floats(0, 1e3), st.integers(1, 100)), max_size=30)


@given(entries, st.integers(1, 500), st.integers(0, 100), st.floats(0, 1e3))
def test_victims_are_the_least_useful_ones_and_worth_less_than_the_new_entry(listed, needed, spare, new):
    worths, sizes = (np.array(column, float) for column in zip(*listed, strict=True)) if listed else ([], [])
    found = victims(worths, sizes, needed, spare, new).tolist()
    droppable = [i for i, value in enumerate(worths) if value * MARGIN < new]
    assert set(found) <= set(droppable)
    if sum(sizes[i] for i in droppable) < needed:
        assert not found
        return
    assert sum(sizes[i] for i in found) >= needed
    assert sum(sizes[i] for i in found[:-1]) < needed + spare
    assert sorted(worths)[: len(found)] == [worths[i] for i in found]


@given(st.floats(1, 1e9), st.integers(1, 1 << 40), st.floats(0, 1e6), st.floats(1, 1e6))
def test_worth_falls_only_with_age_beyond_a_shuffled_epoch(cost, nbytes, age, interval):
    fresh = worth(cost, nbytes, 0, interval)
    assert worth(cost, nbytes, min(age, GRACE * interval), interval) == pytest.approx(fresh)
    assert worth(cost, nbytes, age + interval, interval) <= worth(cost, nbytes, age, interval)
    assert worth(cost, nbytes, age, float("inf")) == pytest.approx(fresh)
    assert worth(2 * cost, nbytes, 0, interval) > fresh > worth(cost, 2 * nbytes, 0, interval)


operations = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 5 * PAGE), st.integers(0, 3), st.booleans()), max_size=40
)


@given(operations, st.integers(0, 12))
def test_a_store_keeps_to_its_limit_and_returns_what_was_put_in(done, pages):
    store = MemoryStore.create(pages * PAGE)
    try:
        held = {}
        for number, size, cost, clears in done:
            array = np.full(size, number, np.uint8)
            if store.put(key_of(number), encode((number, array)), cost * MS):
                held[number] = size
            if clears:
                store.limit = pages * PAGE
            counters = store.counters()
            assert counters.nbytes <= pages * PAGE
            assert os.fstat(store.data_fd).st_blocks * 512 == counters.nbytes
            there = 0
            for other in range(9):
                value = value_in(store, key_of(other))
                if value is not None:
                    there += 1
                    assert value[0] == other
                    assert value[1].tobytes() == bytes([other]) * held[other]
            assert there == counters.entries
    finally:
        store.close()


def test_the_entries_that_cost_most_per_byte_stay(create):
    store = create(20 * PAGE)
    sizes = {number: PAGE * (1 + number % 3) - 500 for number in range(30)}
    costs = {number: (1 + number) * MS for number in range(30)}
    for number, size in sizes.items():
        store.put(key_of(number), encode(np.zeros(size, np.uint8)), costs[number])
    kept = {number for number in sizes if store.get(key_of(number))}
    per_byte = {number: costs[number] / (1 + number % 3) for number in sizes}
    assert sum(1 + number % 3 for number in kept) >= 18
    assert min(per_byte[number] for number in kept) * MARGIN**2 > max(per_byte[n] for n in sizes if n not in kept)
    assert store.counters().evictions > 0


def test_a_dataset_larger_than_the_cache_keeps_its_part(create):
    store = create(10 * PAGE)
    value = np.zeros(PAGE - 500, np.uint8)
    for _epoch in range(4):
        found = sum(use(store, number, value, MS) for number in range(40))
    assert found == 10


def test_entries_that_nobody_uses_any_more_give_way(create):
    store = create(10 * PAGE)
    value = np.zeros(PAGE - 500, np.uint8)
    for _epoch in range(3):
        for number in range(10):
            use(store, number, value, 2 * MS)
    assert store.counters().entries == 10
    for _epoch in range(10):
        found = sum(use(store, number, value, MS) for number in range(100, 110))
    assert found == 10


def test_a_full_bucket_gives_up_its_least_useful_entry(create):
    store = create(1 << 30)
    step = store._buckets
    numbers = [step * i for i in range(WAYS + 1)]
    for number in numbers:
        assert store.put(key_of(number), encode(number), (5 + number) * MS)
    assert [value_in(store, key_of(number)) for number in numbers] == [None, *numbers[1:]]
    assert not store.put(key_of(step * 99), encode(1), 0)


def test_what_does_not_fit_is_not_kept_and_a_lower_limit_drops_entries_at_once(create):
    store = create(4 * PAGE)
    assert not store.put(key_of(1), encode(np.zeros(5 * PAGE)), MS)
    for number in range(4):
        assert store.put(key_of(number), encode(number), MS)
    store.limit = PAGE
    assert store.counters().entries == 1
    store.limit = 0
    assert store.counters().nbytes == 0
    assert not store.put(key_of(1), encode(1), MS)


def test_memory_that_the_system_has_not_left_is_not_taken(create, monkeypatch):
    monkeypatch.setattr("nbloader.cache.memory_store.available_memory", lambda: 6 * PAGE)
    store = create(1 << 30)
    for number in range(20):
        store.put(key_of(number), encode(np.zeros(PAGE - 500, np.uint8)), MS)
    assert 1 <= store.counters().entries <= 6


def test_lack_of_memory_loses_nothing(create, monkeypatch):
    store = create(100 * PAGE)

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("nbloader.cache.memory_store.write_all", full)
        with pytest.raises(OSError, match="No space left"):
            store.put(key_of(1), encode(1), MS)
    assert store.counters().nbytes == 0
    assert store.put(key_of(1), encode(1), MS)


def test_a_slot_that_another_entry_gets_meanwhile_is_no_hit(create, monkeypatch):
    """Another process drops the entry that is looked for, and its slot goes to another one, before the slot is read."""
    store = create(3 * PAGE)
    other = store._buckets + 1  # in the same bucket
    store.put(key_of(1), encode("mine"), MS)
    find = store._find

    def find_late(key):
        position = find(key)
        monkeypatch.undo()
        store.limit = 0
        store.limit = 3 * PAGE
        assert store.put(key_of(other), encode("another"), MS)
        assert find(key_of(other)) == position
        return position

    monkeypatch.setattr(store, "_find", find_late)
    assert store.get(key_of(1)) is None
    assert value_in(store, key_of(other)) == "another"


def test_an_entry_that_is_dropped_while_it_is_copied_is_no_hit(create, monkeypatch):
    store = create(30 * PAGE)
    store.put(key_of(1), encode(np.ones(PAGE)), MS)
    read_into = memory_store.read_into

    def read_late(*args):
        store.limit = 0
        return read_into(*args)

    monkeypatch.setattr(memory_store, "read_into", read_late)
    assert store.get(key_of(1)) is None


def test_threads_share_a_store(create):
    store = create(30 * PAGE)
    wrong = []

    def work(seed):
        for i in range(200):
            number = (seed * 7 + i) % 20
            value = value_in(store, key_of(number))
            if value is None:
                store.put(key_of(number), encode(np.full(2 * PAGE, number, np.uint8)), (1 + i) * MS)
            elif (value != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.counters().nbytes <= 30 * PAGE


# ---- processes that die ---------------------------------------------------------------------------------------------

COMMON = """
import json, os, signal, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # Python warns of a fork while there are other threads
import numpy as np
from nbloader.cache import memory_store
from nbloader.cache.entry import decode, encode
from nbloader.cache.memory_store import PAGE, MemoryStore

def key_of(number):
    return number.to_bytes(8, "little") + bytes(7) + b"k"

def value(number):
    return np.full(2 * PAGE + number, number % 251, np.uint8)

def check(store, numbers):
    there = 0
    for number in numbers:
        found = store.get(key_of(number))
        if found is not None:
            there += 1
            array = decode(found.meta, found.buffers)
            assert array.tobytes() == value(number).tobytes(), number
    return there
"""


def test_a_writer_that_is_killed_at_any_line_leaves_a_store_that_is_whole(tmp_path):
    script = (
        COMMON
        + """
def child(store, line):
    lines = 0
    def trace(frame, event, _arg):
        nonlocal lines
        if not frame.f_code.co_filename.endswith(("memory_store.py", "contextlib.py")):
            return None
        if event == "line":
            lines += 1
            if lines == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    store.after_fork()
    sys.settrace(trace)
    store.put(key_of(100), encode(value(100)), 500_000_000)
    os._exit(0)

line, killed, repaired = 0, 0, 0
repair = MemoryStore._repair
def counted(store):
    global repaired
    repaired += 1
    repair(store)
MemoryStore._repair = counted
while True:
    line += 1
    store = MemoryStore.create(10 * PAGE)  # room for three: the fourth drops another one
    for number in range(3):
        assert store.put(key_of(number), encode(value(number)), (1 + number) * 1_000_000)
    pid = os.fork()
    if pid == 0:
        child(store, line)
    status = os.waitpid(pid, 0)[1]
    check(store, [0, 1, 2, 100])
    assert store.put(key_of(200), encode(value(200)), 900_000_000), line  # nobody holds the lock
    if line % 2:  # what it was writing is replaced; else only its memory is freed
        assert store.put(key_of(100), encode(value(100)), 800_000_000) or store.get(key_of(100)), line
    assert check(store, [200]) == 1
    store.limit = store.limit
    counters = store.counters()
    assert check(store, [0, 1, 2, 100, 200]) == counters.entries, (line, counters)
    assert os.fstat(store.data_fd).st_blocks * 512 == counters.nbytes <= 10 * PAGE, (line, counters)
    store.close()
    if not os.WIFSIGNALED(status):
        assert os.waitstatus_to_exitcode(status) == 0
        break
    killed += 1
print(json.dumps([killed, repaired]))
"""
    )
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr
    killed, repaired = json.loads(done.stdout)
    assert killed > 60
    assert repaired > 20


def test_what_a_killed_writer_left_is_freed_only_when_no_other_writes(tmp_path):
    """Memory that no slot refers to may belong to a writer that lives."""
    script = (
        COMMON
        + """
store = MemoryStore.create(30 * PAGE)
write_all = memory_store.write_all

def write_in_child(number, first_part_written):
    pid = os.fork()
    if pid == 0:
        os.close(ends[1])  # so that it does not wait for a parent that has failed
        store.after_fork()
        def write(fd, parts, offset):
            write_all(fd, parts, offset)
            first_part_written()
        memory_store.write_all = write
        assert store.put(key_of(number), encode(value(number)), 1_000_000)
        os._exit(0)
    return pid

begun, ends = os.pipe(), os.pipe()
lives = write_in_child(1, lambda: (os.write(begun[1], b"x"), os.read(ends[0], 1)))
assert os.read(begun[0], 1)
killed = write_in_child(2, lambda: os.kill(os.getpid(), signal.SIGKILL))
assert os.WIFSIGNALED(os.waitpid(killed, 0)[1])
assert store.put(key_of(3), encode(value(3)), 1_000_000)
left = os.fstat(store.data_fd).st_blocks * 512 // PAGE
store.limit = 0  # drops what is not being written
assert check(store, [3]) == 0
store.limit = 30 * PAGE
os.write(ends[1], b"x")
assert os.waitpid(lives, 0)[1] == 0
assert check(store, [1, 2, 3]) == 1
assert store.put(key_of(4), encode(value(4)), 1_000_000)
assert check(store, [1, 2, 3, 4]) == store.counters().entries == 2
assert os.fstat(store.data_fd).st_blocks * 512 == store.counters().nbytes
print(left, store.counters().nbytes // PAGE)
"""
    )
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["9", "6"]


def test_processes_that_write_and_drop_at_the_same_time_never_read_what_is_not_whole(tmp_path):
    script = (
        COMMON
        + """
store = MemoryStore.create(24 * PAGE)
children = []
for seed in range(3):
    pid = os.fork()
    if pid == 0:
        store.after_fork()
        draw = np.random.default_rng(seed)
        for turn in range(500):
            if turn % 10 == 0:
                store.limit = 4 * PAGE
                store.limit = 24 * PAGE
            number = int(draw.integers(12))
            if not check(store, [number]):
                store.put(key_of(number), encode(value(number)), int(draw.integers(1 << 40)))
        os._exit(0)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
counters = store.counters()
there = check(store, range(12))
memory = os.fstat(store.data_fd).st_blocks * 512
print(json.dumps([codes, counters.evictions, there == counters.entries, memory == counters.nbytes <= store.limit]))
"""
    )
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr
    codes, evictions, counted, bounded = json.loads(done.stdout)
    assert codes == [0, 0, 0], done.stderr
    assert evictions > 50
    assert counted
    assert bounded


# ---- the disk -------------------------------------------------------------------------------------------------------


def test_a_folder_returns_what_was_put_in_also_to_another_process(tmp_path):
    value = {"image": np.arange(10_000), "name": "a"}
    DiskStore(str(tmp_path), 10**9).put(key_of(1), encode(value), 7 * MS)
    found = DiskStore(str(tmp_path), 10**9).get(key_of(1))
    assert found.cost == 7000
    again = decode(found.meta, found.buffers)
    assert again["name"] == "a"
    assert (again["image"] == value["image"]).all()
    assert DiskStore(str(tmp_path), 10**9).get(key_of(2)) is None


@given(position=st.integers(0, 10**6), cut=st.booleans())
def test_any_damage_to_a_file_is_found(tmp_path_factory, position, cut):
    folder = tmp_path_factory.mktemp("damaged")
    store = DiskStore(str(folder), 10**9)
    store.put(key_of(1), encode((np.arange(2000), "text")), MS)
    (file,) = folder.glob("*/*/*")
    data = bytearray(file.read_bytes())
    position %= len(data)
    if 32 <= position < 40:  # the cost, which no value depends on
        return
    if cut:
        del data[position:]
    else:
        data[position] ^= 0x10
    file.write_bytes(data)
    with pytest.raises(DamagedError):
        store.get(key_of(1))
    assert store.get(key_of(1)) is None


def test_what_others_can_write_to_is_refused(tmp_path):
    """Entries are unpickled: whoever can write them could run code here."""
    store = DiskStore(str(tmp_path), 10**6)
    store.put(key_of(1), encode(7), MS)
    (file,) = (tmp_path / "v1").glob("*/*")
    file.chmod(0o666)
    with pytest.raises(PermissionError, match="other users can write"):
        store.get(key_of(1))
    (tmp_path / "v1").chmod(0o777)
    with pytest.raises(PermissionError, match="other users can write"):
        DiskStore(str(tmp_path), 10**6)


def test_a_link_in_the_folder_leads_to_nothing_that_is_deleted(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_bytes(bytes(10**5))
    store = DiskStore(str(tmp_path / "cache"), 1000)
    (tmp_path / "cache" / "v1" / "ab").symlink_to(tmp_path / "mine")
    store.tidy()
    assert (tmp_path / "mine" / "file").exists()


def test_a_folder_that_was_emptied_is_used_again(tmp_path):
    store = DiskStore(str(tmp_path / "cache"), 10**6)
    (tmp_path / "cache" / "v1").rmdir()
    store.put(key_of(1), encode(7), MS)
    assert store.get(key_of(1)) is not None


def test_a_folder_keeps_to_its_limit_by_dropping_what_costs_least_per_byte(tmp_path):
    store = DiskStore(str(tmp_path), 200_000)
    for number in range(40):
        store.put(key_of(number), encode(np.zeros(10_000, np.uint8)), (100 if number % 4 == 0 else 1) * MS)
    kept = [number for number in range(40) if store.get(key_of(number))]
    assert {number for number in kept if number % 4} < set(range(40))
    assert set(range(0, 40, 4)) <= set(kept)
    assert sum(file.stat().st_size for file in tmp_path.glob("*/*/*")) <= 200_000
    store.put(key_of(99), encode(np.zeros(300_000, np.uint8)), MS)
    assert store.get(key_of(99)) is None


def test_what_a_killed_writer_left_is_deleted_after_a_while(tmp_path):
    store = DiskStore(str(tmp_path), 10**6)
    store.put(key_of(1), encode(1), MS)
    (file,) = tmp_path.glob("*/*/*")
    old, new = (file.with_name(f"{file.name}.{n}.tmp") for n in (1, 2))
    for left in (old, new):
        left.write_bytes(b"half")
    os.utime(old, (0, 0))
    store.tidy()
    assert not old.exists()
    assert new.exists()


# ---- options


def test_a_process_never_reads_options_that_are_being_changed(create, tmp_path):
    """The second of two changes may come between a process's look at the version and at the options."""
    folders = [tmp_path / "first", tmp_path / "the second, which is longer"]
    old, new = (CacheOptions(None, str(folder), 1000).to_bytes() for folder in folders)
    store = create(10 * PAGE)
    store.config = new
    changed = store._map[CONFIG_AT:PAGE]
    store.config = old
    worker = SampleCache(MemoryStore([os.dup(store.index_fd), os.dup(store.data_fd)]), CacheOptions())
    before = store._map[CONFIG_AT:PAGE]
    for written in range(6 + len(new)):
        store._map[CONFIG_AT:PAGE] = changed[:written] + before[written:]
        assert store.config in (old, None, new)
        worker._version = -1  # it looks at the version before the second change is complete
        assert worker.gauge().directory in ("", *map(str, folders))
    store.config = new
    assert worker.gauge().directory == str(folders[1])
    assert set(tmp_path.iterdir()) <= set(folders)
    worker.close()
