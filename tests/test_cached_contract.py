"""The contract of `nbloader.cached`: `f(x)` is what `f.__wrapped__(x)` returns, whatever has changed in between.

The functions reach seven kinds of objects in seven ways. The last section has what is outside of the contract: a row of
the docstring of `nbloader.cached` names each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib
import os
import pathlib
import pickle
import sys
import textwrap
import threading
import types

import cloudpickle
import numpy as np
import pytest
import torch
from datasets import run_script
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbloader
from nbloader.cache import cached_function, file_version, process_cache


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Files that were changed just now are cached, too, and no comparison is slow. Each test begins without a cache."""
    monkeypatch.setattr(cached_function, "SLOW_NS", 1e12)
    monkeypatch.setattr(file_version, "SETTLED", 0)
    monkeypatch.setattr(file_version, "SETTLED_COARSE", 0)
    yield
    gc.collect()
    assert process_cache.gauge() is None


def counts():
    gauge = process_cache.gauge()
    return gauge.hits, gauge.misses


@contextlib.contextmanager
def modules(folder, **sources):
    """Write modules of the user and import them."""
    sys.path.insert(0, str(folder))
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        for name, source in sources.items():
            edit(folder, name, source)
        yield [importlib.import_module(name) for name in sources]
    finally:
        sys.dont_write_bytecode = written
        sys.path.remove(str(folder))
        for name in sources:
            sys.modules.pop(name, None)


def edit(folder, name, source):
    (folder / f"{name}.py").write_text(textwrap.dedent(source))
    importlib.invalidate_caches()


# ---- ways x kinds x changes -----------------------------------------------------------------------------------------

SOURCE = """
import functools
import numpy as np

K = {k}

def function(x):
    return x * K + {k}

class Table:
    offset = {k}

    def __init__(self):
        self.factor = {k}

    def apply(self, x):
        return x * self.factor + self.offset + function(x)

def make_partial():
    return functools.partial(weighted, [{k}])

def weighted(weights, x):
    return x * weights[0] + K

array = np.full(4, {k})
instance = Table()
bound = instance.apply
partial = make_partial()
"""


class Setup:
    """A module of the user, the kinds of objects in it, and how they change."""

    def __init__(self, folder, kind):
        self.folder, self.kind, self.count = folder, kind, 1
        self.path = folder / "data.txt"
        self.path.write_text("1")
        self.module = sys.modules["mine"]

    @property
    def call(self):
        """The expression in which the function uses the object."""
        return {
            "module": "{}.function(x)", "function": "{}(x)", "bound method": "{}(x)", "instance": "{}.apply(x)",
            "array": "int({}[0]) * x", "path": "int(Path({}).read_text()) * x", "partial": "{}(x)",
        }[self.kind]  # fmt: skip

    def get(self):
        """Return the present object of this kind."""
        names = {"function": "function", "bound method": "bound", "instance": "instance", "array": "array"}
        if self.kind == "module":
            return self.module
        return str(self.path) if self.kind == "path" else getattr(self.module, names.get(self.kind, self.kind))

    def change_in_place(self, thing):
        """Change the object without replacing it."""
        self.count += 1
        if self.kind == "path":
            self.path.write_text(str(self.count))
        elif self.kind == "array":
            thing[0] = self.count
        elif self.kind in ("module", "function"):
            self.module.K = self.count
        elif self.kind == "partial":
            thing.args[0][0] = self.count
        else:
            getattr(thing, "__self__", thing).factor = self.count

    def redefinition(self, _thing):
        """Return another object."""
        self.count += 1
        if self.kind == "path":
            self.path = self.folder / f"data{self.count}.txt"
            self.path.write_text(str(self.count))
            return str(self.path)
        other = types.ModuleType("mine")
        exec(SOURCE.format(k=self.count), vars(other))
        self.module = other
        return self.get()

    def edit_and_reload(self, thing):
        """Edit the file and import it again, as after an edit in another window."""
        self.count += 1
        if self.kind == "path":
            self.path.write_text(str(self.count))
            return str(self.path)
        edit(self.folder, "mine", SOURCE.format(k=self.count))
        self.module = importlib.reload(sys.modules["mine"])
        return thing if self.kind == "module" else self.get()


