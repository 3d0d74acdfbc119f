"""`nbloader.cached`: what is the same sample and what is not, values, limits, and workers of all kinds."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import random
import sys
import threading
import time
import warnings

import cloudpickle
import numpy as np
import pytest
import torch
from datasets import run_script, wait_for
from hypothesis import given
from hypothesis import strategies as st

import nbloader
from nbloader import DataLoader
from nbloader.cache import disk_store, file_version, process_cache
from nbloader.cache.digest import Walk
from nbloader.cache.sample_cache import SampleCache
from nbloader.dashboard.panels import Frame
from nbloader.dashboard.panels.summary import Summary

pytestmark = pytest.mark.linux("it counts what processes find in shared memory")


@pytest.fixture(autouse=True)
def no_cache_left(monkeypatch):
    """Each test begins without a cache, and is not warned that a busy machine compares slowly."""
    monkeypatch.setattr("nbloader.cache.cached_function.SLOW_NS", 1e12)
    yield
    nbloader.configure_cache()
    if process_cache.gauge() is not None:
        gc.collect()
    assert process_cache.gauge() is None


@pytest.fixture
def settled(tmp_path, monkeypatch):
    """Writes files that were not changed just now."""
    monkeypatch.setattr(file_version, "SETTLED", 0)
    monkeypatch.setattr(file_version, "SETTLED_COARSE", 0)

    def write(data, name="file"):
        path = tmp_path / name
        path.write_bytes(data)
        return str(path)

    return write


@pytest.mark.parametrize("make", [process_cache.share, nbloader.configure_cache])
def test_no_cache_remains_if_the_last_function_is_collected_while_it_is_created(make, monkeypatch):
    functions = [nbloader.cached(abs)]

    def create(options, create=SampleCache.create):
        functions.clear()
        gc.collect()
        return create(options)

    monkeypatch.setattr(SampleCache, "create", create)
    assert make() is None
    assert not functions
    assert process_cache.gauge() is None


def counts():
    gauge = process_cache.gauge()
    return gauge.hits, gauge.misses


class Point:
    """A value of an importable class."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Point and other.x == self.x

    __hash__ = None


def same(one, other):
    if isinstance(one, (np.ndarray, torch.Tensor)):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, (list, dict)):
        pairs = (
            zip(one.values(), other.values(), strict=True) if isinstance(one, dict) else zip(one, other, strict=True)
        )
        return len(one) == len(other) and all(same(a, b) for a, b in pairs)
    return one == other


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, 7, "text", b"bytes" * 1000, np.arange(5000.0), np.arange(6).reshape(2, 3)[:, ::2], np.float32(2),
        torch.arange(3000), torch.arange(6, dtype=torch.bfloat16).view(2, 3).t(), Point({"a": (1, 2)}),
        {"image": np.zeros((64, 64, 3), np.uint8), "boxes": [torch.ones(4)] * 3, "name": "x"},
        [np.arange(2000) + i for i in range(600)], np.array([], np.int32), np.asfortranarray(np.ones((70, 50))),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_hit_returns_an_equal_value_of_the_same_type(value):
    f = nbloader.cached(lambda x: x)
    first, again = f(value), f(value)
    assert first is not value or value is None or isinstance(value, (int, str, np.float32))
    assert counts() == (1, 1)
    assert type(again) is type(value)
    assert same(again, value)
    assert again is not value or value is None or isinstance(value, int)
    if isinstance(value, np.ndarray):
        assert again.dtype == value.dtype
        assert again.flags.writeable


def test_an_image_is_kept():
    image = pytest.importorskip("PIL.Image").new("RGB", (40, 30), (1, 2, 3))
    f = nbloader.cached(lambda image: image)
    f(image)
    again = f(image)
    assert counts() == (1, 1)
    assert again.size == (40, 30)
    assert again.tobytes() == image.tobytes()


def test_what_is_returned_may_be_changed():
    f = nbloader.cached(lambda n: {"array": np.arange(n), "list": [1]})
    for _ in range(3):
        value = f(5000)
        assert value["array"][0] == 0
        assert value["list"] == [1]
        value["array"][:] = -1
        value["list"].append(2)
    assert counts() == (2, 1)


