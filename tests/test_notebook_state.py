"""Workers are the notebook as it is: programs that need more of it than a pickle of the dataset holds.

Each program is run as a cell of a notebook, in a `__main__` of its own. The samples of its `dataset` are 0 to 5. The
programs come from reports about loaders that start workers as new interpreters.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
import types

import numpy as np
import pytest
from datasets import all_pids, flat, pids, wait_for, zygotes

from nbloader import DataLoader
from nbloader._platform import CAN_FORK

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="needs Linux and os.pidfd_open")
SIX = list(range(6))
DATASET = """
class Data:
    def __len__(self):
        return 6
    def __getitem__(self, i):
        return {}
"""


def data(sample):
    """The code of the dataset, to be inserted into a program."""
    return textwrap.indent(DATASET.format(sample), " " * 8).lstrip()


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Runs cells in a new `__main__`, in a new folder. What they import and change of `sys` is undone."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    with contextlib.ExitStack() as undo:
        vars(main)["undo"] = undo.callback

        def cell(code):
            exec(compile(textwrap.dedent(code), "<cell>", "exec"), vars(main))
            return main

        yield cell
    for name in set(sys.modules) - before:
        if os.fspath(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


CANNOT_BE_REBUILT = {
    "a wrapper that passes unknown attributes on": """
        class Base:
            def __len__(self):
                return 6

        class Wrapper:
            def __init__(self, inner):
                self.inner = inner
            def __getattr__(self, name):
                return getattr(self.inner, name)
            def __len__(self):
                return len(self.inner)
            def __getitem__(self, i):
                return i

        dataset = Wrapper(Base())
    """,
    "a module that was loaded from a path": f"""
        import importlib.util, pathlib, sys
        pathlib.Path("config.py").write_text({DATASET.format("i")!r})
        spec = importlib.util.spec_from_file_location("config_of_experiment", "config.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["config_of_experiment"] = module
        spec.loader.exec_module(module)
        undo(sys.modules.pop, "config_of_experiment")
        dataset = module.Data()
    """,
    "a module that was made from text": f"""
        import types
        module = types.ModuleType("written_by_a_tool")
        exec({DATASET.format("i")!r}, vars(module))
        dataset = module.Data()
    """,
    "a change of folder after the import": f"""
        import os, pathlib, sys
        pathlib.Path("project").mkdir()
        pathlib.Path("project/helpers.py").write_text({DATASET.format("i")!r})
        sys.path.insert(0, "")
        os.chdir("project")
        from helpers import Data
        os.chdir("..")
        dataset = Data()
    """,
    "a path that was taken from sys.path": f"""
        import pathlib, sys
        pathlib.Path("lib").mkdir()
        pathlib.Path("lib/from_elsewhere.py").write_text({DATASET.format("i")!r})
        sys.path.insert(0, "lib")
        from from_elsewhere import Data
        sys.path.remove("lib")
        dataset = Data()
    """,
    "a file that is gone": f"""
        import pathlib, sys
        pathlib.Path("gone.py").write_text({DATASET.format("i")!r})
        sys.path.insert(0, "")
        from gone import Data
        pathlib.Path("gone.py").unlink()
        dataset = Data()
    """,
    "an archive that is gone": f"""
        import pathlib, sys, zipfile
        with zipfile.ZipFile("library.zip", "w") as archive:
            archive.writestr("zipped.py", {DATASET.format("i")!r})
        sys.path.insert(0, "library.zip")
        from zipped import Data
        pathlib.Path("library.zip").unlink()
        dataset = Data()
    """,
    "a function with a cache": f"""
        import functools
        @functools.lru_cache(maxsize=None)
        def table(k):
            return k
        {data("table(i)")}
        dataset = Data()
    """,
    "weak references": f"""
        import weakref
        class Item:
            pass
        items = [Item() for _ in range(6)]
        numbers = weakref.WeakKeyDictionary((item, i) for i, item in enumerate(items))
        {data("numbers[items[i]]")}
        dataset = Data()
        dataset.numbers, dataset.items = numbers, items
    """,
    "__new__ with arguments": f"""
        class Path(str):
            def __new__(cls, folder, name):
                self = super().__new__(cls, f"{{folder}}/{{name}}")
                self.folder = folder
                return self
        {data("int(self.paths[i][-1])")}
        dataset = Data()
        dataset.paths = [Path("a", i) for i in range(6)]
    """,
    "an exception with two arguments": f"""
        class Rejected(Exception):
            def __init__(self, number, *, reason):
                super().__init__(f"{{number}}: {{reason}}")
                self.number = number
        {data("self.kept[i].number")}
        dataset = Data()
        dataset.kept = [Rejected(i, reason="blurred") for i in range(6)]
    """,
    "the number of an open file": f"""
        import os, pathlib
        pathlib.Path("digits").write_text("012345")
        fd = os.open("digits", os.O_RDONLY)
        undo(os.close, fd)
        {data("int(os.pread(self.fd, 1, i))")}
        dataset = Data()
        dataset.fd = fd
    """,
    "an address in memory": f"""
        import ctypes
        buffer = ctypes.create_string_buffer(bytes(range(6)))
        {data("ctypes.string_at(self.address + i, 1)[0]")}
        dataset = Data()
        dataset.address = ctypes.addressof(buffer)
    """,
    "a C type without __module__": f"""
        import gc
        class CType:
            pass
        next(d for d in gc.get_referents(CType.__dict__) if isinstance(d, dict)).pop("__module__")
        {data("i")}
        dataset = Data()
        dataset.held = CType
    """,
}
OF_MAIN = {
    "samples that were pickled in a cell": f"""
        import pickle
        class Sample:
            def __init__(self, x):
                self.x = x
        {data("pickle.loads(self.stored[i]).x")}
        dataset = Data()
        dataset.stored = [pickle.dumps(Sample(i)) for i in range(6)]
    """,
    "globals()": f"""
        def double(x):
            return 2 * x
        {data("globals()[self.name](i) // 2")}
        dataset = Data()
        dataset.name = "double"
    """,
    "eval": f"""
        def double(x):
            return 2 * x
        {data("eval(self.text) // 2")}
        dataset = Data()
        dataset.text = "double(i)"
    """,
    "a query with a global": f"""
        import pandas
        threshold = 100
        {data('int(self.frame.query("i < @threshold").i[i])')}
        dataset = Data()
        dataset.frame = pandas.DataFrame({{"i": range(6)}})
    """,
    "a class by its name": f"""
        import sys
        class Identity:
            def __call__(self, x):
                return x
        {data("getattr(sys.modules[__name__], self.name)()(i)")}
        dataset = Data()
        dataset.name = "Identity"
    """,
    "an import of __main__": f"""
        setting = 3
        {data('i * __import__("importlib").import_module("__main__").setting // 3')}
        dataset = Data()
    """,
    "types that are named in annotations": f"""
        import typing
        class Number(int):
            pass
        class Record:
            x: "Number"
        {data('typing.get_type_hints(self.record)["x"](i)')}
        dataset = Data()
        dataset.record = Record
    """,
}
OUTSIDE_THE_DATASET = {
    "a plugin of Pillow": f"""
        import io
        from PIL import Image, ImageFile
        class DotFile(ImageFile.ImageFile):
            format = "DOT"
            def _open(self):
                self.fp.read(4)
                self._size, self._mode = (1, 1), "L"
                self.tile = [("raw", (0, 0, 1, 1), 4, ("L", 0, 1))]
        Image.register_open("DOT", DotFile, lambda prefix: prefix[:4] == b"DOT!")
        undo(lambda: (Image.OPEN.pop("DOT"), Image.ID.remove("DOT")))
        {data('Image.open(io.BytesIO(b"DOT!" + bytes([i]))).getpixel((0, 0))')}
        dataset = Data()
    """,
    "a setting in a module of the project": f"""
        import pathlib, sys
        pathlib.Path("project_config.py").write_text({'CONFIG = {"size": -1}' + DATASET.format('CONFIG["size"] * i')!r})
        sys.path.insert(0, "")
        import project_config
        project_config.CONFIG["size"] = 1
        dataset = project_config.Data()
    """,
    "an accessor of pandas": f"""
        import pandas
        @pandas.api.extensions.register_dataframe_accessor("loans")
        class Loans:
            def __init__(self, frame):
                self.frame = frame
            def get(self, i):
                return int(self.frame.x[i])
        undo(delattr, pandas.DataFrame, "loans")
        undo(pandas.DataFrame._accessors.discard, "loans")
        {data("self.frame.loans.get(i)")}
        dataset = Data()
        dataset.frame = pandas.DataFrame({{"x": range(6)}})
    """,
    "an accessor of xarray": f"""
        import pytest
        xarray = pytest.importorskip("xarray")
        @xarray.register_dataset_accessor("geo")
        class Geo:
            def __init__(self, data):
                self.data = data
            def get(self, i):
                return int(self.data.x[i])
        undo(delattr, xarray.Dataset, "geo")
        {data("self.data.geo.get(i)")}
        dataset = Data()
        dataset.data = xarray.Dataset({{"x": ("t", list(range(6)))}})
    """,
    "a patched library": f"""
        import functools, numpy
        undo(setattr, numpy, "load", numpy.load)
        numpy.load = functools.partial(numpy.load, allow_pickle=True)
        numpy.save("a.npy", numpy.array([{{"x": i}} for i in range(6)], dtype=object))
        {data('numpy.load("a.npy")[i]["x"]')}
        dataset = Data()
    """,
    "a method of loggers": f"""
        import logging, math
        def verbose(self, message, *arguments):
            self.log(15, message, *arguments)
        logging.Logger.verbose = verbose
        undo(delattr, logging.Logger, "verbose")
        def read(i):
            try:
                logging.getLogger("shots").verbose("shot %d", i)
                return float(i)
            except Exception:
                return math.nan
        {data("read(i)")}
        dataset = Data()
    """,
    "a codec": f"""
        import codecs
        def find(name):
            if name == "reversed_digits":
                return codecs.CodecInfo(None, lambda data, errors="strict": (bytes(data).decode()[::-1], len(data)))
        codecs.register(find)
        undo(codecs.unregister, find)
        {data('int((b"%d0" % i).decode("reversed_digits"))')}
        dataset = Data()
    """,
    "the precision of decimal": f"""
        import decimal
        undo(setattr, decimal.getcontext(), "prec", decimal.getcontext().prec)
        decimal.getcontext().prec = 2
        {data("i + int(decimal.Decimal(100) / 3 * 1000) - 33000")}
        dataset = Data()
    """,
}
PROGRAMS = CANNOT_BE_REBUILT | OF_MAIN | OUTSIDE_THE_DATASET


@pytest.mark.parametrize("program", PROGRAMS)
def test_workers_have_what_the_notebook_has(program, notebook):
    dataset = notebook(PROGRAMS[program]).dataset
    with DataLoader(dataset, 2, num_workers=2) as loader:
        assert flat(loader) == SIX
        assert flat(loader) == SIX


def test_batches_of_objects_for_which_the_notebook_has_registered_a_reducer(notebook):
    main = notebook(f"""
        import copyreg
        class KeyPoint:
            def __init__(self, x):
                self.x = x
            def __reduce_ex__(self, protocol):
                raise TypeError("cannot pickle 'KeyPoint' object")
        copyreg.pickle(KeyPoint, lambda point: (KeyPoint, (point.x,)))
        undo(copyreg.dispatch_table.pop, KeyPoint)
        {data("KeyPoint(i)")}
    """)
    with DataLoader(main.Data(), 2, num_workers=2, collate_fn=list) as loader:
        assert [point.x for batch in loader for point in batch] == SIX


# ---- the code that workers run

SOURCE = """
import time
def f(i):
    return {} * i
class Data:
    def __len__(self):
        return 200
    def __getitem__(self, i):
        time.sleep(0.002)
        return f(i)
"""


@pytest.fixture
def edited(notebook, tmp_path):
    """Saves a version of a module, which the notebook has imported."""

    def save(source):
        (tmp_path / "edited_module.py").write_text(source)

    save(SOURCE.format(1))
    notebook("import sys; sys.path.insert(0, ''); import edited_module")
    return save


def test_an_edited_module_is_used_from_the_next_epoch_on_when_the_notebook_reloads_it(notebook, edited):
    main = notebook("dataset = edited_module.Data()")
    with DataLoader(main.dataset, 20, num_workers=2) as loader:
        assert flat(loader) == list(range(200))
        edited(SOURCE.format(100))
        assert flat(loader) == list(range(200)), "the notebook has not reloaded it"
        notebook("""
            import importlib
            importlib.invalidate_caches()
            importlib.reload(edited_module)
            dataset.__class__ = edited_module.Data  # as %autoreload does
        """)
        assert flat(loader) == list(range(0, 20_000, 100))


def test_a_method_that_a_cell_replaces_is_used_from_the_next_epoch_on(notebook):
    main = notebook(DATASET.format("-1"))
    with DataLoader(main.Data(), 2, num_workers=2) as loader:
        assert flat(loader) == [-1] * 6
        notebook("Data.__getitem__ = lambda self, i: i")
        assert flat(loader) == SIX


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("text", [SOURCE.format(100), SOURCE.format(1) + "def half(:\n"], ids=["edited", "half-saved"])
def test_an_epoch_has_one_version_of_a_module_that_is_edited_meanwhile(text, persistent, notebook, edited):
    main = notebook("dataset = edited_module.Data()")
    with DataLoader(main.dataset, 4, num_workers=2, persistent_workers=persistent) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        edited(text)
        for pid in all_pids(loader):
            os.kill(pid, signal.SIGKILL)
        got += epoch
        assert flat(got) == list(range(200))
    with DataLoader(main.dataset, 4, num_workers=2) as loader:
        first = next(iter(loader))
        assert loader.replay(0, 0).batch.tolist() == first.tolist() == [0, 1, 2, 3]


def test_strings_have_the_same_hash_in_all_workers_and_after_a_fault():
    class Hashes:
        def __len__(self):
            return 200

        def __getitem__(self, i):
            return hash("abc"), list({"a", "b", "c", "d"})

    expected = hash("abc"), list({"a", "b", "c", "d"})
    with DataLoader(Hashes(), 4, num_workers=2, collate_fn=list) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        all_pids(loader)
        for process in zygotes(loader):
            process.kill()
        got += epoch
        assert len(got) == 50
        assert all(sample == expected for batch in got for sample in batch)
        assert list(loader.replay(0, 0).batch[0]) == list(expected)


# ---- work that torch does not do


def test_no_worker_imports_a_module_that_the_notebook_has_imported(notebook, tmp_path):
    """An import of some seconds would be repeated by each worker of each loader, and count against `timeout`."""
    (tmp_path / "my_data.py").write_text(f"with open('seen', 'a') as file:\n    file.write('x')\n{DATASET.format('i')}")
    main = notebook("import sys; sys.path.insert(0, ''); import my_data")
    for persistent in (False, True):
        with DataLoader(main.my_data.Data(), 2, num_workers=2, persistent_workers=persistent) as loader:
            assert flat(loader) == SIX
            assert flat(loader) == SIX
    assert (tmp_path / "seen").read_text() == "x"


@pytest.mark.parametrize("holder", [list, dict.fromkeys, lambda items: np.array(items, dtype=object)])
def test_no_epoch_pickles_or_copies_the_items_of_the_dataset(holder):
    """The time to begin an epoch does not depend on their number."""
    touched = []

    class Item:
        def __reduce_ex__(self, protocol):
            touched.append("pickled")
            return super().__reduce_ex__(protocol)

        def __deepcopy__(self, memo):
            touched.append("copied")
            return self

        __copy__ = __deepcopy__

    class Items:
        def __init__(self):
            self.items = holder([Item() for _ in range(100)])

        def __len__(self):
            return 6

        def __getitem__(self, i):
            return i + len(touched)

    with DataLoader(Items(), 2, num_workers=2) as loader:
        for _ in range(3):
            assert flat(loader) == SIX
    assert touched == []


# ---- positions of files


READERS = {
    "a zip archive": """
        import zipfile
        with zipfile.ZipFile("data.zip", "w") as archive:
            for i in range(200):
                archive.writestr(str(i), str(i) * 2000)
        reader = zipfile.ZipFile("data.zip")
        def read(i):
            return int(reader.read(str(i))[: len(str(i))])
    """,
    "a tar archive": """
        import io, tarfile
        with tarfile.open("data.tar", "w") as archive:
            for i in range(200):
                member = tarfile.TarInfo(str(i))
                member.size = 2000
                archive.addfile(member, io.BytesIO(b"%2000d" % i))
        reader = tarfile.open("data.tar")
        def read(i):
            return int(reader.extractfile(str(i)).read())
    """,
    "a raster": """
        import numpy, pytest
        rasterio = pytest.importorskip("rasterio")
        shape = {"width": 256, "height": 3200, "count": 1, "dtype": "int32"}
        tiles = {"tiled": True, "blockxsize": 256, "blockysize": 16, "compress": "deflate"}
        with rasterio.open("data.tif", "w", driver="GTiff", **shape, **tiles) as file:
            file.write(numpy.repeat(numpy.arange(200, dtype=numpy.int32), 16)[:, None].repeat(256, 1)[None])
        reader = rasterio.open("data.tif")
        def read(i):
            return int(reader.read(1, window=rasterio.windows.Window(0, 16 * i, 256, 16))[3, 3])
    """,
}


@pytest.mark.parametrize("kind", READERS)
def test_workers_that_read_from_one_open_file_do_not_disturb_each_other(kind, notebook):
    main = notebook(READERS[kind])
    notebook("""
        class Data:
            def __len__(self):
                return 200
            def __getitem__(self, i):
                return read(i)
    """)
    with main.reader, DataLoader(main.Data(), 4, num_workers=4) as loader:
        for _ in range(2):
            assert flat(loader) == list(range(200))


# ---- threads of the notebook


@pytest.mark.slow
@pytest.mark.parametrize("where", ["dataset.pool", "pool"], ids=["of the dataset", "of the notebook"])
def test_a_thread_pool_that_was_used_in_the_notebook(where, notebook, capsys):
    main = notebook(f"""
        import concurrent.futures
        {where.replace("dataset.", "")} = concurrent.futures.ThreadPoolExecutor(1)
        undo(pool.shutdown)
        {data("sum(" + where.replace("dataset", "self") + ".map(int, [i, 0]))")}
        dataset = Data()
        {where} = pool
        assert dataset[3] == 3
    """)
    with DataLoader(main.dataset, 2, num_workers=2) as loader:
        assert flat(loader) == SIX
        assert flat(loader) == SIX
        wait_for(lambda: not pids(loader) or all_pids(loader))
    said = capsys.readouterr()
    assert (said.out + said.err).count('multiprocessing_context="forkserver"') == 1