def reach(way, setup):  # noqa: PLR0911 - one for each way
    """Return a cached function that reaches an object, how to call it, and how to give it another object."""
    use, first = setup.call, setup.get()
    space = {
        "Path": pathlib.Path,
        "thing": first,
        "Holder": types.SimpleNamespace(thing=first),
        "BOX": {"key": [first]},
    }

    def define(source, name="f"):
        exec(textwrap.dedent(source), space)
        return nbloader.cached(space[name])

    if way == "global":
        f = define(f"def f(x):\n return {use.format('thing')}")
        return f, lambda: (3,), lambda other: space.update(thing=other)
    if way == "closure":
        f = define(f"def make(c):\n def f(x):\n  return {use.format('c')}\n return f\nf = make(thing)")
        return f, lambda: (3,), lambda other: setattr(f.__wrapped__.__closure__[0], "cell_contents", other)
    if way == "default":
        f = define(f"def f(x, d=thing):\n return {use.format('d')}")
        return f, lambda: (3,), lambda other: setattr(f.__wrapped__, "__defaults__", (other,))
    if way == "keyword default":
        f = define(f"def f(x, *, d=thing):\n return {use.format('d')}")
        return f, lambda: (3,), lambda other: f.__wrapped__.__kwdefaults__.update(d=other)
    if way == "attribute":
        f = define(f"def f(x):\n return {use.format('Holder.thing')}")
        return f, lambda: (3,), lambda other: setattr(space["Holder"], "thing", other)
    if way == "container":
        f = define(f"def f(x):\n return {use.format('BOX[chr(107) + chr(101) + chr(121)][0]')}")
        return f, lambda: (3,), lambda other: space["BOX"].update(key=[other])
    assert way == "argument"
    f = define(f"def f(x, a):\n return {use.format('a')}")
    current = [first]
    return f, lambda: (3, current[0]), lambda other: current.__setitem__(0, other)


WAYS = ["global", "closure", "default", "keyword default", "attribute", "container", "argument"]
KINDS = ["module", "function", "bound method", "instance", "array", "path", "partial"]
CHANGES = ["change_in_place", "redefinition", "edit_and_reload"]


def check_changes(folder, way, kind, changes):
    with modules(folder, mine=SOURCE.format(k=1)):
        setup = Setup(folder, kind)
        f, arguments, replace = reach(way, setup)
        thing = setup.get()
        for change in [None, *changes]:
            other = thing if change is None else getattr(setup, change)(thing)
            if other is not None and other is not thing:
                replace(other)
                thing = other
            hits = counts()[0] if process_cache.gauge() else 0
            expected = f.__wrapped__(*arguments())
            assert f(*arguments()) == expected
            assert f(*arguments()) == expected
            assert counts()[0] > hits, "the second call should be a hit"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_the_function_is_called_again_after_a_change(way, kind, change, tmp_path):
    check_changes(tmp_path, way, kind, [change])


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(WAYS), st.sampled_from(KINDS), st.lists(st.sampled_from(CHANGES), max_size=4))
def test_a_cached_function_returns_what_the_function_returns(tmp_path, way, kind, changes):
    check_changes(tmp_path, way, kind, changes)


# ---- whose code it is -----------------------------------------------------------------------------------------------


def test_the_file_of_the_code_decides_whose_it_is():
    def make(value):
        @nbloader.cached
        @functools.wraps(np.load)
        def load(_path):
            return value

        @functools.wraps(np.mean)
        def mean(_x):
            return value

        return load, nbloader.cached(lambda x: mean(x) + 1)

    for value in (1, 2):
        load, use = make(value)
        assert (load("x"), use(0)) == (value, value + 1)