def test_an_exception_is_not_kept():
    def fail(x):
        raise ValueError(x)

    f = nbloader.cached(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            f("bad")
    assert counts() == (0, 2)


def test_a_value_that_cannot_be_pickled_is_returned_with_a_warning():
    f = nbloader.cached(lambda _x: threading.Lock())
    with pytest.warns(RuntimeWarning, match=r"returns is not cached: lock cannot be pickled"):
        f(1)
    f(1)  # warned once
    assert counts() == (0, 2)


# ---- what is the same call ------------------------------------------------------------------------------------------


values = st.recursive(
    st.one_of(st.text(max_size=3), st.binary(max_size=3), st.integers(), st.floats(), st.booleans(), st.none()),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3), st.tuples(parts, parts), st.dictionaries(st.text(max_size=2), parts, max_size=3)
    ),
    max_leaves=5,
)


def digest_of(value):
    walk = Walk()
    walk.visit(value)
    return walk.digest()


def test_arrays_of_dates_have_digests():
    def of(*values):
        return digest_of(np.array(values, "M8[D]"))

    assert of("2020-01-01") == of("2020-01-01") != of("2020-01-02")
    assert of() != of("2020-01-01")
    table = np.zeros(2, [("day", "M8[D]"), ("value", "f4")])
    assert digest_of(table) == digest_of(table.copy())


@given(values, values)
def test_digests_are_equal_for_equal_contents_only(one, other):
    digests = [digest_of(value) for value in (one, other)]
    assert (digests[0] == digests[1]) == (repr(one) == repr(other))
    assert digest_of(pickle.loads(pickle.dumps(one))) == digests[0]


def test_arguments_are_compared_by_content():
    f = nbloader.cached(lambda *args, **kwargs: (args, kwargs))
    calls = [
        (), (1,), (1.0,), (True,), ("1",), (b"1",), (None,), ([1],), ((1,),), ({1},), ({1: 2},), ([1, [2]],),
        ([[1], 2],),
        (1, 2), ("ab", "c"), ("a", "bc"), (np.arange(3),), (np.arange(3.0),), (np.arange(3)[:, None],),
        (np.arange(4)[::2],), (np.float32(1),), (torch.arange(3),), (Point(1),), (Point([1]),), (slice(1, 2),),
        (range(3),),
        (len,), (np.sum,), (Point,), (1j,), (float("nan"),),
    ]  # fmt: skip
    for args in calls:
        f(*args)
    f(x=1)
    f(y=1)
    assert counts() == (0, len(calls) + 2)
    for args in calls:
        f(*pickle.loads(pickle.dumps(args)))
    assert counts() == (len(calls), len(calls) + 2)
    assert f({"b", "a", "c"}) == f({"c", "b", "a"})
    assert counts() == (len(calls) + 1, len(calls) + 3)


SIZE, TABLE = 1, {0: 1}
HELD = (1, 2)


def helper(x):
    return x + deeper(x)


def deeper(x):
    return x * SIZE


class Scale:
    factor = 2

    def apply(self, x):
        return x * self.factor + TABLE[0]


def compute(x):
    return helper(x) + Scale().apply(x) + sum(HELD)


def change_global(patch):
    patch.setitem(globals(), "SIZE", 5)


def change_in_place(patch):
    patch.setitem(TABLE, 0, 7)


def change_helper(patch):
    patch.setattr(deeper, "__code__", (lambda x: x * SIZE + 1).__code__)


def replace_helper(patch):
    patch.setitem(globals(), "deeper", lambda x: x - SIZE)


def change_class(patch):
    patch.setattr(Scale, "factor", 4)


def change_method(patch):
    patch.setattr(Scale, "apply", lambda self, x: x - self.factor)


def change_defaults(patch):
    patch.setattr(helper, "__defaults__", (3,))