def test_a_folder_called_like_a_module_of_the_standard_library_is_the_users(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "__init__.py").touch()
    edit(tmp_path / "code", "helpers", "def resize(x):\n    return x + 1\n")
    monkeypatch.delitem(sys.modules, "code", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    helpers = importlib.import_module("code.helpers")
    try:
        f = nbloader.cached(lambda x: helpers.resize(x) + 0)
        assert [f(1), f(1)] == [2, 2]
        edit(tmp_path / "code", "helpers", "def resize(x):\n    return x + 100\n")
        importlib.reload(helpers)
        assert f(1) == 101
    finally:
        for name in ("code.helpers", "code"):
            del sys.modules[name]


@pytest.mark.parametrize("linked", [False, True], ids=["folder", "symbolic link"])
@pytest.mark.parametrize(
    ("distribution", "record"), [("package_a", ""), ("Other.Name", "package_a/__init__.py,,\n"), (None, "")]
)
def test_an_upgraded_package_is_another_one(distribution, record, linked, tmp_path):
    """The function of the script imports the package itself, refers to the module, and to a function of it."""
    site = tmp_path / "site-packages"
    if linked:
        (tmp_path / "elsewhere").mkdir()
        site.symlink_to(tmp_path / "elsewhere")
    (site / "package_a").mkdir(parents=True)
    (site / "package_a" / "__init__.py").write_text("from package_a._impl import value\n")
    script = f"""
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, {str(site)!r})
import nbloader
nbloader.configure_cache(directory={str(tmp_path / "cache")!r})
@nbloader.cached
def lazy(x):
    from package_a import value
    return value()
print(lazy(1))
import package_a
from package_a import value
by_module = nbloader.cached(lambda x: package_a.value())
by_name = nbloader.cached(lambda x: value())
print(by_module(1), by_name(1), lazy(1), nbloader.cache.process_cache.gauge().disk_hits)
"""
    outputs = []
    for version in ("1.0", "1.0", "2.0"):
        (site / "package_a" / "_impl.py").write_text(f"def value():\n    return {version}\n")
        os.utime(site / "package_a" / "_impl.py", (1e9, 1e9 + float(version)))
        for old in site.glob("*.dist-info"):
            (old / "RECORD").unlink()
            old.rmdir()
        if distribution is not None:
            info = site / f"{distribution}-{version}.dist-info"
            info.mkdir()
            (info / "RECORD").write_text(record)
        done = run_script(script, tmp_path)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.split())
    assert outputs == [
        ["1.0", "1.0", "1.0", "1.0", "0"], ["1.0", "1.0", "1.0", "1.0", "3"], ["2.0", "2.0", "2.0", "2.0", "0"]
    ]  # fmt: skip


def test_a_package_that_is_reloaded_after_an_upgrade_is_another_one(tmp_path):
    site = tmp_path / "site-packages"
    site.mkdir()
    with modules(site, package_b="def value():\n    return 1\n") as [package]:
        f = nbloader.cached(lambda: package.value() + 0)
        assert [f(), f()] == [1, 1]
        edit(site, "package_b", "def value():\n    return 22\n")
        importlib.reload(package)
        assert f() == 22


# ---- what is followed -----------------------------------------------------------------------------------------------


def test_code_among_the_arguments_may_use_the_modules_of_the_function(tmp_path):
    with modules(tmp_path, mine="A, B = 1, 2\n") as [mine]:
        f = nbloader.cached(lambda get: get(mine))

        def get_b(module):
            return module.B

        assert [f(get_b), f(get_b)] == [2, 2]
        assert counts() == (1, 1)
        mine.B = 5
        assert f(get_b) == 5


def test_an_attribute_that_a_module_gets_later_is_noticed(tmp_path):
    with modules(tmp_path, mine="") as [mine]:
        f = nbloader.cached(lambda: mine.fast if hasattr(mine, "fast") else 0)
        assert [f(), f()] == [0, 0]
        mine.fast = 7
        assert f() == 7


def test_built_in_methods_are_bound_to_their_objects():
    table, names = {1: "old"}, ["a", "b"]
    look_up, item = table.get, names.__getitem__
    functions = [nbloader.cached(lambda x: look_up(x) or ""), nbloader.cached(lambda x: item(x) or "")]
    for f in functions:
        f(1)
    table[1] = names[1] = "new"
    assert [f(1) for f in functions] == ["new", "new"]


def test_a_ufunc_made_of_a_function_has_no_pickle():
    """It is pickled by its name, which no module has."""
    add = np.frompyfunc(lambda x: x + 1, 1, 1)
    with pytest.raises(TypeError, match=r"refers to 'add': ufunc cannot be pickled .*(no module has it|not found as)"):
        nbloader.cached(lambda x: add(x) + 0)(1)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (np.arange(4), lambda array: setattr(array, "shape", (2, 2))),
        (np.frombuffer(bytes(8), np.int32), lambda array: setattr(array, "shape", (2, 1))),
        (torch.zeros(4), lambda tensor: tensor.unsqueeze_(0)),
        (torch.zeros(4), lambda tensor: tensor.requires_grad_()),
        (bytearray(4), lambda buffer: buffer.append(0)),
    ],
    ids=["array", "read-only array", "tensor", "gradient", "bytearray"],
)
@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")  # of NumPy 2.5
def test_the_shape_of_an_array_can_change_in_place(value, change):
    f = nbloader.cached(lambda: (getattr(value, "shape", None), getattr(value, "requires_grad", None), len(value)))
    f()
    change(value)
    assert f() == f.__wrapped__()


def test_a_read_only_array_can_change_through_another_view():
    array = np.arange(4)
    view = array[:]
    array.flags.writeable = False
    f = nbloader.cached(lambda: [*array.tolist()])
    f()
    view[0] = 9
    assert f() == array.tolist()


def test_shared_objects_are_not_the_same_as_equal_ones():
    f = nbloader.cached(lambda a, b: (a, b))
    shared, other = [1], [1]
    f(shared, other)
    first, second = f(shared, shared)
    assert first is second
    assert counts() == (0, 2)


def test_the_order_of_keyword_arguments_counts():
    f = nbloader.cached(lambda **options: [*options])
    assert (f(a=1, b=2), f(b=2, a=1)) == (["a", "b"], ["b", "a"])


def test_a_long_chain_of_functions_is_followed():
    space = {"f0": lambda x: x}
    for number in range(1, 1500):
        exec(f"def f{number}(x):\n    return f{number - 1}(x) if x < 0 else x", space)
    f = nbloader.cached(space["f1499"])
    assert [f(1), f(1)] == [1, 1]
    assert counts() == (1, 1)


def test_a_symbolic_link_that_is_switched_names_another_file(tmp_path):
    for number in range(1000):  # until two files have equal sizes and times
        pair = [tmp_path / f"v{k}-{number}" for k in (1, 2)]
        files = [path.open("w") for path in pair]
        for file, text in zip(files, ("AAAA", "BBBB"), strict=True):
            file.write(text)
        for file in files:
            file.close()
        one, other = (path.stat() for path in pair)
        if (one.st_mtime_ns, one.st_ctime_ns) == (other.st_mtime_ns, other.st_ctime_ns):
            break
    f = nbloader.cached(lambda path: pathlib.Path(path).read_text())
    link = tmp_path / "link"
    for target, text in zip(pair, ("AAAA", "BBBB"), strict=True):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert f(str(link)) == text