@pytest.mark.parametrize(
    "change",
    [change_global, change_in_place, change_helper, replace_helper, change_class, change_method, change_defaults],
    ids=lambda change: change.__name__,
)
def test_a_change_of_what_the_code_refers_to_misses_and_the_change_back_hits(change, monkeypatch):
    f = nbloader.cached(compute)
    before = f(10)
    assert f(10) == before
    assert counts() == (1, 1)
    with monkeypatch.context() as patch:
        change(patch)
        assert f(10) == compute(10)
        assert counts() == (1, 2)
    assert f(10) == before
    assert counts() == (2, 2)


def test_closures_defaults_and_code_make_different_functions():
    def make(a, source="x + a"):
        namespace = {}
        exec(f"def outer(a):\n def f(x, k=3):\n  return {source}\n return f", namespace)
        return nbloader.cached(namespace["outer"](a))

    functions = [make(1), make(2), make(1, "x - a"), make([1], "x + a[0]")]
    assert [f(10) for f in functions] == [11, 12, 9, 11]
    assert counts() == (0, 4)
    functions.append(make(1))  # the same again, as when a cell is run a second time
    assert functions[-1](10) == 11
    assert counts() == (1, 4)
    functions[3].__wrapped__.__closure__[0].cell_contents[0] = 5
    assert functions[3](10) == 15