def test_a_file_has_the_same_version_by_each_of_its_names(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    paths = [str(tmp_path / name) for name in ("file", "link", "missing", "")] + ["a\0b", "x" * 5000]
    versions = [file_version.FileVersion.now(path) for path in paths]
    assert versions[0] == versions[1] is not None
    assert [version is None for version in versions] == [False, False, True, False, True, True]


def test_a_value_that_changes_during_a_call_leaves_no_entry():
    state = {"K": 1}
    started, go = threading.Event(), threading.Event()
    gate = types.ModuleType("gate")
    gate.wait = lambda: (started.set(), go.wait(60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "gate", gate)

        @nbloader.cached
        def f(x):
            getattr(sys.modules["ga" + "te"], "wait")()  # noqa: B009 - a name that the key does not have
            return x * state["K"]

        thread = threading.Thread(target=f, args=(3,))
        thread.start()
        started.wait(60)
        state["K"] = 100
        go.set()
        thread.join()
        state["K"] = 1
        assert f(3) == 3


def test_a_function_that_always_changes_what_it_refers_to_is_warned_of():
    seen = []
    f = nbloader.cached(lambda x: seen.append(x) or x)
    f(0), f(1)
    with pytest.warns(
        RuntimeWarning,
        match="does not keep results of .*, because its arguments, its files, or values that it refers to",
    ):
        f(2)


# ---- results --------------------------------------------------------------------------------------------------------

TABLE = {1: np.zeros(3), 2: [1], 3: torch.zeros(3000), 4: np.zeros(3000)}


@pytest.mark.parametrize("number", TABLE)
def test_the_first_result_is_a_copy_too(number):
    f = nbloader.cached(lambda i: TABLE[i])
    for _ in range(3):
        value = f(number)
        value[0] = 5
        assert TABLE[number][0] != 5
        TABLE[number][0] = TABLE[number][0]
    assert counts()[0] == 2
    g = nbloader.cached(lambda a: np.asarray(a, float))
    argument = np.zeros(3)
    result = g(argument)
    result += 5
    assert not argument.any()


def test_a_miss_and_a_hit_share_the_same_objects():
    def pair(_x):
        one = [np.zeros(2000)]
        return one, one, [*one]

    f = nbloader.cached(pair)
    for one, same, other in (f(1), f(1)):
        assert one is same
        assert one is not other
        assert one[0] is other[0]
    assert counts() == (1, 1)


class Unloadable:
    """Can be pickled, and raises an error when it is unpickled."""

    def __reduce__(self):
        return int, ("not a number",)


def test_a_result_that_cannot_be_unpickled_is_returned_with_a_warning():
    f = nbloader.cached(lambda _x: Unloadable())
    with pytest.warns(RuntimeWarning, match="returns is not cached"):
        assert type(f(1)) is Unloadable


# ---- version and depends --------------------------------------------------------------------------------------------


def test_what_has_no_pickle_needs_a_version_or_something_that_stands_for_it(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("1")
    settings = types.SimpleNamespace(file=path.open())
    with settings.file:

        def read(x):
            settings.file.seek(0)
            return settings.file.read() + x

        message = r"refers to 'settings': TextIOWrapper cannot be pickled.*version=1.*depends="
        with pytest.raises(TypeError, match=message):
            nbloader.cached(read)("")
        f = nbloader.cached(depends=[str(path)])(read)
        assert [f(""), f("")] == ["1", "1"]
        path.write_text("2")
        assert f("") == "2"
        assert counts() == (1, 2)
        versions = [nbloader.cached(version=number)(read) for number in (1, 2, 1)]
        assert [g("") for g in versions] == ["2", "2", "2"]
        assert counts() == (2, 4)
        with pytest.raises(TypeError, match="an argument of the cached function"):
            versions[0](settings.file)


def test_depends_takes_modules_functions_and_values(tmp_path):
    def helper():
        return values[0]

    values = [1]
    with modules(tmp_path, mine="K = 1\n") as [mine]:

        @nbloader.cached(depends=[mine, helper])
        def f():
            return getattr(sys.modules["mi" + "ne"], "".join("K"))

        assert [f(), f()] == [1, 1]
        mine.K = 2
        assert f() == 2
        values[0] = 2
        assert f() == 2
        assert counts() == (1, 3)
        mine.another = 1
        assert f() == 2
        assert counts() == (1, 4)
    with pytest.raises(TypeError, match="depends must be a list"):
        nbloader.cached(depends="data.txt")


def test_a_fixed_argument_is_compared_once_per_process():
    @nbloader.cached(fixed=["table"])
    def row(table, i, *, scale=1):
        return table[i] * scale

    table = np.arange(4.0)
    assert [row(table, 1), row(table, i=2, scale=3)] == [1, 6]
    table[1] = 5
    assert row(table, 1) == 1, "declared not to change"
    assert row(table.copy(), 1) == 5
    assert row(np.arange(4.0), 1) == 1
    assert counts() == (2, 3)
    again = pickle.loads(cloudpickle.dumps(row))
    assert again(np.arange(4.0), 2, scale=3) == 6
    assert counts() == (3, 3)


def test_many_objects_for_a_fixed_parameter_are_told_apart():
    @nbloader.cached(fixed=["table"])
    def first(table):
        return table[0]

    assert [first([n]) for n in range(50)] == list(range(50)), "objects that are gone have no identity"
    assert [first([n]) for n in range(50)] == list(range(50))


def test_fixed_names_parameters():
    with pytest.raises(TypeError, match=r"fixed names \['size'\], which are no parameters of .*f"):

        @nbloader.cached(fixed=["size"])
        def f(table):
            return table

    with pytest.raises(TypeError, match="fixed must be a list of names of parameters, not 'table'"):
        nbloader.cached(fixed="table")
    g = nbloader.cached(fixed=["table"])(lambda table: 1)
    with pytest.raises(TypeError, match="cannot be compared with that of other calls"):
        g(x for x in ())


def test_a_function_with_a_version_is_a_dependency_with_it():
    def make(version):
        inner = nbloader.cached(version=version)(lambda x: x)
        return nbloader.cached(lambda x: inner(x) + 0)

    functions = [make(version) for version in (1, 2, 2)]
    assert [f(0) for f in functions] == [0, 0, 0]
    assert counts()[1] == 4  # inner and outer, for two versions


# ---- values of many kinds -------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    size: int = 4
    names: list = dataclasses.field(default_factory=list)


def values_of_many_kinds():
    import collections
    import datetime as dt
    import decimal
    import enum
    import logging
    import operator
    import random
    import re
    import uuid
    import weakref

    @functools.lru_cache
    def remembered(x):
        return x

    @contextlib.contextmanager
    def context(x):
        yield x

    @functools.singledispatch
    def dispatched(x):
        return x

    color = enum.Enum("Color", "RED BLUE")
    recursive = [1]
    recursive.append(recursive)
    return {
        "dataclass": Config(), "class": Config, "field": dataclasses.fields(Config), "regex": re.compile(r"\d"),
        "ufunc": np.sqrt, "union": int | str, "alias": list[int], "proxy": types.MappingProxyType({"a": 1}),
        "dispatch": dispatched, "lru_cache": remembered, "context": context, "enum": color.RED,
        "named tuple": collections.namedtuple("Pair", "x y")(1, 2),  # noqa: PYI024
        "deque": collections.deque([1], 5),
        "default dict": collections.defaultdict(list, {1: [2]}), "getter": operator.itemgetter(1, 2),
        "time": dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc), "decimal": decimal.Decimal("1.5"),
        "uuid": uuid.UUID(int=3), "logger": logging.getLogger("x"), "random": random.Random(3),
        "generator": np.random.default_rng(3), "torch generator": torch.Generator(), "device": torch.device("cpu"),
        "module": torch.nn.Linear(2, 3), "parameter": torch.nn.Parameter(torch.zeros(3)),
        "sparse": torch.eye(3).to_sparse(), "conjugate": torch.ones(3, dtype=torch.complex64).conj(),
        "bfloat16": torch.zeros(3, dtype=torch.bfloat16), "one row": torch.zeros(1, 5)[:, 0],
        "meta": torch.zeros(3, device="meta"), "masked": np.ma.array([1, 2], mask=[0, 1]),
        "objects": np.array([1, "a", None], object), "strings": np.array(["a", "b"]), "string": np.str_("a"),
        "record": np.zeros(2, [("a", "i4"), ("b", "f8")]), "dtype": np.dtype("f4"), "lock": threading.Lock(),
        "event": threading.Event(), "weak": weakref.WeakKeyDictionary(), "method": "abc".upper,
        "error": ValueError("x"),
        "recursive": recursive, "set of classes": {Config, int, color}, "slice": slice(1, 2), "sentinel": object(),
        "library module": torch.nn, "library function": torch.nn.functional.relu, "bytearray": bytearray(b"a"),
    }  # fmt: skip


@pytest.mark.parametrize("kind", values_of_many_kinds())
def test_values_of_many_kinds_can_be_referred_to(kind):
    value = values_of_many_kinds()[kind]

    def function(x, y=0):
        return x, y, type(value).__name__

    f = nbloader.cached(function)
    assert f(1) == f(1)
    assert counts() == (1, 1)
    if kind not in ("lock", "event", "weak"):  # their types can be pickled; they cannot
        again = nbloader.cached(lambda _x: 0)
        again(value)
        again(value)
        assert counts() == (2, 2)


def test_keys_in_a_worker_are_those_of_the_notebook(tmp_path):
    """Functions and classes of the notebook travel by value."""
    script = """
import collections, contextlib, dataclasses, enum, functools, pickle, subprocess, sys, typing
import numpy as np, torch
from nbloader.batch.pickling import dump
from nbloader.cache.digest import Walk
def digest(value):
    walk = Walk()
    walk.visit(value)
    return walk.digest()
if __name__ == "__main__":
    @dataclasses.dataclass
    class Config:
        names: list = dataclasses.field(default_factory=list)
    class Color(enum.Enum):
        RED = 1
    T = typing.TypeVar("T")
    class Base(typing.Generic[T]):
        table = {"x": {Config, int, "a"}}
        def __init__(self): self.x = 1
    class Net(torch.nn.Module):
        def __init__(self): super().__init__()
        def forward(self, x): return x
    class Sub(Base[int]):
        def run(self, x): return super().run(x), Config(), Color.RED, Net
    @contextlib.contextmanager
    def context(x): yield x
    @torch.no_grad()
    def f(x, flags=frozenset(["u", "v"]), pair=collections.namedtuple("Pair", "x y")(1, 2)):
        with context(x):
            return Sub().run(x), np.fft.fft, f, instance.x, functools.partial(context, 1)
    instance = Sub()
    before = digest(f)
    data = pickle.dumps((dump(f, None), before))
    assert digest(f) == before
    code = "import script, pickle, sys; d, b = pickle.load(sys.stdin.buffer); " \\
        "assert script.digest(pickle.loads(d)) == b"
    subprocess.run([sys.executable, "-c", code], input=data, check=True)
"""
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr


# ---- outside --------------------------------------------------------------------------------------------------------


def outside(row, tmp_path, monkeypatch):
    """Return a function whose result changes although its key does not, and the change."""
    path = tmp_path / "data.txt"
    path.write_text("1")
    holder = types.SimpleNamespace(value=1)
    monkeypatch.setitem(sys.modules, "hidden", types.ModuleType("hidden"))
    sys.modules["hidden"].holder = holder
    folder = tmp_path.parts

    def in_a_folder():
        return pathlib.Path(*folder, "data.txt").read_text()

    def computed_name():
        return getattr(sys.modules["hid" + "den"], "hol" + "der").value

    def environment():
        return os.environ.get("NBLOADER_TEST_VALUE")

    def package_setting():
        return np.get_printoptions()["precision"]

    return {
        "Files whose path": (in_a_folder, lambda: path.write_text("2")),
        "Names that": (computed_name, lambda: setattr(holder, "value", 2)),
        "Environment variables": (environment, lambda: monkeypatch.setenv("NBLOADER_TEST_VALUE", "2")),
        "Settings of packages": (package_setting, lambda: np.set_printoptions(precision=3)),
    }[row]


@pytest.mark.parametrize("row", ["Files whose path", "Names that", "Environment variables", "Settings of packages"])
def test_what_is_outside_stands_in_the_docstring(row, tmp_path, monkeypatch):
    assert f"\n    - {row}" in nbloader.cached.__doc__
    function, change = outside(row, tmp_path, monkeypatch)
    f = nbloader.cached(function)
    precision = np.get_printoptions()["precision"]
    try:
        before = f()
        change()
        assert f.__wrapped__() != before
        assert f() == before
    finally:
        np.set_printoptions(precision=precision)


MEMO = """\
import nbloader
KEPT = {{}}
CONFIG = {{"scale": 2}}
{other}
def load(i):
    if i not in KEPT:
        KEPT[(i, 0)[0]] = i * CONFIG["scale"]
    return KEPT[i]
@nbloader.cached
def f(i):
    return load(i) + 1
"""


@pytest.mark.parametrize(
    ("other", "kept"),
    [
        ("", True),
        ("def set_up(i, value):\n    KEPT[i] = value", False),
        ("class Settings:\n    def set_up(self, i, value):\n        KEPT[i] = value", False),
    ],
)
@pytest.mark.filterwarnings("ignore:nbloader does not keep results of the cached function f")
def test_a_dict_in_which_one_function_keeps_results_is_not_compared(other, kept):
    """If others fill it as well, it is a setting, and nothing is kept while it changes."""
    assert "\n    - A dict that only one function" in nbloader.cached.__doc__
    names = {"__name__": "__main__"}
    exec(compile(MEMO.format(other=other), "<memo>", "exec"), names)
    assert [names["f"](1), names["f"](1)] == [3, 3]
    assert process_cache.gauge().hits == kept
    names["CONFIG"]["scale"] = 5
    names["KEPT"].clear()
    assert names["f"](1) == 6, "what it only reads is compared"