def test_modules_of_the_user_are_followed_and_installed_ones_are_not(tmp_path, monkeypatch):
    (tmp_path / "mine_a.py").write_text(
        "import mine_b\nimport numpy as np\ndef f(x):\n    return mine_b.g(np.abs(x))\n"
    )
    (tmp_path / "mine_b.py").write_text("K = 1\nunused = 0\ndef g(x):\n    from mine_c import h\n    return h(x) + K\n")
    (tmp_path / "mine_c.py").write_text("def h(x):\n    return x * 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    mine_a, mine_b, mine_c = map(importlib.import_module, ("mine_a", "mine_b", "mine_c"))
    try:
        f = nbloader.cached(mine_a.f)
        assert f(3) == 7
        monkeypatch.setattr(mine_b, "unused", 1)
        assert f(3) == 7
        assert counts() == (1, 1)
        monkeypatch.setattr(mine_b, "K", 2)
        assert f(3) == 8
        monkeypatch.setattr(mine_c, "h", lambda x: x * 3)
        assert f(3) == 11
        assert counts() == (1, 3)
    finally:
        for name in ("mine_a", "mine_b", "mine_c"):
            del sys.modules[name]


def test_keys_are_the_same_in_every_process(tmp_path):
    script = """
import json, sys, hashlib
import numpy as np
from nbloader.cache.digest import Walk
def digest(value):
    walk = Walk()
    walk.visit(value)
    return walk.digest().hex()
NAMES = {"a", "b", "c", "d"}
class Base:
    table = {"x": {1, 2, 3}}
    def run(self, x):
        return [self.run(y) for y in x if y in NAMES] or {"p", "q"}
def f(x, flags=frozenset(["u", "v", "w"])):
    import os.path, collections
    return Base().run(x), os.path.join, x in {"one", "two", "three"}, np.fft.fft, recursive
def recursive(x):
    return f(x) if x else recursive(x - 1)
print(digest(f), digest([{"k": {"s", "t"}}, Base()]))
"""
    texts = set()
    for seed in ("1", "2"):
        os.environ["PYTHONHASHSEED"] = seed
        try:
            done = run_script(script, tmp_path)
        finally:
            del os.environ["PYTHONHASHSEED"]
        assert done.returncode == 0, done.stderr
        texts.add(done.stdout)
    assert len(texts) == 1


def test_a_changed_file_misses(settled):
    def read(path):
        with open(path, "rb") as file:
            return file.read()

    f = nbloader.cached(read)
    path = settled(b"one")
    assert [f(path), f(path)] == [b"one"] * 2
    assert counts() == (1, 1)
    times = os.stat(path)
    settled(b"two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the same size and modification time
    assert f(path) == b"two"
    assert counts() == (1, 2)
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        f(path)


def test_a_file_that_was_changed_just_now_is_read_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(file_version, "SETTLED", 3600)
    f = nbloader.cached(lambda path: path.read_text())
    path = tmp_path / "file"
    for text in ("one", "two"):
        path.write_text(text)
        assert f(path) == text
    assert process_cache.gauge().entries == 0


def test_a_file_that_changes_while_it_is_read_is_not_kept(settled):
    path = settled(b"one")

    def read(path):
        with open(path, "rb") as file:
            found = file.read()
        settled(found + b"more")
        return found

    f = nbloader.cached(read)
    f(path)
    assert process_cache.gauge().entries == 0


class Settings:
    """An object of the user."""

    def __init__(self, root):
        self.root = root


@pytest.mark.parametrize("warned", [False, True])
def test_a_folder_is_warned_of_in_objects_of_the_user_but_not_in_a_data_frame(warned, tmp_path, monkeypatch):
    pd = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    value = Settings("data") if warned else pd.DataFrame({"data": ["data", "x"]})
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert nbloader.cached(lambda _value: 1)(value) == 1
    assert any("the folder 'data'" in str(one.message) for one in shown) == warned


def test_a_folder_as_an_argument_is_warned_of(tmp_path):
    f = nbloader.cached(lambda folder, i: (folder, i))
    with pytest.warns(RuntimeWarning, match="was called with the folder .* Pass the path of the file"):
        f(str(tmp_path), 1)


def test_what_is_slow_to_compare_is_named(monkeypatch):
    monkeypatch.setattr("nbloader.cache.cached_function.SLOW_NS", 0)
    files = ["a", "b"]
    f = nbloader.cached(lambda i: files[i])
    with pytest.warns(
        RuntimeWarning, match=r"refers to 'files', which could change .* Pass what it needs as an argument"
    ):
        f(0)
    f(1)


@pytest.mark.parametrize(
    "draw", [random.random, lambda: np.random.rand(2), lambda: torch.rand(2)], ids=["random", "numpy", "torch"]
)
def test_a_function_that_draws_random_numbers_is_warned_of(draw):
    f = nbloader.cached(lambda x: (x, draw()))
    with pytest.warns(RuntimeWarning, match="draws random numbers, but .* Move the random part out"):
        f(0)
    f(1)


def test_what_cannot_be_cached_is_refused_with_advice(tmp_path):
    class Dataset:
        @nbloader.cached
        def method(self, i):
            return i

        @staticmethod
        @nbloader.cached
        def static(i):
            return i

    async def coroutine():
        pass

    assert Dataset().static(3) == 3
    with pytest.raises(TypeError, match=r"cannot be cached as a method: .*Write @staticmethod above"):
        Dataset().method(3)
    with pytest.raises(TypeError, match="coroutine or generator"):
        nbloader.cached(coroutine)
    with pytest.raises(TypeError, match="cached takes a function, not staticmethod: write @staticmethod above it"):
        nbloader.cached(staticmethod(len))
    with pytest.raises(TypeError, match="takes a function, not int"):
        nbloader.cached(5)
    with open(tmp_path / "file", "w") as file:
        with pytest.raises(TypeError, match=r"an argument of the cached function .* Pass what it is made of"):
            nbloader.cached(lambda x: x)(file)
        with pytest.raises(TypeError, match=r"It refers to 'file': TextIOWrapper .*version=.*depends="):
            nbloader.cached(lambda: file.name)()


def test_a_cached_function_is_one_to_those_that_call_it():
    inner = nbloader.cached(lambda x: x + 1)
    outer = nbloader.cached(lambda x: inner(x) * 2)
    assert [outer(1), outer(1), inner(1)] == [4, 4, 2]
    assert counts() == (2, 2)
    assert nbloader.cached(inner) is inner


# ---- limits and the disk --------------------------------------------------------------------------------------------


def test_options_are_checked(tmp_path):
    with pytest.raises(TypeError, match="memory must be an int"):
        nbloader.configure_cache(memory="1 GB")
    with pytest.raises(ValueError, match="non-negative"):
        nbloader.configure_cache(disk=-1)
    with pytest.raises(TypeError):
        nbloader.configure_cache(directory=5)


def test_the_limit_of_memory_applies_at_once():
    f = nbloader.cached(lambda n: np.zeros(20_000, np.uint8) + n)
    for n in range(5):
        f(n)
    assert process_cache.gauge().entries == 5
    nbloader.configure_cache(memory=50_000)
    assert process_cache.gauge().entries == 2
    assert process_cache.gauge().limit == 50_000
    nbloader.configure_cache()
    assert process_cache.gauge().limit > 10**7


def test_the_folder_survives_the_cache(tmp_path):
    def make():
        return nbloader.cached(lambda x: {"x": np.arange(3000) + x})

    nbloader.configure_cache(directory=tmp_path / "new")
    f = make()
    f(1)
    del f
    gc.collect()
    assert process_cache.gauge() is None
    f = make()
    assert f(1)["x"][0] == 1
    gauge = process_cache.gauge()
    assert (gauge.hits, gauge.misses, gauge.disk_hits, gauge.entries) == (1, 0, 1, 1)
    f(1)
    assert process_cache.gauge().disk_hits == 1  # now from memory
    assert gauge.directory == str(tmp_path / "new")
    nbloader.configure_cache(directory=tmp_path / "new", memory=0)
    assert f(1)["x"][0] == 1
    assert process_cache.gauge().disk_hits == 2


def test_a_damaged_file_is_computed_again_with_a_warning(tmp_path):
    nbloader.configure_cache(directory=tmp_path, memory=0)
    f = nbloader.cached(lambda x: np.arange(3000) + x)
    f(1)
    (file,) = tmp_path.glob("*/*/*")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.warns(RuntimeWarning, match="was damaged, so it is computed again"):
        assert f(1)[0] == 1
    assert f(1)[0] == 1
    assert process_cache.gauge().disk_hits == 1


def test_a_full_disk_and_a_folder_that_cannot_be_used_are_warned_of_and_lose_nothing(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    f = nbloader.cached(lambda x: x)
    nbloader.configure_cache(directory=tmp_path / "full")
    with monkeypatch.context() as patched:
        patched.setattr(disk_store, "_write", full)
        with pytest.warns(RuntimeWarning, match="no more samples are stored in the cache folder .*No space left"):
            assert f(1) == 1
        assert f(2) == 2
    assert not list((tmp_path / "full").glob("*/*/*"))
    (tmp_path / "file").touch()
    nbloader.configure_cache(directory=tmp_path / "file")
    with pytest.warns(RuntimeWarning, match="are not cached on disk: the folder .*file cannot be used"):
        assert f(3) == 3
    assert f(3) == 3
    assert counts() == (1, 3)


def test_values_of_classes_of_the_notebook_stay_off_the_disk(tmp_path):
    class Local(Point):
        """Another process would get another class."""

    nbloader.configure_cache(directory=tmp_path)
    f = nbloader.cached(lambda x: Local(x))  # noqa: PLW0108
    f(1)
    assert type(f(1)) is Local
    assert not list(tmp_path.glob("*/*/*"))


@pytest.mark.parametrize("missing", ["punch", "lock"])
def test_without_shared_memory_functions_compute(missing, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(f"nbloader.cache.memory_store.{missing}", refuse)
    f = nbloader.cached(lambda x: x + 1)
    with pytest.warns(RuntimeWarning, match="does not cache samples in memory, because .*Function not implemented"):
        assert f(1) == 2
    assert f(1) == 2


# ---- loaders --------------------------------------------------------------------------------------------------------


class Files:
    """Reads a file per sample, with a cached function."""

    def __init__(self, read, paths):
        self.read = read
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return self.read(self.paths[i])


def reader():
    def read(path):
        return np.fromfile(path, np.uint8)

    return nbloader.cached(read)


def test_all_workers_and_loaders_share_what_one_of_them_has_read(tmp_path):
    paths = [str(tmp_path / f"{i}") for i in range(40)]
    for i, path in enumerate(paths):
        np.full(10_000, i, np.uint8).tofile(path)
    os.utime(paths[0])
    time.sleep(2 * file_version.SETTLED)
    read = reader()
    expected = [np.full(10_000, i, np.uint8).tobytes() for i in range(40)]

    def epoch(loader):
        return [sample.numpy().tobytes() for batch in loader for sample in batch]

    with DataLoader(Files(read, paths), 4, num_workers=2, persistent_workers=True) as loader:
        assert epoch(loader) == expected
        assert counts() == (0, 40)
        assert epoch(loader) == expected
        assert counts() == (40, 40)
        loader.restart_workers()
        assert epoch(loader) == expected
        np.full(10_000, 99, np.uint8).tofile(paths[7])
        expected[7] = bytes([99]) * 10_000
        assert epoch(loader) == expected
        cache = loader.stats().cache
        assert (cache.hits, cache.misses, cache.entries) in {(119, 41, 40), (119, 41, 41)}
        assert cache.saved > 0
        text = str(loader.stats())
        assert "Cache   119 hits, 41 misses" in text
        line = Summary().payload(Frame(loader.stats()))["cache"]
        assert line.startswith("119 hits, 41 misses, ")
        assert line in Summary().html(Summary().payload(Frame(loader.stats()))).replace("&#x27;", "'")
    for options in (
        {"workers": "thread", "num_workers": 2},
        {"num_workers": 0},
        {"multiprocessing_context": "fork", "num_workers": 1},
    ):
        misses = counts()[1]
        with DataLoader(Files(read, paths), 4, **options) as loader:
            assert epoch(loader) == expected
        assert counts()[1] - misses <= 1  # of the file that was changed just now


def test_functions_of_a_module_use_the_cache_in_workers_that_import_it(tmp_path, monkeypatch):
    (tmp_path / "module_of_mine.py").write_text("""
import nbloader

@nbloader.cached
def decode(x):
    return [x]

class Dataset:
    def __len__(self):
        return 12
    def __getitem__(self, i):
        return decode(i)[0]
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("module_of_mine")
    try:
        assert pickle.loads(pickle.dumps(module.decode)) is module.decode
        with DataLoader(module.Dataset(), 3, num_workers=2) as loader:
            assert [x for batch in loader for x in batch.tolist()] == list(range(12))
        assert counts() == (0, 12)
        module.decode(5)
        assert counts() == (1, 12)
    finally:
        del sys.modules["module_of_mine"], module.decode, module


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_share_the_cache_however_they_start(method):
    f = nbloader.cached(lambda i: [i, "x" * 10_000])

    class Dataset:
        def __init__(self):
            self.function = f

        def __len__(self):
            return 12

        def __getitem__(self, i):
            return self.function(i)[0]

    with DataLoader(Dataset(), 3, num_workers=2, multiprocessing_context=method) as loader:
        for _epoch in range(2):
            assert [x for batch in loader for x in batch.tolist()] == list(range(12))
        assert counts() == (12, 12)


def test_a_worker_that_dies_in_a_sample_loses_no_entry(tmp_path):
    flag = (str(tmp_path), "flag")  # not a path: a file that the code names is a part of the code
    (tmp_path / "flag").touch()

    def compute(i):
        if i == 13 and os.path.exists("/".join(flag)):
            os.unlink("/".join(flag))
            os.kill(os.getpid(), 9)
        return np.full(5000, i)

    class Dataset:
        def __init__(self, function):
            self.function = function

        def __len__(self):
            return 24

        def __getitem__(self, i):
            return self.function(i)[:2]

    compute = nbloader.cached(compute)
    with DataLoader(Dataset(compute), 4, num_workers=1) as loader:
        assert [int(x[0]) for batch in loader for x in batch] == list(range(24))
        assert process_cache.gauge().entries == 24
        wait_for(lambda: loader.stats().deaths == 1, "the death")
    del compute


def test_a_function_of_the_notebook_goes_to_workers_by_value():
    f = nbloader.cached(lambda x: x + 1)
    again = pickle.loads(cloudpickle.dumps(f))
    assert again(1) == 2
    assert f(1) == 2
    assert counts() == (1, 1)
    assert again.__name__ == f.__name__
