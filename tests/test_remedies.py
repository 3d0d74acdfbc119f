"""What to write instead of slow lines: recognized in the code, tried on samples in a spare worker."""

from __future__ import annotations

import ast
import collections
import contextlib
import copy
import functools
import gzip
import http.server
import io
import itertools
import json
import multiprocessing
import os
import random
import re
import sqlite3
import sys
import tarfile
import textwrap
import threading
import time
import types
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import run_script
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import nbloader
from nbloader.diagnose.what_if import Prediction
from nbloader.events.stack_samples import CodeLine, StackCount
from nbloader.loader.remedy_search import Samples, Scout, _limit, _rank, _saved, _to_merge, results_of, search
from nbloader.metrics.hot_lines import HotLine, HotLines, find_hot_lines
from nbloader.remedies.advice import Advice, short_advice
from nbloader.remedies.calls import cached_calls, measure_calls
from nbloader.remedies.changed_lines import changed_lines
from nbloader.remedies.difference import difference
from nbloader.remedies.free_names import with_free_names
from nbloader.remedies.kept_samples import Held
from nbloader.remedies.kinds import REMEDIES
from nbloader.remedies.kinds.filtered_frame import HELPER as ROWS_WITH
from nbloader.remedies.no_remedy import why_none
from nbloader.remedies.pasted import is_pasted
from nbloader.remedies.pictures import pictures_of, size_of
from nbloader.remedies.results import Remedies, RemedyResult, best_of, without_lesser
from nbloader.remedies.site import UNKNOWN, Edit, Facts, locate, site_of
from nbloader.remedies.threads import VARIABLES, blas_threads
from nbloader.remedies.trial import CannotTryError, Cost, Kept, Measured, code_of

pd = pytest.importorskip("pandas")
BY_NAME = {remedy.name: remedy for remedy in REMEDIES}


def line_of(function, number, file=None):
    """A hot line of a function, `number` lines below its first one."""
    code = function.__code__
    name = getattr(code, "co_qualname", function.__qualname__)
    return HotLine(
        share=0.9, computing=0.9, waiting=0.0, total=0.9, source="", place="here:1", function=name,
        file=file or code.co_filename, line=code.co_firstlineno + number,
    )  # fmt: skip


def defined(tmp_path, source, **names):
    """The function `f` of a module with this source."""
    path = tmp_path / "module.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    module = types.ModuleType("module")
    module.__dict__.update(names)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module.__dict__["f"]


def sites(function, picture=None, owner=None, facts=None):
    """All lines of a function as sites."""
    facts = facts or Facts(picture)
    first = site_of(function, line_of(function, 0), facts, owner)
    lines = range(len(first.source.splitlines()))
    return [site_of(function, line_of(function, number), facts, owner) for number in lines]


def proposals(name, function, picture=None, owner=None, facts=None):
    """What a remedy proposes for any line of a function."""
    found = [p for site in sites(function, picture, owner, facts) for p in BY_NAME[name].propose(site)]
    assert all(p.short or p.untried for p in found), "what is tried has words"
    return list(dict.fromkeys(found))


def changes(name, function):
    """What a remedy proposes for any line of a function, once for each way to write it."""
    return list({proposal.code: proposal for proposal in proposals(name, function)}.values())


def rewritten(function, proposal):
    """A copy of a function that runs the proposed code."""
    code = code_of(function, proposal)
    return types.FunctionType(code, function.__globals__, "f", function.__defaults__, function.__closure__)


def of_arrays(function):
    """What is proposed for the loops of a function, except to compile them."""
    return [one for one in proposals("python-loop", function) if "import numba" not in one.helper]


@pytest.fixture
def files(tmp_path):
    """A folder with one file of each kind."""
    pixels = np.kron(np.random.default_rng(0).integers(0, 256, (30, 40, 3)), np.ones((20, 20, 1))).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=90)
    (tmp_path / "a.json").write_text(json.dumps({"x": [1.5, 2.0], "y": "é"}), encoding="utf-8")
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(10))
    np.save(tmp_path / "a.npy", np.arange(40).reshape(10, 4))
    pd.DataFrame({"x": [1, 2], "y": ["a", "b"]}).to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "a.gz").write_bytes(gzip.compress("first\nsecond é\n".encode()))
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "a.json", "a.json")
    return tmp_path


SAME = {
    "npz member": ("read-each-time", "import numpy\ndef f(p):\n    return numpy.load(p + '/a.npz')['x'] + 1", ()),
    "csv": ("read-each-time", "import pandas as q\ndef f(p):\n    return q.read_csv(p + '/a.csv')['x'].sum()", ()),
    "listdir": ("listing", "import os\ndef f(p):\n    return sorted(os.listdir(p))[0]", ()),
    "listdir, renamed": ("listing", "from os import listdir as names\ndef f(p):\n    return sorted(names(p))[0]", ()),
    "glob": ("listing", "from glob import glob\ndef f(p):\n    return len(glob(p + '/*.jp*'))", ()),
    "tensor of array": (
        "array-to-tensor", "import torch, numpy as np\ndef f(p):\n    return torch.tensor(np.arange(5.0))", (),
    ),
    "tensor with dtype": (
        "array-to-tensor", "import torch\ndef f(p):\n    return torch.tensor([1, 2], dtype=torch.float64)", (),
    ),
    "tensor of a type": (
        "array-to-tensor",
        "import torch\ndef f(p):\n    return torch.LongTensor([1, 2**40]), {'mask': torch.BoolTensor([1, 0])}", (),
    ),
    "tensor of an array of its type": (
        "array-to-tensor", "import torch, numpy as np\ndef f(p):\n    return torch.FloatTensor(np.ones(3, 'f'))", (),
    ),
    "deepcopy": ("deep-copy", "from copy import deepcopy\ndef f(p):\n    return deepcopy({'a': [1, 2]})", ()),
    "print": ("printing", "def f(p):\n    for k in range(2):\n        print('é', k)\n    return k", ()),
    "row": (
        "pandas-row",
        "def f(p, d=None):\n    row = frame.iloc[1]\n    return row['x'], row['y']",
        {"frame": {"x": [1, 2], "y": ["a", "b"]}},
    ),
    "row values": ("pandas-row", "def f(p):\n    return frame.iloc[1].values", {"frame": {"x": [1, 2], "z": [3, 4]}}),
    "row of a column": ("pandas-row", "def f(p):\n    return frame['x'].iloc[1]", {"frame": {"x": [1, 2]}}),
    "parts of a row": (
        "pandas-row",
        """\
        names = ["x", "z"]
        def f(p):
            row = frame.iloc[1]
            scaled = (row[names] - mean) / 2
            return [float(v) for v in scaled], row["y"]
        """,
        {"frame": {"x": [1, 2], "y": ["a", "b"], "z": [0.5, 2]}, "mean": np.array([1.0, 2.0])},
    ),
    "rows of a file": (
        "csv-rows",
        "def f(p, start=1):\n    return pd.read_csv(p + '/a.csv', skiprows=range(1, start + 1), nrows=1).to_dict()",
        {"pd": pd},
    ),
    "rows of a file without names": (
        "csv-rows",
        "def f(p, start=1):\n    return pd.read_csv(p + '/a.csv', header=None, skiprows=start, nrows=1)[1].tolist()",
        {"pd": pd},
    ),
    "padding of arrays": (
        "python-padding",
        """\
        def f(p):
            rows, n, zero = [np.eye(1, 3), np.eye(2, 3)], 2, [0.0] * 3
            padded = [r.tolist() + [zero] * (n - len(r)) for r in rows]
            return torch.tensor(padded).double(), len(padded)
        """,
        {"torch": torch, "np": np},
    ),
    "padding": (
        "python-padding",
        "def f(p):\n    rows, n = [[1], [2, 3]], 2\n    return torch.tensor([r + [0] * (n - len(r)) for r in rows])",
        {"torch": torch, "np": np},
    ),
    "padding loop": (
        "python-padding",
        """\
        def f(p):
            out = torch.zeros(2, 3)
            for i, row in enumerate([[1, 2, 3], [4]]):
                for j, value in enumerate(row):
                    out[i, j] = value
            return out
        """,
        {"torch": torch},
    ),
    "opened": (
        "opened-each-time",
        """\
        import zipfile
        def f(p):
            with zipfile.ZipFile(p + "/a.npz") as archive:
                return archive.namelist()
        """,
        (),
    ),
    "iterdir": ("listing", "import pathlib\ndef f(p):\n    return min(pathlib.Path(p).iterdir())", ()),
    "scandir": ("listing", "import os\ndef f(p):\n    return sorted(e.name for e in os.scandir(p))", ()),
    "gzip": (
        "compressed-stream",
        """\
        import gzip
        def f(p):
            with gzip.open(p + "/a.gz", "rt", encoding="utf-8") as lines:
                lines.seek(3)
                return lines.readline()
        """,
        (),
    ),
    "tar.gz": (
        "compressed-stream",
        """\
        import tarfile
        def f(p):
            archive = tarfile.open(p + "/a.tar.gz", "r:gz")
            return archive.extractfile("a.json").read()
        """,
        (),
    ),
    "expressions": (
        "regular-expressions",
        """\
        import re as regex
        def f(p):
            text = regex.sub(r"[aeiou]+", "-", regex.sub("q", "", "A quiet place"), flags=regex.I)
            return text, regex.compile("q").findall(text), [regex.sub(w, "", text) for w in ("q", "t")]
        """,
        (),
    ),
    "numbers": (
        "numbers-one-by-one", "def f(p):\n    return [x.item() for x in torch.arange(3.0)]", {"torch": torch},
    ),
    "floats": ("numbers-one-by-one", "import numpy as np\ndef f(p):\n    return [float(x) for x in np.arange(3)]", ()),
    "pixels": (
        "picture-round-trip",
        """\
        import numpy as np
        from PIL import Image
        def f(p):
            picture = Image.open(p + "/a.jpg").copy()
            return np.array(picture.getdata(), dtype=np.uint8).reshape(picture.height, picture.width, 3)
        """,
        (),
    ),
    "gray pixels": (
        "picture-round-trip",
        """\
        import numpy as np
        from PIL import Image
        def f(p):
            return np.array(list(Image.open(p + "/a.jpg").convert("L").getdata()))
        """,
        (),
    ),
    "there and back": (
        "picture-round-trip",
        """\
        import numpy as np
        from PIL import Image
        def f(p):
            picture = Image.open(p + "/a.jpg").convert("RGB")
            return np.array(Image.fromarray(np.array(picture)).resize((20, 20)))
        """,
        (),
    ),
    "part of an array": (
        "whole-array", "import numpy as np\ndef f(p):\n    return np.load(p + '/a.npy')[3:5, 1:2]", (),
    ),
    "part of an array, in two lines": (
        "whole-array", "import numpy as np\ndef f(p):\n    rows = np.load(p + '/a.npy')\n    return rows[3:5]", (),
    ),
    "the middle of an array": (
        "whole-array", "import numpy as np\ndef f(p):\n    x = np.load(p + '/a.npy')\n    return x[len(x) // 2]", (),
    ),
    "row without a column": (
        "pandas-row",
        """\
        def f(p):
            row = frame.iloc[1]
            return row["y"], row.drop("y").values.astype("float32")
        """,
        {"frame": {"x": [1.5, 2.5], "z": [3, 4], "y": ["a", "b"]}},
    ),
    "lock": (
        "lock-held",
        """\
        import json, threading
        lock = threading.Lock()
        def f(p):
            with lock:
                with open(p + "/a.json", encoding="utf-8") as file:
                    text = file.read()
                values = {
                    "all": json.loads(text),
                }
                return values
        """,
        (),
    ),
}  # fmt: skip


PAGES = {
    "a page": ("return imread(p)[k]", True),
    "the last page": ("return tifffile.imread(p)[-1]", True),
    "a part of a page": ("return imread(p)[k, 2:5][:, 1]", True),
    "a page, in two lines": ("volume = imread(p)\n    return volume[k]", True),
    "two pages and a number that is known later": (
        "if k:\n        volume = imread(p)\n        n = k - 1\n        return volume[n] + volume[k]", True,
    ),
    "a slice": ("return imread(p)[k : k + 1]", False),
    "all pages": ("return imread(p).sum(0)", False),
    "the number of pages": ("volume = imread(p)\n    return volume[len(volume) // 2]", False),
    "another path later": ("volume = imread(p)\n    p = k\n    return volume[p]", False),
    "pages that share memory, of which one is changed": (
        "volume = imread(p)\n    a = volume[k]\n    a[0] = 0\n    return a, volume[k]", False,
    ),
    "pages of which each is changed": (
        "volume = imread(p)\n    for n in (k, k):\n        a = volume[n].reshape(-1)\n        a += 1\n    return a",
        False,
    ),
    "errors that are handled": (
        "try:\n        n = 0\n        volume = imread(p)\n    except OSError:\n        n = 1\n    return volume[k]",
        False,
    ),
    "a random path": ("n = 0\n    volume = imread(random.choice([p, p]))\n    return volume[k], volume[0]", False),
    "an attribute that changes": (
        "n = 0\n    volume = imread(p.path)\n    p.path = ''\n    return volume[k]", False,
    ),
    "a volume that is changed": ("volume = imread(p)\n    volume[k] = 0\n    return volume[k]", False),
}  # fmt: skip
"""What a function does with a TIFF file, and whether it needs only some of its pages."""


@pytest.mark.parametrize("case", PAGES)
def test_only_the_pages_of_a_tiff_file_that_are_needed_are_read(case, tmp_path):
    tifffile = pytest.importorskip("tifffile")
    body, found = PAGES[case]
    path = str(tmp_path / "a.tif")
    tifffile.imwrite(path, np.arange(240, dtype=np.uint16).reshape(4, 6, 10), photometric="minisblack")
    function = defined(
        tmp_path, f"import random\nimport tifffile\nfrom tifffile import imread\ndef f(p, k):\n    {body}"
    )
    pages = changes("tiff-pages", function)
    assert len(pages) == found
    for proposal in pages:
        assert "volume" not in proposal.code
        assert difference(function(path, 2), rewritten(function, proposal)(path, 2)).equal
    if "return imread(p)[k]" in body:
        assert "return imread(p, key=int(k), series=0)\n" in pages[0].code + "\n"


@pytest.mark.parametrize("page", [0, 1, -1, np.int64(1)])
def test_a_page_is_one_of_the_series_that_is_read(page, tmp_path):
    tifffile = pytest.importorskip("tifffile")
    path = str(tmp_path / "a.tif")
    volume = np.arange(240, dtype=np.uint16).reshape(4, 6, 10)
    with tifffile.TiffWriter(path) as file:  # pages that are compressed in another way are a series of their own
        for n, data in enumerate(volume):
            file.write(data, compression="zlib" if n in (1, 3) else None, metadata=None)
    function = defined(tmp_path, "import tifffile\ndef f(p, k):\n    return tifffile.imread(p)[k]")
    (proposal,) = changes("tiff-pages", function)
    assert difference(function(path, page), rewritten(function, proposal)(path, page)).equal


def test_a_list_of_pages_is_refused(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    path = str(tmp_path / "a.tif")
    tifffile.imwrite(path, np.zeros((4, 6, 10), np.uint16), photometric="minisblack")
    function = defined(tmp_path, "import tifffile\ndef f(p, k):\n    return tifffile.imread(p)[k]")
    (proposal,) = changes("tiff-pages", function)
    with pytest.raises(TypeError):
        rewritten(function, proposal)(path, [1])


DATASETS = {
    "[:]": ("with h5py.File(p) as file:\n        return file['x'][:][k]", True),
    "[()] of a path": ("return h5py.File(p)['x'][()][k]", True),
    "in two lines": ("with h5py.File(p) as file:\n        x = file['x'][:]\n        return x[len(x) - k]", True),
    "after the file is closed": ("with h5py.File(p) as file:\n        x = file['x'][:]\n    return x[k]", False),
    "all rows": ("with h5py.File(p) as file:\n        return file['x'][:].sum()", False),
    "a part of rows": ("with h5py.File(p) as file:\n        return file['x'][:][k - 2 : -1, -1]", True),
    "rows in the opposite order": ("with h5py.File(p) as file:\n        return file['x'][:][k::-1]", False),
    "a list of rows": ("with h5py.File(p) as file:\n        return file['x'][:][[k, 0]]", False),
    "a new axis": ("with h5py.File(p) as file:\n        return file['x'][:][k, None]", False),
    "a file that is closed": ("file = h5py.File(p)\n    x = file['x'][:]\n    file.close()\n    return x[k]", False),
    "a file that is written": (
        "with h5py.File(p, 'a') as file:\n        x = file['x'][:]\n        file['x'][k] += 1\n        return x[k]",
        False,
    ),
    "rows that are read later": (
        "with h5py.File(p) as file:\n        x = file['x'][:]\n        return (x[n] for n in range(k))",
        False,
    ),
    "rows that share memory, of which one is changed": (
        (
            "with h5py.File(p) as file:\n        x = file['x'][:]\n        a = x[:k]\n        a -= 1\n"
            "        return a, x[0]"
        ),
        False,
    ),
    "rows that share no memory": (
        (
            "with h5py.File(p) as file:\n        x = file['x'][:]\n        a = x[:k] / 2\n"
            "        a -= 1\n        return x[0] + a"
        ),
        True,
    ),
    "another array": ("return np.arange(9)[:][k]", False),
}


@pytest.mark.parametrize("case", DATASETS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_only_the_part_of_an_hdf5_dataset_that_is_needed_is_read(case, tmp_path):
    h5py = pytest.importorskip("h5py")
    body, found = DATASETS[case]
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(40).reshape(10, 4))
    function = defined(tmp_path, f"import h5py\nimport numpy as np\ndef f(p, k):\n    {body}")
    parts = changes("hdf5-whole", function)
    assert len(parts) == found
    for proposal in parts:
        assert "[:]" not in proposal.code
        assert difference(function(path, 3), rewritten(function, proposal)(path, 3)).equal
        if body.endswith("[k]"):
            with pytest.raises(TypeError):  # h5py would need sorted ones
                rewritten(function, proposal)(path, [3, 1])


@pytest.mark.parametrize(
    "body",
    [
        "return np.load(p)[k]",
        "x = np.load(p)\n    return x[k] + x[k - 1]",
        "return np.load(p)[k, 0]",
        "return np.load(p)[k:, 0]",
    ],
)
def test_a_number_of_a_mapped_file_remains_a_number(body, tmp_path):
    path = str(tmp_path / "a.npy")
    np.save(path, np.arange(12.0).reshape((4, 3) if ", 0]" in body else 12))
    function = defined(tmp_path, f"import numpy as np\ndef f(p, k):\n    {body}")
    (proposal,) = changes("whole-array", function)
    usual, made = function(path, 1), rewritten(function, proposal)(path, 1)
    assert type(made) is type(usual)
    assert difference(usual, made).equal


def test_parts_of_a_mapped_file_that_share_memory_are_left_alone(tmp_path):
    body = "x = np.load(p)\n    if k == 77:\n        x[0][:4] = 0\n    return x[0]"
    assert changes("whole-array", defined(tmp_path, f"import numpy as np\ndef f(p, k):\n    {body}")) == []


COLUMNS = {
    "one": ("return pd.read_parquet(p)['x']", '["x"]'),
    "several": ("return pd.read_parquet(p)[['y', 'x']]", '["y", "x"]'),
    "in two lines": ("d = pd.read_parquet(p)\n    return d['x'] + d['z'] + len(d['x'])", '["x", "z"]'),
    "a global variable": ("return pd.read_parquet(p)[NAMES]", "NAMES"),
    "named already": ("return pd.read_parquet(p, columns=['x', 'y'])['x']", ""),
    "rows": ("d = pd.read_parquet(p)\n    return d.iloc[1]['x']", ""),
    "a condition": ("d = pd.read_parquet(p)\n    return d[d['x'] > 1]", ""),
    "a new column": ("d = pd.read_parquet(p)\n    d['x'] = 2\n    return d['x']", ""),
    "columns that some files lack": ("d = pd.read_parquet(p)\n    x = d['x']\n    return d['z'] if x[0] else x", ""),
    "a column of which the absence is handled": (
        (
            "d = pd.read_parquet(p)\n    x = d['x']\n    try:\n        return d['z']\n"
            "    except KeyError:\n        return x"
        ),
        "",
    ),
    "a column after a return": (
        "d = pd.read_parquet(p)\n    if len(d['x']) == 5:\n        return None\n    return d['z']",
        "",
    ),
    "one column, also under a condition": (
        "d = pd.read_parquet(p)\n    x = d['x']\n    return d['x'] if 1 else x",
        '["x"]',
    ),
    "the number of columns": ("d = pd.read_parquet(p)\n    return d['x'], d.shape", ""),
}
"""What a function does with a Parquet file, and the columns that it needs."""


@pytest.mark.parametrize("case", COLUMNS)
def test_only_the_columns_of_a_parquet_file_that_are_needed_are_read(case, tmp_path, monkeypatch):
    body, columns = COLUMNS[case]

    def read(path, columns=None):
        """Stands for pandas.read_parquet, which needs pyarrow."""
        frame = pd.read_csv(path)
        return frame if columns is None else frame[columns]

    monkeypatch.setattr(pd, "read_parquet", read)
    path = str(tmp_path / "a.csv")
    pd.DataFrame({"x": [1, 2], "y": ["a", "b"], "z": [3, 4]}).to_csv(path, index=False)
    function = defined(tmp_path, f"import pandas as pd\ndef f(p):\n    {body}", NAMES=["z", "x"])
    found = changes("parquet-columns", function)
    assert len(found) == bool(columns)
    for proposal in found:
        assert f"columns={columns})" in proposal.code
        assert rewritten(function, proposal)(path).equals(function(path))


FILTERS = {
    "a column": """frame[frame["item"] == name]""",
    "an attribute, the other way around": """frame[name == frame.item_]""",
    "loc": """frame.loc[frame["item"] == name]""",
    "two columns": """frame[(frame["item"] == name) & (name == frame.item_)]""",
    "a range": """frame[(frame["item"] == name) & (frame["x"] < len(str(name)) + 1) & (frame["x"] > 0)]""",
    "methods": """frame.loc[frame["item_"].isin(["b"]) & ~frame.x.between(1, 2) & (frame["item"] == name)]""",
    "a constant": """frame[(frame["item"] == name) & (frame["item_"] == "b")]""",
    "a variable": """None
            rows = (frame["item"] == name) & (frame["x"] >= 2)
            part = frame[rows]""",
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", FILTERS)
def test_rows_of_a_data_frame_are_looked_up_instead_of_filtered_for_each_sample(case, tmp_path):
    rows = {"item": ["a", "b", "a", None], "item_": ["b", "b", "a", None], "x": [3, 2, 1, 0]}
    source = f"""\
        def f(name):
            part = {FILTERS[case]}
            part["y"] = part["x"] * 2
            return part.sort_values("x")
        """
    function = defined(tmp_path, source, frame=pd.DataFrame(rows))
    (proposal,) = proposals("filtered-frame", function)
    new = rewritten(function, proposal)
    for name in ("a", "b", "a", "missing", None):
        pd.testing.assert_frame_equal(new(name), function(name))


ONE_COLUMN = {
    "values": "frame[frame['item'] == name].x.values",
    "to_numpy": "frame[frame.item_ == name]['x'].to_numpy()",
    "tolist": "frame[frame.item_ == name].loc[:, 'x'].tolist() + frame[frame.item_ == name]['x'].tolist()",
    "the first one": "frame.loc[frame.item_ == name].text.iloc[0].split(' ')",
    "the only one": "frame[frame.text == name].x.item()",
    "loc with a column": "frame.loc[frame.item_ == name, 'x'].values",
    "two columns": "frame[(frame['item'] == name) & (frame.item_ == str(name))].x.values",
}


@pytest.mark.parametrize("case", ONE_COLUMN)
def test_a_column_of_filtered_rows_is_an_array_that_is_looked_up(case, tmp_path):
    rows = {"item": ["a", "b", "a", None], "item_": ["b", "b", "a", None], "x": [3, 2, 1, 0]}
    frame = pd.DataFrame(rows | {"text": ["p q", "r", "s", None]})
    function = defined(tmp_path, f"def f(name):\n    return {ONE_COLUMN[case]}", frame=frame)
    (proposal,) = proposals("filtered-frame", function)
    assert "column_with(" in proposal.code
    new = rewritten(function, proposal)
    for name in ("a", "b", "r", "missing", None):
        try:
            expected = function(name)
        except (IndexError, ValueError) as error:
            with pytest.raises(type(error)):
                new(name)
        else:
            assert difference(expected, new(name)).equal


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return frame[frame['x'] > name].text.iloc[0]", 0),
        ("part = frame[frame['x'] > name]\n    return part.iloc[0]", 0),
        ("part = frame\n    return part.iloc[0]['x']", 1),
        ("return frame.text.iloc[0]", 1),
        ("return frame['text'].iloc[0]", 1),
    ],
)
def test_only_data_frames_that_last_are_converted_once(body, found, tmp_path):
    frame = pd.DataFrame({"x": [3, 2], "text": ["p", "q"]})
    function = defined(tmp_path, f"def f(name):\n    {body}", frame=frame)
    written = list({one.code: one for one in proposals("pandas-row", function)}.values())
    assert len(written) == found
    assert all(difference(function(2), rewritten(function, one)(2)).equal for one in written)


SEARCHES = {
    "loop": """\
        def f(key):
            found = []
            for a in items:
                if a["image"] == key and not a["crowd"]:
                    found.append(a["box"])
            return found
        """,
    "skipped": """\
        def f(key):
            total = 0
            for a in items:
                if key != a["image"]:
                    continue
                total += a["box"]
            return total
        """,
    "comprehension": "def f(key):\n    return [a['box'] for a in items if a['image'] == key if not a['crowd']]",
    "generator": "def f(key):\n    return next((a['box'] for a in items if a['image'] == key), None)",
    "attribute": "def f(key):\n    return [a.box for a in objects if a.image == key]",
    "pairs": "def f(key):\n    return {box: image for image, box in pairs if image == key}",
}


def searched():
    """Names for `SEARCHES`: the same items as dicts, objects and pairs."""
    items = [{"image": n * 7 % 40, "box": n, "crowd": n % 3 == 0} for n in range(400)]
    return {
        "items": items,
        "objects": [types.SimpleNamespace(**item) for item in items],
        "pairs": [(item["image"], item["box"]) for item in items],
    }


@pytest.mark.parametrize("case", SEARCHES)
def test_a_list_is_grouped_once_instead_of_searched_for_each_sample(case, tmp_path):
    function = defined(tmp_path, SEARCHES[case], **searched())
    (proposal,) = changes("filtered-list", function)
    assert "all 400 items" in proposal.why
    assert "items_with(" in proposal.code
    new = rewritten(function, proposal)
    for key in (3, np.int64(3), 39, 40, None, 3.0, torch.tensor(3)):  # the last three are compared with each item
        assert new(key) == function(key)


@pytest.mark.parametrize(
    "source",
    [
        "def f(key):\n    return [a for a in items if a['image'] > key]",
        "def f(key):\n    return [a for a in items if a['image'] == 3]",
        "def f(key):\n    return [a for a in items if a['image'] == a['box']]",
        "def f(key):\n    return [a for a in items if a['image'] == next(key)]",
        "def f(key):\n    return [a for a in items[:9] if a['image'] == key]",
        "def f(key):\n    return [a for a in items if a['name'] == key]",
        "def f(key):\n    return [a for a in mixed if a['image'] == key]",
        "def f(key):\n    for a in items:\n        if a['image'] == key: pass\n        else: key += 1\n    return key",
        "def f(key):\n    for a in items:\n        if a['image'] == key: key += 1\n    return key",
        "def f(key):\n    for a in items:\n        if a['image'] == key: pass\n    return a",
        "def f(key):\n    for a in items:\n        if a['image'] == key: pass\n        key = 4\n    return key",
    ],
)
def test_other_searches_of_a_list_are_left_alone(source, tmp_path):
    names = searched()
    names["mixed"] = [*names["items"], {"image": [1]}]
    assert proposals("filtered-list", defined(tmp_path, source, **names)) == []


@pytest.mark.parametrize(
    "arguments",
    [
        "skiprows=n, nrows=1",
        "skiprows=range(1, n + 1), nrows=1, index_col=0",
        "skiprows=range(1, n + 1)",
        "skiprows=range(2, n + 1), nrows=1",
        "skiprows=range(1, n + 1), nrows=1, usecols=[n]",
        "skiprows=range(1, n + 1), nrows=1, **options",
        "skiprows=[1, 2], nrows=1",
    ],
)
def test_other_rows_of_a_csv_file_are_read_as_before(arguments, tmp_path):
    function = defined(tmp_path, f"def f(p, n=1):\n    return pd.read_csv(p, {arguments})", pd=pd, options={})
    assert proposals("csv-rows", function) == []


@pytest.mark.parametrize(
    ("value", "named"), [("math.sqrt(d * d + 1)", True), ("min(d * 2, 9)", True), ("other(d * 2)", False)]
)
def test_nested_loops_that_cannot_be_rewritten_are_named(value, named, tmp_path):
    source = f"""\
        import math
        def f(track):
            total = [0.0] * len(track)
            for i in range(len(track)):
                for j in range(i):
                    d = track[i] - track[j]
                    total[i] = {value}
            return total
        """
    found = [
        proposal
        for site in sites(defined(tmp_path, source, other=sorted))
        if "total[i]" in site.source.splitlines()[site.number - 1]
        for proposal in BY_NAME["python-loop"].propose(site)
        if "import numba" not in proposal.helper
    ]
    assert [bool(proposal.untried) and "numba" in proposal.instead for proposal in found] == [True] * named


def test_a_table_is_read_once_for_all_its_rows(tmp_path):
    whole = pd.DataFrame({"t": np.arange(50, dtype=np.int32), "x": np.linspace(0, 1, 50)})
    path = tmp_path / "t.csv"
    whole.to_csv(path, index=False)
    source = "def f(p, n):\n    return pd.read_csv(p, skiprows=range(1, n), nrows=7, dtype={'t': 'int32'})"
    function = defined(tmp_path, source, pd=pd)
    (proposal,) = proposals("csv-rows", function)
    new, read = rewritten(function, proposal), []
    counting = types.SimpleNamespace(
        read_csv=lambda *args, **options: read.append(args) or pd.read_csv(*args, **options)
    )
    function.__globals__["pd"] = counting
    for n in (1, 5, 46, 60):
        pd.testing.assert_frame_equal(new(path, n), whole.iloc[n - 1 : n + 6].reset_index(drop=True))
    assert read == [(path,)]


def test_a_list_that_samples_change_is_not_grouped(tmp_path):
    source = """\
        class Boxes:
            def __getitem__(self, i):
                {change}
                return [a for a in self.items if a["image"] == i]
        f = Boxes
        """
    for change, count in (("pass", 1), ("self.items.append({})", 0)):
        owner = defined(tmp_path, source.format(change=change))()
        owner.items = searched()["items"]
        assert len(proposals("filtered-list", type(owner).__getitem__, owner=owner)) == count


@pytest.mark.parametrize(
    "test",
    [
        "frame['item'] > name",
        "frame['item'] == frame['x']",
        "frame['item'] == 'a'",
        "(frame['item'] == name) | (frame['x'] > 1)",
        "(frame['item'] == name) & (frame['x'] > frame['x'].mean())",
        "(frame['item'] == name) & (frame['x'].rank() > 1)",
        "(frame['item'] == name) & other",
    ],
)
def test_other_filters_of_a_data_frame_are_left_alone(test, tmp_path):
    function = defined(tmp_path, f"def f(name):\n    return frame[{test}]", frame=pd.DataFrame({"item": ["a"]}))
    assert proposals("filtered-frame", function) == []


def test_a_large_table_is_compared_once_per_process(tmp_path):
    source = """\
        class Sales:
            def __getitem__(self, i):
                part = self.frame[self.frame["item"] == i].sort_values("x")
                return part["x"].to_numpy()
        f = Sales
        """
    owner = defined(tmp_path, source)()
    facts = Facts(samples=100, nbytes=1000)
    for rows, is_large in ((100, False), (50_000, True)):
        owner.frame = pd.DataFrame({"item": np.arange(rows) % 10, "x": np.arange(rows)})
        found = proposals("same-each-epoch", type(owner).__getitem__, owner=owner, facts=facts)
        assert any("frame" in proposal.helper.partition(":\n")[0] for proposal in found)
        assert all(("fixed=['frame']" in proposal.helper) == is_large for proposal in found)
        assert all(("Changes of `frame` in place are not noticed" in one.instead) == is_large for one in found)


def test_a_large_table_that_changes_is_no_argument_of_a_cached_function(tmp_path):
    source = """\
        class Sales:
            def __getitem__(self, i):
                part = self.frame[self.frame["item"] == i].sort_values("x")
                return part["x"].to_numpy()
            def refresh(self):
                self.frame["x"] += 1
        f = Sales
        """
    owner = defined(tmp_path, source)()
    owner.frame = pd.DataFrame({"item": np.arange(50_000) % 10, "x": np.arange(50_000)})
    facts = Facts(samples=100, nbytes=1000)
    found = proposals("same-each-epoch", type(owner).__getitem__, owner=owner, facts=facts)
    assert not any("frame" in proposal.helper for proposal in found)


@pytest.mark.parametrize(
    ("make", "is_large"),
    [
        (lambda: [np.zeros(10)] * 3, False),
        (lambda: [np.zeros(10_000) for _n in range(3)], True),
        (lambda: {n: torch.zeros(10_000) for n in range(4)}, True),
        (lambda: types.SimpleNamespace(rows=(np.zeros(20_000),)), True),
    ],
)
def test_large_items_of_a_container_are_compared_once_per_process(make, is_large, tmp_path):
    source = """\
        class Tables:
            def __getitem__(self, i):
                part = sorted(map(str, [self.tables, i]))
                return part
        f = Tables
        """
    owner = defined(tmp_path, source)()
    owner.tables = make()
    found = proposals("same-each-epoch", type(owner).__getitem__, owner=owner, facts=Facts(samples=100, nbytes=1000))
    assert any("tables" in proposal.helper for proposal in found)
    assert all(("fixed=['tables']" in proposal.helper) == is_large for proposal in found)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # PIL; files that are left open
@pytest.mark.parametrize("case", SAME)
def test_rewritten_code_has_the_same_values(case, files, capsys):
    name, source, names = SAME[case]
    given_names = {
        key: pd.DataFrame(value) if isinstance(value, dict) else value for key, value in dict(names).items()
    }  # fmt: skip
    function = defined(files, source, **given_names)
    found = [proposal for proposal in proposals(name, function) if not proposal.untried]
    assert found
    expected = function(str(files))
    values = [rewritten(function, proposal) for proposal in found]
    same = []
    for new in values:
        try:
            same.append(difference(expected, new(str(files))).equal)
        except TypeError:  # a proposal for arrays, where the loop fills a tensor
            same.append(False)
    assert any(same)
    assert all(p.why and p.instead and p.code != textwrap.dedent(source) for p in found)


def test_a_photograph_is_decoded_at_the_size_that_is_needed(files):
    source = "from PIL import Image\ndef f(p):\n    return Image.open(p + '/a.jpg').convert('RGB').resize((100, 75))"
    function = defined(files, source)
    closer, exact = proposals("full-size-jpeg", function)
    for proposal, size in ((closer, "(200, 150)"), (exact, "(100, 75)")):
        assert f".draft('RGB', {size})" in proposal.code
        apart = difference(function(str(files)), rewritten(function, proposal)(str(files)))
        assert apart.mean < 0.05 * apart.span
        assert not apart.problem


def test_two_files_that_are_kept_have_places_of_their_own(tmp_path):
    source = "import numpy as np\ndef f(p):\n    x = np.load(p + 'x')\n    y = np.load(p + 'y')\n    return x[0] + y[0]"
    function = defined(tmp_path, source)
    first, second = proposals("read-each-time", function)
    assert "x = kept_load_x(" in first.code
    assert "y = kept_load_y(" in second.code
    assert "def kept_load_x(" in first.helper
    assert "def kept_load_y(" in second.helper


@pytest.mark.parametrize(
    "body",
    [
        "x = (self.table[i] - self.mean) / self.std\n    return x.values.astype('float32')",
        "x = (self.table[i] - self.mean) / self.std\n    return x.to_numpy()",
        "return (self.table[i] - self.mean) / self.std",
    ],
)
def test_statistics_that_pandas_keeps_become_arrays(body, tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3.0, 5.0, 9.0]})
    function = defined(tmp_path, f"def f(self, i):\n    {body}")
    owner = types.SimpleNamespace(mean=frame.mean(), std=frame.std(), table=frame.to_numpy())
    (proposal,) = proposals("pandas-operand", function, owner=owner)
    assert "array_of(self.mean)" in proposal.code
    new = rewritten(function, proposal)
    for i in range(3):
        np.testing.assert_array_equal(np.asarray(new(owner, i)), np.asarray(function(owner, i)))


@pytest.mark.parametrize(("name", "found"), [("a.jpg", True), ("a.PNG", False), ("a", True)])
def test_pictures_that_are_no_jpeg_files_are_left_alone(name, found, files):
    owner = pictures_with(files, "return Image.open(self.root + self.names[i]).resize((9, 9))")
    owner.names = [name]
    assert bool(proposals("full-size-jpeg", type(owner).__getitem__, owner=owner)) == found


def test_the_size_of_a_sample_counts_if_no_size_is_in_the_code(files):
    source = """\
        from PIL import Image
        def f(p):
            with Image.open(p + "/a.jpg") as picture:
                return transform(picture.convert("RGB"))
        """
    function = defined(files, source, transform=lambda picture: picture.resize((50, 50)))
    assert proposals("full-size-jpeg", function) == []
    code = proposals("full-size-jpeg", function, picture=(50, 50))[1].code
    assert 'picture.draft("RGB", (50, 50))\n' in code
    assert code.index("draft") < code.index("convert")


@pytest.mark.parametrize(
    "source",
    [
        "def f(load):\n    return load('x')",  # an argument
        "import numpy as np\ndef f(p):\n    np = p\n    return np.load('x')['y']",  # a local variable
        "def f(p):\n    return json.loads(p)",  # a function of another module with this name
        "import numpy as np\ndef f(p):\n    return np.zeros(3)",
        "def f(p):\n    return p.iloc[1:3]",
        "def f(p):\n    return [a + [0] for a in p]",
        "def f(p):\n    return sorted(p)",
    ],
)
def test_other_code_is_left_alone(source, tmp_path):
    function = defined(tmp_path, source, json=types.SimpleNamespace(loads=str))
    assert [p for name in BY_NAME for p in proposals(name, function)] == []


def test_names_are_those_that_the_function_sees(tmp_path):
    source = """\
        import os.path as paths
        def outer(hidden):
            def f(argument):
                return paths.join, hidden, argument, len, missing
            return f
        f = outer(3)
        """
    function = defined(tmp_path, source)
    site = sites(function)[1]
    names = {node.id: site.target(node) for node in site.nodes if isinstance(node, ast.Name)}
    assert names == {"paths": os.path, "hidden": 3, "argument": UNKNOWN, "len": len, "missing": UNKNOWN}


def test_code_without_source_has_no_site():
    names = {}
    exec("def f(x):\n    return x", names)
    assert site_of(names["f"], line_of(names["f"], 0)) is None


def test_a_lambda_is_looked_at_as_a_function(files):
    source = """\
        import numpy as np, os
        class Applied:
            def __init__(self, *functions):
                self.functions = functions
        f = Applied(
            lambda x: x, lambda p: len(
                os.listdir(p)),
        )
        """
    applied = defined(files, source)
    function = applied.functions[1]
    site = locate(line_of(function, 1), [applied])
    assert site.source == "def applied(p):\n    return len(os.listdir(p))\n"
    assert site.paste == " Use applied in place of the lambda."
    (proposal,) = BY_NAME["listing"].propose(site)
    assert proposal.code.startswith("def applied(p):")
    expected = function(str(files))
    function.__code__ = code_of(function, proposal)
    assert function(str(files)) == expected


def test_two_lambdas_that_look_alike_are_left_alone(tmp_path):
    function, _other = defined(tmp_path, "import os\nf = (lambda x: os.listdir(x), lambda x: os.listdir('..'))")
    assert site_of(function, line_of(function, 0)) is None


@given(st.text(alphabet="aé\U0001f600 ", max_size=5), st.integers(0, 4), st.integers(0, 4))
def test_only_the_node_is_replaced(text, before, after):
    source = (
        "def f(x):\n" + "    # é\n" * before + f"    y = '{text}', x.a ; z = 1\n" + "    # b\n" * after + "    return y"
    )
    tree = ast.parse(source).body[0]
    site = sites_of(source, tree)
    (node,) = [node for node in site.body if isinstance(node, ast.Attribute)]
    assert site.rewritten(Edit(node, "é.b")) == source.replace("x.a", "é.b")
    statement = site.statement(node)
    assert site.rewritten(Edit(statement, "u = 1", before=True)) == source.replace("    y = ", "    u = 1\n    y = ")


def sites_of(source, tree):
    from nbloader.remedies.site import Site

    def f():
        """Stands for the function of the source."""

    return Site(line_of(f, 0), f, source, tree, 1)


def test_the_rewritten_code_keeps_what_the_function_encloses(tmp_path):
    source = """\
        import os
        class Base:
            def get(self):
                return 1
        def outer(offset):
            class Files(Base):
                __hidden = 5
                def get(self):
                    names = os.listdir(self.folder)
                    return super().get() + offset + self.__hidden + len(names)
            return Files
        Files = outer(10)
        f = Files.get
        """
    function = defined(tmp_path, source)
    (proposal,) = proposals("listing", function)
    made = function.__globals__["Files"]()
    made.folder = str(tmp_path)
    expected = made.get()
    function.__code__ = code_of(function, proposal)
    assert made.get() == expected == 16 + len(os.listdir(tmp_path))


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    function = defined(tmp_path, "import json\ndef f(p):\n    return json.loads(p)")
    (proposal,) = proposals("json", function)
    assert proposal.package == "orjson"
    with pytest.raises(CannotTryError, match="pip install orjson"):
        code_of(function, proposal)


FLOATS = {
    "numpy": "return np.array(Image.open(p + '/a.jpg'), dtype=np.float32) / 255.0",
    "doubles": "return np.array(Image.open(p + '/a.jpg')) / 255",
    "torch": "return torch.from_numpy(np.array(Image.open(p + '/a.jpg'))).permute(2, 0, 1).float().div(255)",
    "several lines": """\
        pixels = np.array(Image.open(p + '/a.jpg')).astype(np.float32) / 255
        pixels = (pixels - MEAN) / STD
        return pixels.transpose(2, 0, 1)""",
    "an attribute": "return (np.array(Image.open(p + '/a.jpg')).astype('float32') - self.mean) / self.std",
}


@pytest.mark.parametrize("case", FLOATS)
def test_the_loop_can_convert_to_floating_point(files, case):
    head = """\
        import numpy as np, torch
        from PIL import Image
        MEAN, STD = np.float32([0.4, 0.5, 0.6]), np.float32([0.1, 0.2, 0.3])
        class Pictures:
            mean, std = MEAN, np.float32([10, 20, 30])
            def get(self, p):
        """
    body = textwrap.indent(textwrap.dedent(FLOATS[case]), " " * 8)
    owner = defined(files, f"{textwrap.dedent(head)}{body}\nf = Pictures()\n")
    function = type(owner).get
    found = proposals("float-in-workers", function, owner=owner)
    assert found
    expected = torch.as_tensor(owner.get(str(files)))
    equal = []
    for proposal in found:
        made = torch.as_tensor(rewritten(function, proposal)(owner, str(files)))
        assert made.dtype == torch.uint8
        try:
            value = eval(proposal.loop, {**function.__globals__, "dataset": owner, "batch": made[None]})[0]
        except RuntimeError:  # the channels come last
            continue
        equal.append(value.dtype == expected.dtype and torch.allclose(value, expected, atol=1e-5))
    assert any(equal)


@pytest.mark.parametrize(
    "last", ["torch.tensor(pixels).permute(2, 0, 1).float()", "np.fliplr(pixels).astype('float32')"]
)
def test_floats_stay_in_the_workers_if_a_later_line_converts_again(files, last):
    source = f"""\
        import numpy as np, torch
        from PIL import Image
        MEAN = np.array([0.4, 0.5, 0.6])
        def f(p):
            pixels = np.array(Image.open(p + "/a.jpg"))
            pixels = pixels / 255.0 - MEAN
            pixels = pixels[10:40, 10:40]
            return {last}
        """
    assert proposals("float-in-workers", defined(files, source)) == []


BYTES = {
    "only some samples": "if p:\n    x = np.array(p, np.float32) / 255\nelse:\n    x = np.zeros(3)\nreturn x",
    "another return": "if not p:\n    return KEPT\nx = np.array(p, np.float32) / 255\nreturn x",
    "a sum": "x = np.array(p, np.float32)\nx = x[:, :-1] + x[:, 1:]\nreturn torch.from_numpy(x) / 510",
    "a sum in place": "x = np.array(p, np.float32) / 255\nx += x[::-1]\nreturn x",
    "another name": "x = np.array(p, np.float32) / 255\ny = x.T\nreturn y, y * y",
    "a function of the user": "x = np.array(p, np.float32) / 255\nreturn augment(x)",
    "the mean": "return torch.from_numpy(np.array(p, np.float32) / 255).mean()",
}
"""Functions that do more with their floats than to return them."""


@pytest.mark.parametrize("case", BYTES)
def test_floats_with_which_workers_calculate_stay_in_the_workers(case, tmp_path):
    body = textwrap.indent(BYTES[case], "    ")
    function = defined(tmp_path, f"import numpy as np, torch\ndef f(p):\n{body}", KEPT=None, augment=None)
    assert proposals("float-in-workers", function) == []


@pytest.mark.parametrize(("last", "shape"), [("pixels.transpose(2, 0, 1)", ".view(-1, 1, 1)"), ("pixels", "")])
def test_the_first_proposal_for_the_loop_fits_the_place_of_the_channels(files, last, shape):
    source = f"""\
        import numpy as np
        from PIL import Image
        MEAN = np.float32([0.4, 0.5, 0.6])
        def f(p):
            pixels = np.array(Image.open(p + "/a.jpg")).astype(np.float32) / 255 - MEAN
            return {last}
        """
    function = defined(files, source)
    first = proposals("float-in-workers", function)[0]
    assert first.loop == f"batch.float() / 255 - torch.as_tensor(MEAN){shape}"
    made = torch.as_tensor(rewritten(function, first)(str(files)))
    value = eval(first.loop, {**function.__globals__, "torch": torch, "batch": made[None]})[0]
    assert torch.allclose(value, torch.as_tensor(function(str(files))), atol=1e-5)


class Normalized:
    """Pictures, or small vectors, that are normalized on another line than the one that is sampled."""

    def __init__(self, side):
        self.pixels = np.random.default_rng(0).integers(0, 256, (30, side, side, 3), dtype=np.uint8)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        pixels = self.pixels[index].astype(np.float32) / 255.0
        return torch.from_numpy(pixels.transpose(2, 0, 1)), index


@pytest.mark.parametrize(("side", "found"), [(256, ["float-in-workers"]), (8, [])])
def test_large_floats_are_looked_for_on_other_lines_than_the_slow_one(side, found):
    line = line_of(Normalized.__getitem__, 2)
    tried = Samples(Normalized(side), None, (), iterable=False)
    indices, facts = Scout(tried, None, 10)[0]
    assert facts.floats == 12 * side**2
    tried = tried._replace(indices=indices, facts=facts._replace(samples=0))  # no cache
    for _attempt in range(10):
        listed = search(
            HotLines(lines=(line,), samples=100), tried, lambda trial: [trial[n] for n in range(len(trial))],
            lambda *_args, **_options: None,
        )  # fmt: skip
        if [one.name for one in listed] == found:
            break  # otherwise another program may have taken the core from the rewritten code
    assert [one.name for one in listed] == found, listed
    assert all(one.keeps_values and one.gain > 1.1 for one in listed), "it was tried"
    assert all("# in the loop: batch[0] = batch[0].float() / 255.0" in one.code for one in listed)
    assert not short_advice(line, [tried.dataset]).remedy, "a verdict says only what is certain"


class NamedParts(Normalized):
    """The same in a dict."""

    def __getitem__(self, index):
        pixels = self.pixels[index].astype(np.float32) / 255.0
        return {"image": torch.from_numpy(pixels), "index": index}


@pytest.mark.parametrize("workers", [0, 10**6])
def test_a_conversion_in_the_loop_fits_the_batch_and_is_no_gain_if_it_takes_longer_than_workers_save(workers):
    data = NamedParts(256)
    samples = Samples(data, torch.utils.data.default_collate, list(range(30)), False, 4, workers=workers)
    hot = HotLines(lines=(line_of(NamedParts.__getitem__, 1),), samples=100)
    told = (
        "Convert to float in the loop, not in the workers (here:1): " if workers else "batch['image'].float() / 255.0"
    )
    for _attempt in range(10):
        found = search(
            hot, samples, lambda trial: [trial[n] for n in range(len(trial))], lambda *_args, **_options: None
        )  # fmt: skip
        if told in repr(found):
            break  # otherwise another program may have taken the core from the rewritten code
    if workers:
        assert re.search(r"x, and the loop takes [\d.]+ \S+ more per sample", repr(found))
    else:
        assert "# in the loop: batch['image'] = batch['image'].float() / 255.0" in found[0].code


class Tokenizer:
    """Stands for a tokenizer of transformers."""

    def __call__(self, text, add=0):
        if isinstance(text, list):
            rows = [self(one, add=add) for one in text]
            return {"ids": [row["ids"] for row in rows], "length": np.array([row["length"] for row in rows])}
        return {"ids": [ord(letter) + add for letter in text], "length": len(text)}

    def batch_decode(self):
        raise NotImplementedError


def test_a_tokenizer_is_called_once_for_a_batch(tmp_path):
    source = """\
        class Texts:
            def __init__(self, tokenizer):
                self.tokenizer = tokenizer
                self.rows = [("é" * n, n) for n in range(9)]
            def __getitem__(self, i):
                text, label = self.rows[i]
                encoded = self.tokenizer(
                    text, add=2,
                )
                return encoded["ids"], label
        f = Texts
        """
    owner = defined(tmp_path, source)(Tokenizer())
    function = type(owner).__getitem__
    (proposal,) = proposals("tokenizer", function, owner=owner)
    names = dict(function.__globals__)
    exec(proposal.helper, names)
    exec(proposal.code, names)
    assert names["__getitems__"](owner, [3, 5, 0]) == [owner[3], owner[5], owner[0]]
    assert proposals("tokenizer", function) == [], "without its owner it is not known what is called"


def test_a_lock_is_held_only_for_what_is_shared(tmp_path):
    source = """\
        class Records:
            def get(self, i):
                with self.lock:
                    self.file.seek(i)
                    data = self.file.read(1)
                    # decoding needs no lock
                    value = data * 2
                    return value
        class Whole(Records):
            def get(self, i):
                with self.lock:
                    return self.file.read(i)
        f = Records, Whole
        """
    records, whole = defined(tmp_path, source)
    owner = records()
    owner.lock, owner.file = threading.Lock(), io.BytesIO(b"abc")
    (proposal,) = proposals("lock-held", records.get, owner=owner)
    assert "        data = self.file.read(1)\n    value = data * 2\n    return value\n" in proposal.code
    assert rewritten(records.get, proposal)(owner, 1) == b"bb"
    owner = whole()
    owner.lock, owner.file = threading.Lock(), io.BytesIO(b"abc")
    (proposal,) = proposals("lock-held", whole.get, owner=owner)
    assert not proposal.code
    assert proposal.untried


def test_a_long_list_of_objects_is_named_but_not_tried():
    class Rows:
        def __init__(self, count):
            self.rows = [{"number": number} for number in range(count)]

        def __getitem__(self, index):
            return self.rows[index]

    short = Rows(10)
    assert proposals("python-objects", Rows.__getitem__, owner=short) == []
    (proposal,) = proposals("python-objects", Rows.__getitem__, owner=Rows(100_000))
    assert "self.rows has 100,000 Python objects" in proposal.why
    assert "nbloader.share(self.rows)" in proposal.instead
    assert proposal.untried


@pytest.mark.parametrize("installed", [True, False])
def test_threads_of_linear_algebra_need_no_package(installed, tmp_path, monkeypatch):
    monkeypatch.setattr("nbloader.remedies.kinds.blas_threads.has_threadpoolctl", lambda: installed)
    function = defined(tmp_path, "import numpy as np\ndef f(p):\n    return np.linalg.inv(p) @ p")
    (proposal,) = proposals("blas-threads", function, facts=Facts(nbytes=1_000_000))
    assert not proposal.package
    assert bool(proposals("blas-threads", function, facts=Facts(nbytes=72))) == installed, "small, and not tried"
    assert proposal.saves == "threads"
    assert bool(proposal.untried) == (not installed)
    if not installed:
        monkeypatch.setattr(os, "environ", {})
        exec(proposal.helper, {})
        assert os.environ == dict.fromkeys(VARIABLES, "1")
    for threads, found in ((None, 1), (4, 1), (1, 0)):
        assert len(proposals("blas-threads", function, facts=Facts(nbytes=1_000_000, blas_threads=threads))) == found
    convolves = defined(tmp_path, "import numpy as np\ndef f(p):\n    return np.convolve(p, p)")
    for others, found in ((0.1, 0), (0.4, 1)):
        assert len(proposals("blas-threads", convolves, facts=Facts(other_threads=others))) == found


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_is_set_tells_the_threads_of_linear_algebra(name, monkeypatch):
    monkeypatch.setattr("nbloader.remedies.threads.has_threadpoolctl", lambda: False)
    for one in VARIABLES:
        monkeypatch.delenv(one, raising=False)
    assert blas_threads() is None
    monkeypatch.setenv(name, "1")
    assert blas_threads() == 1
    monkeypatch.setenv(name, "4")
    assert blas_threads() is None


def test_threadpoolctl_tells_the_threads_of_linear_algebra(monkeypatch):
    pools = [{"user_api": "blas", "num_threads": 3}, {"user_api": "openmp", "num_threads": 8}]
    monkeypatch.setitem(sys.modules, "threadpoolctl", types.SimpleNamespace(threadpool_info=lambda: pools))
    monkeypatch.setattr("nbloader.remedies.threads.has_threadpoolctl", lambda: True)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # after NumPy was imported
    assert blas_threads() == 3


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(p):\n    if p:\n        n = 1\n    else:\n        n = 2\n    return cv2.resize(p, (n, n))", 1),
        ("def f(p): return cv2.resize(p, (2, 2))", 0),
    ],
)
def test_the_threads_of_opencv_are_set_before_the_first_statement(source, found, tmp_path):
    cv2 = types.ModuleType("cv2")
    cv2.resize = lambda picture, size: picture
    cv2.resize.__module__ = "cv2"
    written = changes("opencv-threads", defined(tmp_path, source, cv2=cv2))
    assert len(written) == found
    for proposal in written:
        assert [type(node) for node in ast.parse(proposal.code).body[0].body] == [ast.Expr, ast.If, ast.Return]


def test_code_that_cannot_be_compiled_is_left_out(tmp_path):
    function = defined(tmp_path, 'import numpy as np\ndef f(p):\n    return f"{np.load(p)[3]}"')
    (proposal,) = changes("whole-array", function)
    assert proposal.is_valid == (sys.version_info >= (3, 12))
    shown = short_advice(line_of(function, 1), [function]).remedy
    assert ("Map the file" in shown) == proposal.is_valid


@pytest.mark.parametrize(("threads", "found"), [(None, 1), (8, 1), (1, 0), (0, 0)])
def test_threads_of_opencv_are_named_unless_the_workers_have_one(threads, found, tmp_path):
    cv2 = types.ModuleType("cv2")
    cv2.resize = lambda picture, size: picture
    cv2.resize.__module__ = "cv2"
    function = defined(tmp_path, "def f(p):\n    return cv2.resize(p, (2, 2))", cv2=cv2)
    assert len(proposals("opencv-threads", function, facts=Facts(opencv_threads=threads))) == found


class OneThread:
    """Sets the threads of OpenCV in its first sample."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        sys.modules["cv2"].setNumThreads(0)
        return index


def test_the_threads_are_those_of_a_worker_that_has_produced_a_sample(monkeypatch):
    cv2 = types.SimpleNamespace(threads=8, getNumThreads=lambda: cv2.threads)
    cv2.setNumThreads = lambda threads: setattr(cv2, "threads", max(1, threads))
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    _indices, facts = Scout(Samples(OneThread(), None, (), iterable=False), None, 2)[0]
    assert facts.opencv_threads == 1


def test_a_connection_is_kept_open(tmp_path):
    pytest.importorskip("requests")
    connections = set()

    class Server(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            connections.add(self.client_address)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        function = defined(tmp_path, "import requests\ndef f(url):\n    return requests.get(url, timeout=9).content")
        (proposal,) = proposals("connection-each-time", function)
        new = rewritten(function, proposal)
        url = f"http://127.0.0.1:{server.server_port}/"
        assert [function(url) for _ in range(3)] == [new(url) for _ in range(3)] == [b"ok"] * 3
        assert len(connections) == 4
        function.__globals__["session_of"](os.getpid()).close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_dataset_of_hdf5_is_read_into_memory_once(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(40).reshape(10, 4), chunks=(10, 4), compression="gzip")
    for rest, opens in (("        return row * 2", False), ("        row = row + len(file)\n    return row", True)):
        source = f"import h5py\ndef f(p):\n    with h5py.File(p) as file:\n        row = file['x'][3]\n{rest}"
        function = defined(tmp_path, source)
        (proposal,) = changes("hdf5-chunks", function)
        assert "chunks=(1, ...)" in proposal.instead
        assert ("with" in proposal.code) is opens, "a file that is not read is not opened"
        assert difference(function(path), rewritten(function, proposal)(path)).equal


def test_all_datasets_that_a_function_reads_are_read_into_memory_together(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        for name in ("x", "y"):
            file.create_dataset(name, data=np.arange(40).reshape(10, 4), chunks=(10, 4), compression="gzip")
    source = (
        "import h5py\ndef f(p):\n    with h5py.File(p) as file:\n        x = file['x'][3]\n        y = file['y'][4]\n"
        "    return x + y"
    )
    function = defined(tmp_path, source)
    both, *single = changes("hdf5-chunks", function)
    assert (both.code.count("in_memory("), "with" in both.code, both.fallback) == (2, False, False)
    assert [(one.code.count("in_memory("), one.fallback) for one in single] == [(1, True), (1, True)]
    for one in (both, *single):
        assert difference(function(path), rewritten(function, one)(path)).equal
    lines = tuple(replace(line_of(function, number), share=0.3) for number in (3, 4))
    found = search(
        HotLines(lines=lines, samples=100), Samples(types.SimpleNamespace(f=function), None, (), False), None, None
    )
    assert [one.code.count("= in_memory(") for one in found if one.name == "hdf5-chunks"] == [2], "once"


@pytest.mark.parametrize("body", ["rows = file[name]\n    return rows[2:4] * 2", "return file[name][2:4] * 2"])
def test_a_dataset_of_an_hdf5_file_that_a_function_is_given_is_read_into_memory_once(body, tmp_path):
    h5py = pytest.importorskip("h5py")
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(40).reshape(10, 4), chunks=(10, 4), compression="gzip")
    function = defined(tmp_path, f"import h5py\ndef f(file, name='x'):\n    {body}")
    (proposal,) = changes("hdf5-chunks", function)
    assert proposal.must_help, "it may be no file"
    with h5py.File(path) as file:
        assert difference(function(file), rewritten(function, proposal)(file)).equal
    assert not changes("hdf5-chunks", defined(tmp_path, f"def f(file, name):\n    {body}")), "nothing imports h5py"


@pytest.mark.parametrize("shape", [(7, 3), (7,), (0, 3)])
def test_rows_are_shuffled_with_the_same_random_numbers(shape, tmp_path):
    function = defined(tmp_path, "import numpy as np\ndef f(x):\n    np.random.shuffle(x)\n    return x")
    (proposal,) = changes("shuffled-rows", function)
    made = []
    for one in (function, rewritten(function, proposal)):
        np.random.seed(3)
        made.append((one(np.arange(np.prod(shape)).reshape(shape)), np.random.rand()))
    assert difference(*made).equal
    assert not changes("shuffled-rows", defined(tmp_path, "import random\ndef f(x):\n    random.shuffle(x)"))


TEXTS = {
    "a slice": "with open(p) as f:\n        return list(islice(f, n, n + 4))",
    "one line": "with open(p, encoding='utf-8') as f:\n        return next(islice(f, n, None))",
    "a loop over a slice": "with open(p) as f:\n        return [line.split() for line in islice(f, n, n + 3)]",
    "a loop to one line": """\
with open(p, 'r') as f:
        for i, line in enumerate(f):
            if n == i:
                return line.strip()""",
}


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("end", ["", "\n"])
def test_lines_of_a_text_file_are_looked_up(case, end, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {i} \u00e9\n" for i in range(50)) + f"last{end}", encoding="utf-8", newline="")
    function = defined(tmp_path, f"from itertools import islice\ndef f(p, n=3):\n    {TEXTS[case]}\n")
    (proposal,) = changes("text-lines", function)
    new = rewritten(function, proposal)
    for number in (0, 3, 47, 50, 51, 60):
        try:
            expected = function(path, number)
        except StopIteration:
            with pytest.raises(StopIteration):
                new(path, number)
        else:
            assert new(path, number) == expected


@pytest.mark.parametrize(
    "body",
    [
        "with open(p, 'rb') as f:\n        return list(islice(f, n, n + 4))",
        "with open(p, newline='') as f:\n        return list(islice(f, n, n + 4))",
        "with open(p) as f:\n        f.readline()\n        return list(islice(f, n, n + 4))",
        "with open(p) as f:\n        return list(islice(f, n, None))",
        "with open(p) as f:\n        return list(islice(f, n))",
        "with open(p) as f:\n        for i, line in enumerate(f):\n            print(i, line)\n    return i",
    ],
)
def test_other_lines_of_a_file_are_read_as_before(body, tmp_path):
    function = defined(tmp_path, f"from itertools import islice\ndef f(p, n=3):\n    {body}\n")
    assert not proposals("text-lines", function)


def test_the_whole_function_of_a_slow_line_is_named_with_its_calls(tmp_path):
    function = defined(tmp_path, "def f(x):\n    x = x + 1\n    x = x + 2\n    return x")
    lines = tuple(replace(line_of(function, number), share=0.2) for number in (1, 2, 3))
    key = function.__code__.co_filename, function.__code__.co_firstlineno
    (site, *_rest) = sites(function, facts=Facts(calls={key: 71}))
    site = replace(site, line=lines[0])
    text = why_none(lines[0], [site], HotLines(lines=lines, samples=100), (), 0.05, Held())
    assert "All lines of `f` take 60%. `f` runs 71 times for a sample: call it less often" in text
    caller, called = CodeLine(here := function.__code__.co_filename, "g", 1), CodeLine(here, lines[0].function, 1)
    hot = HotLines(lines=lines, samples=100, stacks=(StackCount((caller, called), 9.0, 0.0),))
    text = why_none(lines[0], [site], hot, (), 0.05, Held())
    assert re.search(r"`f` runs 71 times for a sample, mostly from `def f\(x\):` \(\S+module.py:1\): call it", text)
    alone = why_none(lines[0], [replace(site, facts=Facts())], HotLines(lines=lines[:1], samples=100), (), 0.05, Held())
    assert "All lines" not in alone
    assert "times for a sample" not in alone


def test_what_is_the_same_in_each_epoch_is_cached_if_there_is_memory_for_it(tmp_path):
    source = """\
        import json
        class Records:
            path = "x"
            def __init__(self):
                self.files = ["a", "b"]
            def load(self, path):
                return path
            def __getitem__(self, i):
                first = json.loads(self.files[i] + str(i))
                second = self.load(i)
                return first, second
        f = Records
        """
    owner = defined(tmp_path, source)()
    function = type(owner).__getitem__
    whole, *_rest, proposal = proposals(
        "same-each-epoch", function, owner=owner, facts=Facts(samples=1000, nbytes=50_000)
    )
    assert "return same_each_epoch(self, i)" in whole.code
    assert "@nbloader.cached(fixed=['dataset'])\ndef same_each_epoch(dataset, i):\n" in whole.helper
    assert "    second = dataset.load(i)\n" in whole.helper
    assert "Changes of `dataset` in place, and of the files that it reads, are not noticed" in whole.instead
    assert "@nbloader.cached\ndef same_each_epoch(one_of_files, i):\n" in proposal.helper
    assert "    first = json.loads(one_of_files + str(i))\n    return first\n" in proposal.helper
    assert "first = same_each_epoch(self.files[i], i)" in proposal.code
    assert proposals("same-each-epoch", function, owner=owner, facts=Facts(samples=10**9, nbytes=10**6)) == []


PREFIXES = {
    "up to a random statement": (
        """\
        path = self.root + "/" + self.names[i]
        label = self.labels[i]
        # decode
        picture = Image.open(path).convert("RGB")  # slow
        picture = picture.resize(self.size)
        pixels = np.asarray(picture, dtype=np.float32) / 255
        if random.random() < 2:
            pixels = pixels[:, ::-1]
        return pixels, label""",
        "def same_each_epoch(path, size):\n",
        "pixels = same_each_epoch(path, self.size)\n",
    ),
    "the whole function": (
        """\
        with open(f"{self.root}/{self.names[i]}", "rb") as file:
            data = np.frombuffer(file.read(), np.uint8)  # slow
        return data[:5].copy(), self.labels[i]""",
        "def same_each_epoch(path, one_of_labels):\n",
        "    return same_each_epoch(f'{self.root}/{self.names[i]}', self.labels[i])",
    ),
    "after a random statement": (
        """\
        flip = random.random() < 0.5
        pixels = np.asarray(Image.open(f"{self.root}/{self.names[i]}"))  # slow
        if self.size is None:
            pixels = pixels[:5]
        else:
            pixels = pixels[:7]
        return pixels[::-1] if flip else pixels""",
        "def same_each_epoch(path, size):\n",
        "pixels = same_each_epoch(f'{self.root}/{self.names[i]}', self.size)\n",
    ),
    "an argument of a random function": (
        """\
        return self.augment(np.asarray(Image.open(self.root + "/" + self.names[i])))  # slow""",
        "def same_each_epoch(path):\n",
        "return self.augment(same_each_epoch(self.root + '/' + self.names[i]))",
    ),
    "a static method, and what a loop adds to": (
        """\
        total = np.zeros(3)
        for scale in (1, 2):
            total += self.mean(Image.open(self.root + "/" + self.names[i]), scale)  # slow
        return total + random.random()""",
        "def same_each_epoch(path):\n",
        "total = same_each_epoch(self.root + '/' + self.names[i])\n",
    ),
}


def pictures_with(tmp_path, body):
    """A dataset of pictures whose `__getitem__` has this body."""
    head = """\
        import random
        import numpy as np
        from PIL import Image
        class Pictures:
            def __init__(self, root):
                self.root, self.names, self.labels, self.size = root, ["a.jpg"] * 3, [3, 4, 5], (20, 10)
            def augment(self, pixels):
                return pixels[random.randrange(10) :]
            def read(self, pixels):
                return pixels
            @staticmethod
            def mean(picture, scale):
                return np.asarray(picture).mean((0, 1)) * scale
            def __getitem__(self, i):
        """
    inner = textwrap.indent(textwrap.dedent(body), " " * 8)
    return defined(tmp_path, f"{textwrap.dedent(head)}{inner}\nf = Pictures\n")(str(tmp_path))


@pytest.mark.parametrize("case", PREFIXES)
def test_what_comes_before_the_random_part_is_cached(case, files):
    body, signature, call = PREFIXES[case]
    owner = pictures_with(files, body)
    function = type(owner).__getitem__
    facts = Facts(samples=3, nbytes=1000)
    lines = sites(function, owner=owner, facts=facts)
    slow = next(site for site in lines if "# slow" in site.source.splitlines()[site.number - 1])
    found = BY_NAME["same-each-epoch"].propose(slow)
    assert signature in found[0].helper
    assert call in found[0].code
    for proposal in found:
        random.seed(1)
        expected = [function(owner, i) for i in (0, 1, 2)]
        new = rewritten(function, proposal)
        for _epoch in range(2):
            random.seed(1)
            assert difference(expected, [new(owner, i) for i in (0, 1, 2)]).equal


@pytest.mark.parametrize(
    "body",
    [
        "self.count = np.load(self.names[i])\nreturn self.count + random.random()",  # the dataset changes
        "x = np.load(random.choice(self.names))\nreturn x",
        "for name in self.names:\n    x = np.load(name)\nreturn x + random.random()",  # perhaps never assigned
    ],
)
def test_what_cannot_be_a_function_of_its_own_is_not_cached(body, tmp_path):
    owner = pictures_with(tmp_path, body)
    facts = Facts(samples=3, nbytes=1000)
    for proposal in proposals("same-each-epoch", type(owner).__getitem__, owner=owner, facts=facts):
        assert not re.search("random|self", proposal.helper)
        assert "return np.load(" in proposal.helper, "an expression, not the statement"


ELEMENTS = """\
    import json, random
    def f(rows):
        out = {}
        for i in range(len(rows)):
            for j in range(9):
                value = json.loads(rows[i][j])  # slow
                out[i, j] = value + random.random()
        return out
    """
ONE_LOOP = """\
    import json, random
    def f(rows):
        out = []
        for row in rows:
            value = json.loads(row)  # slow
            out.append(value + random.random())
        return out
    """
KEPT_CALL = """\
    import functools, json
    load = functools.lru_cache(maxsize=None)(json.loads)
    def f(row):
        return load(row)  # slow
    """


@pytest.mark.parametrize(("source", "found"), [(ELEMENTS, 0), (ONE_LOOP, 1), (KEPT_CALL, 0)])
def test_no_cache_is_proposed_for_single_elements_and_for_what_is_kept_already(source, found, tmp_path):
    function = defined(tmp_path, source)
    lines = sites(function, facts=Facts(samples=1000, nbytes=50_000))
    slow = next(site for site in lines if "# slow" in site.source.splitlines()[site.number - 1])
    assert len(BY_NAME["same-each-epoch"].propose(slow)) == found


KEPT = """\
    import functools, nbloader, numpy as np
    def read(path):
        return np.load(path)["x"]
    class Kept:
        def __len__(self):
            return 4
        def __getitem__(self, i):
            return self.load("x.npz", 3) + load("x.npz")
        @functools.lru_cache
        def load(self, path, times):
            return np.load(path)["x"] if times else self.load(path, times - 1)
        def plain(self, path):
            return np.load(path)["x"]
    @nbloader.cached
    def load(path):
        return read(path) if path else load(path)
    f = Kept
    """


@pytest.mark.parametrize(("name", "kept"), [("read", True), ("load", True), ("plain", False)])
def test_nothing_is_proposed_for_a_line_that_only_a_cache_calls(name, kept, tmp_path):
    cls = defined(tmp_path, KEPT)
    function = cls.__getitem__.__globals__["read"] if name == "read" else vars(cls)[name]
    line = line_of(getattr(function, "__wrapped__", function), 2 if name == "load" else 1)
    assert locate(line, [cls()]).is_kept == kept
    assert (short_advice(line, [cls()]).remedy == "") == kept
    found = search(HotLines(lines=(line,), samples=100), Samples(cls(), None, (), iterable=False), None, None)
    assert bool(found) != kept
    if kept:
        assert repr(found).endswith(
            "faster: a cache keeps its results, so it runs once for each of them. "
            "What remains: use more workers where cores are free."
        )


CONSTANTS = {
    "a window": ("computed-each-time", "w = np.hanning(self.n)  # slow\nreturn np.arange(self.n) * w * i"),
    "a mask in steps": (
        "computed-each-time",
        """\
        h, w = self.size
        y, x = np.meshgrid(np.arange(h), np.arange(w))
        distance = np.sqrt(y**2 + x**2)  # slow
        mask = np.exp(-distance)
        shifted = i + self.n
        return mask * shifted""",
    ),
    "a table": (
        "computed-each-time",
        """\
        table = {}
        for position, name in enumerate(self.names):
            table[name] = position  # slow
        return table[self.names[i]], i""",
    ),
    "of what __init__ has filled": ("computed-each-time", "w = sorted(self.filled)  # slow\nreturn w[0] + i"),
    "of a global variable": ("computed-each-time", "w = np.hanning(SIZE)  # slow\nreturn w, i"),
    "of a setting of self": ("computed-each-time", "w = np.hanning(self.settings.size)  # slow\nreturn w, i"),
    "of a global setting": ("computed-each-time", "w = np.hanning(SETTINGS['size'])  # slow\nreturn w, i"),
    "of an attribute of a class": ("computed-each-time", "w = np.hanning(Settings.size)  # slow\nreturn w, i"),
    "of an attribute of a module": ("computed-each-time", "w = np.hanning(module.size)  # slow\nreturn w, i"),
    "a sorted list": ("computed-each-time", "return sorted(self.names)[i], i  # slow"),
    "with several samples": (
        "read-each-time",
        "with open(self.path) as f:\n    lines = f.readlines()  # slow\nreturn lines[i]",
    ),
    "up to the sample": (
        "read-each-time",
        """\
        with open(self.path) as f:
            for n, line in enumerate(f):  # slow
                if n == i:
                    return json.loads(line)""",
    ),
    "each row of a table": ("read-each-time", "with open(self.path) as f:\n    return list(csv.reader(f))[i]  # slow"),
    "in one expression": ("read-each-time", "line = open(self.path).readlines()[i]  # slow\nreturn line"),
    "a set": ("list-membership", "return [x for x in ('a', str(i)) if x not in self.names], i  # slow"),
    "not in a list": ("list-membership", "return [x not in self.names for x in ('a', i, str(i))], i  # slow"),
    "a position of a position": (
        "list-membership",
        "return self.names.index('name 3') in self.numbers and self.numbers.index(i), i  # slow",
    ),
    "a position": ("list-membership", "return self.names.index(self.names[-i]), i  # slow"),
}


@pytest.fixture
def constants(tmp_path):
    """Makes a dataset whose `__getitem__` has some body."""

    def make(body):
        head = """\
            import copy, csv, json, queue, random, types
            import numpy as np
            SIZE, SETTINGS, BAD = 8, {"size": 8}, []
            class Settings:
                size = 8
            module = types.ModuleType("settings")
            module.size = 8
            class Sampler:
                def __init__(self, gen):
                    self.gen = gen
                def draw(self, n):
                    return self.gen.normal(size=n)
            class Data:
                def __init__(self, path):
                    self.path, self.size, self.n, self.names = path, (5, 4), 8, [f"name {n}" for n in range(50)]
                    self.numbers = list(range(50))
                    self.replaced = list(range(50))
                    self.settings = types.SimpleNamespace(size=8)
                    self.gen = np.random.default_rng(0)
                    self.sampler = Sampler(np.random.default_rng(0))
                    self.stream, self.several, self.queue = iter(range(99)), {"a": iter(range(99))}, queue.Queue()
                    self.table, self.refilled, self.filled = [0] * 99, [3, 1, 2], []
                    self._fill()
                def _fill(self):
                    self.filled.append(3)
                    self.filled.append(1)
                def refill(self):
                    self.refilled.append(0)
                    self.replaced[0] = 99
                @property
                def lengths(self):
                    return [self.n]
                def __getitem__(self, i):
            """
        (tmp_path / "lines.txt").write_text("[1, 2]\n[3]\n[4, 5]\n")
        inner = textwrap.indent(textwrap.dedent(body), " " * 8)
        return defined(tmp_path, f"{textwrap.dedent(head)}{inner}\nf = Data\n")(str(tmp_path / "lines.txt"))

    return make


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # files that are left open
@pytest.mark.parametrize("case", CONSTANTS)
def test_what_does_not_depend_on_the_index_is_done_once(case, constants):
    name, body = CONSTANTS[case]
    owner = constants(body)
    function = type(owner).__getitem__
    slow = next(site for site in sites(function, owner=owner) if "# slow" in site.source.splitlines()[site.number - 1])
    (proposal,) = BY_NAME[name].propose(slow)
    expected = [function(owner, i) for i in (0, 1, 2)]
    new = rewritten(function, proposal)
    for _epoch in range(2):
        assert difference(expected, [new(owner, i) for i in (0, 1, 2)]).equal
    owner.n, owner.size, owner.names = 6, (2, 3), owner.names[:30]
    names = function.__globals__
    names["SIZE"] = names["SETTINGS"]["size"] = names["Settings"].size = names["module"].size = owner.settings.size = 6
    assert difference([function(owner, i) for i in (0, 1)], [new(owner, i) for i in (0, 1)]).equal, "of another value"


def test_equal_values_of_other_types_are_computed_apart(constants):
    owner = constants("w = sorted([self.n, self.n])\nreturn w[0], i")
    function = type(owner).__getitem__
    (proposal,) = proposals("computed-each-time", function, owner=owner)
    new = rewritten(function, proposal)
    for owner.n in (1, 1.0, True):
        assert type(new(owner, 0)[0]) is type(owner.n)


@pytest.mark.parametrize("name", ["computed-each-time", "read-each-time"])
def test_what_is_kept_is_left_out_if_the_samples_differ(name, constants):
    owner = constants(CONSTANTS["a window" if name == "computed-each-time" else "with several samples"][1])
    proposal = proposals(name, type(owner).__getitem__, owner=owner)[0]
    found = RemedyResult(line_of(type(owner).__getitem__, 1), name, proposal, 4, Cost(1.0, 0.0), Cost(0.1, 0.0))
    assert found.helps
    assert not replace(found, difference=difference(np.zeros(3), np.full(3, 1e-9))).helps


@pytest.mark.parametrize(
    "body",
    [
        "w = np.hanning(i)\nreturn w",
        "w = random.sample(self.names, 3)\nreturn w[0]",
        "w = np.zeros(self.n)\nw[0] = i\nreturn w",  # it is changed
        "w = list(self.lengths)\nreturn w[0] + i",  # perhaps another list each time
        "w = self.other(self.n)\nreturn w + i",  # a method
        "w = zip(self.names, self.names)\nreturn next(w)[0], i",  # can be used once
        "with open(self.path) as f:\n    next(f)\n    for line in f:\n        i += len(line)\nreturn i",
        "for w in sorted(self.names):\n    yield w",  # once for many samples
        "return sorted([self.names, i])",
        "w = copy.deepcopy(self.names)\nself.fill(w, i)\nreturn w[i]",  # its own for each sample
        "return fill(np.zeros(self.n), i)",
        "w = self.gen.normal(size=1000)\nreturn w + i",
        "g = self.gen\nw = g.normal(size=1000)\nreturn w + i",
        "w = self.sampler.draw(1000)\nreturn w + i",  # an object with a generator
        "w = next(self.stream)\nreturn w + i",
        "w = list(self.stream)\nreturn w[0] + i",
        "w = next(self.several['a'])\nreturn w + i",
        "w = self.queue.get()\nreturn w + i",
        "source = self.queue\nw = source.get(timeout=1)\nreturn w + i",
        "w = self.names.pop()\nreturn w, i",
        "if i % 7 == 3:\n    self.names.append(i)\nw = sorted(self.names)\nreturn w[0], i",
        "names = self.names\nnames.append(i)\nw = sorted(self.names)\nreturn w[0], i",
        "self.table[i] += 1\nif i:\n    w = sorted(self.table)\n    i += w[0]\nreturn i",
        "random.shuffle(self.names)\nw = ' '.join(sorted(self.names))\nreturn w[0], i",
        "w = sorted(self.refilled)\nreturn w[0] + i",  # another method changes it
        "return i in self.replaced, i",
        "BAD.append(i)\nw = sorted(BAD)\nreturn w[0] + i",
    ],
)
def test_what_is_not_the_same_for_all_samples_is_left_alone(body, constants):
    owner = constants(body)
    type(owner).other = lambda self, n: n
    for name in ("computed-each-time", "read-each-time", "list-membership"):
        assert proposals(name, type(owner).__getitem__, owner=owner) == []


@pytest.mark.parametrize("container", ["[*range(50), torch.tensor(3)]", "[0.1] * 50", "[(1, np.float32(1))] * 50"])
def test_items_that_are_equal_with_other_hashes_are_not_put_in_a_set(container, tmp_path):
    function = defined(tmp_path, f"import numpy as np, torch\nrows = {container}\ndef f(x):\n    return x in rows")
    assert proposals("list-membership", function) == []


@pytest.mark.parametrize(("line", "found"), [("self.names[i] = 'x'", 0), ("self.names = ['x'] * 50", 1)])
def test_a_list_whose_items_are_replaced_is_not_put_in_a_set(line, found, tmp_path):
    source = f"""\
        class Data:
            def __init__(self):
                self.names = [str(n) for n in range(50)]
                self.names[0] = "first"
            def rename(self, i):
                {line}
            def __getitem__(self, i):
                return i in self.names
        f = Data
        """
    owner = defined(tmp_path, source)()
    assert len(proposals("list-membership", type(owner).__getitem__, owner=owner)) == found


class Folded(str):
    """Text that is equal to others that have the same letters."""

    __slots__ = ()

    def __eq__(self, other):
        return self.lower() == str(other).lower()

    __hash__ = str.__hash__


@pytest.mark.parametrize("items", [[Folded(n) for n in range(50)], np.arange(50, dtype="timedelta64[s]").tolist()])
def test_items_of_other_types_are_not_put_in_a_set(items, tmp_path):
    items = [np.timedelta64(n) for n in items] if not isinstance(items[0], Folded) else items
    assert changes("list-membership", defined(tmp_path, "def f(x):\n    return x in ITEMS", ITEMS=items)) == []


def test_the_variable_of_a_comprehension_is_no_global_list(tmp_path):
    source = "def f(x):\n    return [x in names for names in GROUPS]"
    assert changes("list-membership", defined(tmp_path, source, names=list(range(99)), GROUPS=[["a"]])) == []


def test_a_value_is_found_in_a_set_as_in_the_list(tmp_path):
    source = """\
        rows, pairs = list(range(50)), [(n, "a") for n in range(50)]
        def f(x):
            if x in rows or x in pairs:
                try:
                    return rows.index(x)
                except ValueError:
                    return "no position"
            return "not found"
        """
    function = defined(tmp_path, source)
    (proposal,) = [p for p in proposals("list-membership", function) if not p.must_help]
    assert "dict" in proposal.instead, "both lines lead to one change"
    assert "replaces 3 lookups" in proposal.instead
    values = [
        3,
        True,
        3.0,
        np.int64(4),
        torch.tensor(5),
        99,
        "a",
        None,
        (1, "a"),
        (torch.tensor(1), "a"),
        (1, ("a",)),
        {},
        np.str_("a"),
        Folded("A"),
    ]
    new = rewritten(function, proposal)
    assert [new(value) for value in values] == [function(value) for value in values]


def test_a_lookup_directly_before_the_slow_line_is_replaced_if_that_helps(tmp_path):
    source = """\
        rows = list(range(50))
        def f(x):
            known = x in rows
            if x not in rows and known:
                size = 3
                label = str(x)  # the first call
                known = not known
            return len(label)  # after another call
        """
    function = defined(tmp_path, source)
    found = {
        site.source.splitlines()[site.number - 1].strip(): [
            p.must_help for p in BY_NAME["list-membership"].propose(site)
        ]
        for site in sites(function)
    }
    assert found["known = x in rows"] == found["if x not in rows and known:"] == [False]
    assert found["label = str(x)  # the first call"] == [True], "only a trial tells"
    assert found["return len(label)  # after another call"] == []


LOOPS = {
    "a table": """\
        out = np.zeros(x.shape, np.float32)
        for r in range(x.shape[0]):
            for c in range(x.shape[1]):
                out[r, c] = table[x[r, c]] * 2.0 - 1.0
        return out""",
    "lists of lists, and a condition": """\
        rows = x.tolist()
        out = np.zeros((len(rows), len(rows[0])))
        for r in range(len(rows)):
            for c, value in enumerate(rows[0]):
                if rows[r][c] > 100 and not r == c:
                    out[r][c] = math.sqrt(rows[r][c]) if c < 3 else abs(value - r)
        return out""",
    "mean": """\
        total = 0.0
        for row in x:
            for value in row:
                total += float(value)
        return total / x.size""",
    "neighbors": """\
        out = np.zeros(x.shape)
        for r in range(1, x.shape[0] - 1):
            for c in range(1, x.shape[1] - 1):
                middle = float(x[r, c])
                out[r, c] += max(middle - x[r - 1, c + 1] / 2, 0.5)
        return out""",
    "gray": """\
        out = np.zeros(x.shape)
        pixels = np.stack([x, x + 1, x * 0.5], -1)
        for r in range(x.shape[0]):
            for c in range(x.shape[1]):
                red, green, blue = pixels[r, c]
                out[r, c] = 0.3 * red + 0.6 * green + 0.1 * blue
        return out""",
    "histogram": """\
        counts = np.zeros(256, int)
        for r in range(x.shape[0]):
            for c in range(x.shape[1]):
                counts[x[r, c]] += 1
        return counts""",
    "pairs": """\
        nearest, crowd = np.full((len(x), len(x)), np.inf, np.float32), np.zeros(x.shape, np.float32)
        for t in range(x.shape[1]):
            for i in range(len(x)):
                for j in range(len(x)):
                    if i == j:
                        continue
                    d = math.sqrt(abs(float(x[i, t]) - float(x[j, t])))
                    nearest[i, j] = min(nearest[i, j], d)
                    if d < 9:
                        crowd[i, t] += 1
        return nearest, crowd""",
    "steps that are skipped late": """\
        out, most = np.zeros(x.shape), np.zeros(x.shape[1])
        for r in range(x.shape[0]):
            for c in range(x.shape[1]):
                half = int(x[r, c]) * 0.5
                if half > 60:
                    continue
                out[r, c] = half - c
                most[c] = max(half, most[c])
        return out, most""",
    "steps that are skipped in one loop": """\
        out = []
        for value in x[0]:
            if value > 128:
                continue
            out.append(float(value) * 0.5)
        return out""",
    "places from the other end": """\
        out = np.zeros((3, 6, 7))
        for c, wanted in enumerate((10, 99, 200)):
            for i in range(6):
                for j in range(7):
                    if x[i, j] > wanted:
                        out[c, 5 - i, 6 - j if wide else j] = 1.0
        return out""",
    "a sum under a condition": """\
        total, counts = 0, np.zeros(3, int)
        for r in range(x.shape[0]):
            for c in range(x.shape[1]):
                if x[r, c] > 99:
                    total += int(x[r, c]) * 2
                if x[r, c] < 50:
                    counts[r % 3] -= 1
        return total, counts""",
    "a list": """\
        out = []
        for value, other in zip(x[0], x[1]):
            out.append(float(value) * 0.5 + int(other))
        return out""",
    "comprehension": "return np.array([(float(v) - 100.0) / 3.0 for v in x[0]])",
    "comprehension of numbers": "return [int(v) * 3 for v in x[0]]",
    "table in a comprehension": "return np.array([table[v] for v in x[1]])",
    "sum": "return sum((int(v) - 3) ** 2 for v in x[0])",
}


@pytest.mark.parametrize("case", LOOPS)
def test_a_python_loop_over_numbers_becomes_one_of_arrays(case, tmp_path):
    body = textwrap.indent(textwrap.dedent(LOOPS[case]), "    ")
    function = defined(
        tmp_path, f"import math\nimport numpy as np\nwide = True\ntable = np.linspace(0, 1, 256)\ndef f(x):\n{body}\n"
    )
    x = np.random.default_rng(0).integers(0, 256, (6, 7)).astype(np.uint8)
    found = [proposal for proposal in of_arrays(function) if proposal.code]
    codes = "\n".join(proposal.code for proposal in found)
    assert "np." in codes
    assert all("for " not in proposal.code.replace(" for one in np", "") for proposal in found)
    same = [difference(function(x), rewritten(function, proposal)(x)) for proposal in found]
    assert any(one.equal for one in same) or min(one.largest for one in same if not one.problem) < 1e-12


EDGES = {
    "repeated places": (
        "out = np.zeros(3)\nfor j in x[0]:\n    out[j] += x[1][j]\nreturn out",
        [([1, 1, 0], [2, 3, 4]), ([], [2]), ([2], [1, 1, 1])],
    ),
    "subtracted": (
        "out = np.zeros(3)\nfor i, j in enumerate(x):\n    out[j] -= i + 1\nreturn out", [[1, 1, 0], [], [-1, 2, 2]],
    ),
    "negative places": (
        "out = np.zeros(3)\nfor i in range(-2, x):\n    out[i] += i\nreturn out", [3, 2, 1],
    ),
    "one place for a row": (
        "out = np.zeros(3)\nfor i in range(len(x)):\n    for j in range(3):\n        out[j] += 1\nreturn out",
        [[1, 2], [1], []],
    ),
    "rows of several lengths": (
        "s = 0\nfor i in range(len(x)):\n    for j in x[i]:\n        s += j * 2.0 + i\nreturn s",
        [[[1, 2], [3]], [[1, 2, 3], [4, 5, 6]], []],
    ),
    "a place that moves": (
        "out = np.zeros(3)\nfor i in range(len(x)):\n    i = i // 2\n    out[i] += x[i]\nreturn out", [[1, 2, 3, 4]],
    ),
    "lists of several lengths": (
        "out = []\nfor a, b in zip(x[0], x[1]):\n    out.append(a * b)\nreturn out",
        [([2], [1, 2, 3]), ([1, 2], [3]), ([], [1])],
    ),
    "numbered pairs": (
        "out = np.zeros(9)\nfor i, (a, b) in enumerate(zip(x[0], x[1])):\n    out[i] += a * b\nreturn out",
        [([2], [1, 2, 3]), ([1, 2], [3, 4])],
    ),
    "places in an empty list": (
        "out = np.zeros(9)\nfor i in range(len(x)):\n    out[i] = x[x[i]]\nreturn out", [[0, 2, 1], []],
    ),
    "places in a comprehension": (
        "table = np.arange(5.0)\nreturn np.array([table[v] for v in x], float)", [[0, 3], []],
    ),
}  # fmt: skip
"""Loops, and values that differ in what matters to them."""


@pytest.mark.parametrize("case", EDGES)
def test_a_loop_of_arrays_is_right_for_repeated_places_and_for_lists_of_any_length(case, tmp_path):
    body, values = EDGES[case]
    function = defined(tmp_path, f"import numpy as np\ndef f(x):\n{textwrap.indent(body, '    ')}\n")
    codes = [rewritten(function, one) for one in of_arrays(function) if one.code]
    right = [all(difference(function(x), new(x)).equal for x in values) for new in codes]
    assert any(right)


@pytest.mark.parametrize("line", ["s += v * v", "s += int(v) ** 2"])
def test_loops_over_integers_come_with_the_size_of_those_of_numpy(line, tmp_path):
    function = defined(
        tmp_path, f"import numpy as np\ndef f(x):\n    s = 0\n    for v in x:\n        {line}\n    return s"
    )
    assert all("64 bits" in proposal.instead for proposal in proposals("python-loop", function))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("z = [0] * 9\nfor i in range(len(x)):\n    if x[i] > 2:\n        z[x[i]] = i * 2\nreturn z", 0),
        ("s = 0\nfor i in range(len(x)):\n    s += x[i] ** 5\nreturn s", 0),
        ("s = 0\nfor v in x:\n    s += 1 << v\nreturn s", 0),
        ("s = 1\nfor v in x:\n    s *= v\nreturn s", 0),
        ("return [v ** v for v in x]", 0),
        ("s = 0\nfor i, v in enumerate(draw()):\n    s += i * v\nreturn s", 0),
        ("for row in x:\n    print(row)\nreturn x", 0),
        ("return [v.strip() + 'a' for v in x]", 0),
        ("return [v + [0] for v in x]", 0),
        ("return [v['a'] * 2 for v in x]", 0),
        ("y = 1\nfor v in x:\n    y = y * 2\nreturn y", 0),
        ("for r in range(9):\n    for c in range(9):\n        while c:\n            x[r] = x[c] * 2\nreturn x", 1),
    ],
)
def test_other_loops_are_left_alone_or_only_named(body, found, tmp_path):
    function = defined(tmp_path, f"import numpy as np\ndef f(x):\n{textwrap.indent(body, '    ')}\n")
    named = of_arrays(function)
    assert len(named) == found
    assert all(proposal.untried and not proposal.code and "90%" in proposal.why for proposal in named)


QUERIES = {
    "row": 'return db.execute("SELECT x, id FROM t WHERE id = ?", (i,)).fetchone()',
    "rows": 'return db.execute("select * from t where x = ?", [str(i % 3)]).fetchall()',
    "no row": "return db.execute(QUERY, (-i - 1,)).fetchone()",
}


@pytest.mark.parametrize("case", QUERIES)
def test_a_table_is_read_once_instead_of_queried_for_each_sample(case, tmp_path):
    source = f"""\
        import sqlite3
        QUERY = "SELECT x FROM t WHERE id = ? LIMIT 1"
        def f(path, i):
            db = sqlite3.connect(path)
            try:
                {QUERIES[case]}
            finally:
                db.close()
        """
    function = defined(tmp_path, source)
    path = str(tmp_path / "t.db")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (id INTEGER, x TEXT)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(n, str(n % 3)) for n in range(10)])
        database.commit()
    (proposal,) = proposals("sql-lookup", function)
    new = rewritten(function, proposal)
    assert [function(path, i) for i in range(5)] == [new(path, i) for i in range(5)]
    assert "CREATE INDEX t_" in proposal.instead


@pytest.mark.parametrize("column", ["x TEXT", "x", "x TEXT COLLATE NOCASE", "x INTEGER"])
def test_values_are_found_in_a_table_as_by_the_query(column, tmp_path):
    source = """\
        import sqlite3
        def f(db, value):
            return db.execute("SELECT id FROM t WHERE x = ?", (value,)).fetchall()
        """
    function = defined(tmp_path, source)
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as database:
        database.execute(f"CREATE TABLE t (id INTEGER, {column})")
        rows = ["a", "A", None, "b", 1, "1", 2.0]
        database.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate(rows)))
        database.commit()
        (proposal,) = proposals("sql-lookup", function)
        new = rewritten(function, proposal)
        for value in [*rows, "B", "missing", 1.0, "2"]:
            assert new(database, value) == function(database, value)


def test_a_large_table_is_not_read_into_memory(tmp_path):
    source = """\
        import sqlite3
        def f(db, i):
            return db.execute("SELECT x FROM t WHERE id = ?", (i,)).fetchone()
        """
    function = defined(tmp_path, source)
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as database:
        database.execute("CREATE TABLE t (id INTEGER, x TEXT)")
        database.execute("INSERT INTO t VALUES (1, 'a')")
        database.commit()
        (proposal,) = proposals("sql-lookup", function)
        new = rewritten(function, proposal)
        function.__globals__["_largest"] = 100
        queries = []
        database.set_trace_callback(queries.append)
        assert new(database, 1) == ("a",)
        assert queries[-1].endswith("WHERE id = 1")
        assert not any(query.endswith("FROM t") for query in queries)


def test_a_limit_of_a_query_stays_in_force(tmp_path):
    source = """\
        def f(cursor, i):
            return cursor.execute("SELECT x FROM t WHERE id = ? LIMIT 1", (i,)).fetchall()
        """
    (proposal,) = proposals("sql-lookup", defined(tmp_path, source))
    assert not proposal.code


def test_an_index_is_named_for_a_query_that_is_not_rewritten(tmp_path):
    source = """\
        def f(cursor, i):
            cursor.execute("SELECT x FROM t WHERE id = ?", (i,))
            return cursor.fetchone(), cursor.execute("SELECT x FROM t WHERE id > ? ORDER BY x", (i,))
        """
    (proposal,) = proposals("sql-lookup", defined(tmp_path, source))
    assert "CREATE INDEX t_id ON t (id)" in proposal.instead
    assert proposal.untried


def test_a_connection_that_is_kept_open_is_not_closed(tmp_path):
    source = """\
        import sqlite3
        def f(path):
            db = sqlite3.connect(path)
            found = db.execute("SELECT 1").fetchone()
            db.close()
            return found
        """
    function = defined(tmp_path, source)
    (proposal,) = proposals("opened-each-time", function)
    new = rewritten(function, proposal)
    assert [new(":memory:"), new(":memory:")] == [(1,), (1,)]
    function.__globals__["kept_open"](":memory:").close()


def test_threads_share_what_a_process_can_open_only_once(tmp_path, monkeypatch):
    opened = []
    database = types.ModuleType("lmdb")
    database.open = lambda path: opened.append(path) or object()
    monkeypatch.setitem(sys.modules, "lmdb", database)
    function = defined(tmp_path, "import lmdb\ndef f(path):\n    return lmdb.open(path)")
    (proposal,) = proposals("opened-each-time", function)
    new = rewritten(function, proposal)
    thread = threading.Thread(target=new, args=("a",))
    thread.start()
    thread.join()
    new("a")
    assert opened == ["a"]


def test_two_kinds_of_archives_are_each_opened_as_they_are(files):
    source = """\
        import tarfile, zipfile
        def f(path):
            with zipfile.ZipFile(path + "/a.npz") as numbers, tarfile.open(path + "/a.tar.gz") as archive:
                return numbers.namelist(), archive.getnames()
        """
    function = defined(files, source)
    (proposal,) = proposals("opened-each-time", function)
    new = rewritten(function, proposal)
    assert new(str(files)) == function(str(files))
    function.__globals__["kept_open"](str(files / "a.npz")).close()


def test_threads_do_not_share_an_archive(files):
    source = """\
        import tarfile
        def f(path):
            with tarfile.open(path) as archive:
                return archive
        """
    function = defined(files, source)
    (proposal,) = proposals("opened-each-time", function)
    new = rewritten(function, proposal)
    path = str(files / "a.tar.gz")
    archives = [new(path), new(path)]
    thread = threading.Thread(target=lambda: archives.append(new(path)))
    thread.start()
    thread.join()
    try:
        assert archives[0] is archives[1]
        assert archives[0] is not archives[2]
    finally:
        for archive in archives:
            archive.close()


def test_a_loader_of_a_library_is_looked_at_if_users_can_pass_their_own(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages" / "torchvision" / "datasets"
    folder.mkdir(parents=True)
    text = """\
from PIL import Image

def pil_loader(path):
    with open(path, "rb") as f:
        img = Image.open(f)
        return img.convert("RGB")
"""
    (folder / "folder.py").write_text(text, encoding="utf-8")
    module = types.ModuleType("torchvision.datasets.folder")
    module.__file__ = str(folder / "folder.py")
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    line = CodeLine(module.__file__, "pil_loader", 6)
    inner = CodeLine("/x/site-packages/PIL/ImageFile.py", "load", 300)
    hot = find_hot_lines(
        (StackCount((line, inner), 80, 5), StackCount((CodeLine(__file__, "f", 3), line, inner), 15, 0)),
        profiling=True, is_library=lambda file: file != __file__, source=lambda *_: "", place=lambda *_: "there",
    )  # fmt: skip
    samples = Samples(object(), None, (), iterable=False, facts=Facts((50, 40)))
    (found,) = search(hot, samples, run=None, predict=None)
    assert found.name == "full-size-jpeg"
    assert found.line.share == pytest.approx(1.0)
    assert "opened.draft('RGB', (100, 80))" in found.code.replace('"', "'")
    assert "Pass it: ImageFolder(..., loader=pil_loader)." in str(found)


# ---- pictures -------------------------------------------------------------------------------------------------------


def decoded(png):
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_the_picture_that_differs_most_is_drawn(make):
    before = np.random.default_rng(0).integers(0, 200, (3, 20, 30, 3)).astype(np.uint8)
    after = before.copy()
    after[1] += 5
    after[0, :, :10] += 1
    found = pictures_of({"x": make(before), "y": 1}, {"x": make(after), "y": 1})
    assert np.array_equal(decoded(found.before), before[1])
    assert np.array_equal(decoded(found.after), after[1])
    assert (decoded(found.difference) == 255).all()
    assert pictures_of(make(before), make(before)) is None
    assert pictures_of([1.0], [2.0]) is None


def test_large_pictures_and_floats_are_drawn_in_a_limited_size():
    before = np.random.default_rng(0).normal(size=(3, 700, 900)).astype(np.float32)
    found = pictures_of((before, "x"), (before * 1.1, "x"))
    assert decoded(found.before).shape == (234, 300, 3)
    assert size_of(before) == (900, 700)
    assert size_of(np.zeros((3, 700))) is None


# ---- differences ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (torch.ones(2), torch.ones(2), "equal"),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), "equal"),
        ({"a": [1, "x"]}, {"a": [1, "x"]}, "equal"),
        (np.array([0.0, 10.0]), np.array([0.0, 8.0]), "differences of up to 2 (1 on average) in a range of 10"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "dtype torch.float64 instead of torch.float32"),
        (np.ones(2), np.ones(3), "shape (3,) instead of (2,)"),
        (np.ones(2), torch.ones(2), "is a Tensor instead of a ndarray"),
        ({"a": 1}, {"b": 1}, "keys ['b'] instead of ['a']"),
        ((1, 2), (1,), "1 items instead of 2"),
        ([1, "x"], [1, "y"], "the sample[1] differs"),
        (np.array(["a"]), np.array(["b"]), "differs"),
        (np.array([np.nan]), np.array([1.0]), "not finite"),
        (np.array([True, False]), np.array([True, True]), "differences of up to 1 (0.5 on average) in a range of 1"),
        (torch.tensor([True]), torch.tensor([False]), "differences of up to 1 "),
        (float("nan"), float("nan"), "equal"),
        (3, 4, "differences of up to 1 "),
    ],
)
def test_differences_are_named(before, after, found):
    assert found in str(difference(before, after))
    assert difference(before, copy.deepcopy(before)).equal


class Photographs:
    """Two slow lines of one function, for which the same code is known."""

    def __getitem__(self, index):
        picture = Image.open(str(index)).convert("RGB").resize((100, 75))
        return torch.as_tensor(np.array(picture))


SHORT = {
    "Read the file once per worker": ["np.load(self.path)['x']", "pd.read_csv(self.path)", "torch.load('a.pt')"],
    "Store arrays with numpy.save, not as .npz": ["np.load(self.paths[i])['x']", "np.load(f'{self.path}/{i}')['x']"],
    "Parse JSON with orjson": ["json.loads(self.rows[i])"],
    "List the files once, in __init__": ["os.listdir(self.path)"],
    "Convert the data frame to arrays once": ["self.frame.iloc[i]"],
    "Remove the print call": ["print(i)"],
    "Replace copy.deepcopy with a copy of what later code changes": ["copy.deepcopy(self.rows)"],
    "Decode JPEGs at the size that is used": ["Image.open(self.paths[i]).convert('RGB').resize((64, 64))"],
    "Convert to float in the loop, not in the workers": ["np.asarray(self.rows[i], np.float32) / 255"],
    "Read the file once, in __init__": ["open(self.path).readlines()[i]", "json.load(open('a.json'))[i]"],
    "Convert all numbers in one call": ["[x.item() for x in self.rows[i]]"],
    "": [
        "np.load(self.paths[i])",  # perhaps each sample has a file of its own
        "np.load(self.pick())",
        "(yield pd.read_csv(self.path))",  # perhaps once for many samples
        "pd.read_csv(self.paths[i])",
        "h5py.File(self.paths[i])",
        "self.rows[i] @ self.rows[i]",  # perhaps one thread computes already
        "re.sub('a', 'b', self.rows[i])",  # perhaps the time is that of the search itself
        "np.asarray(self.rows[i], np.float32)",  # perhaps of a list
        "sum(range(i))",
    ],
}  # fmt: skip
"""What a verdict says about an expression that `__getitem__` returns."""


@pytest.mark.parametrize(("short", "code"), [(short, code) for short, codes in SHORT.items() for code in codes])
def test_a_verdict_has_a_few_words_about_a_line_where_the_code_alone_tells_what_helps(
    short, code, tmp_path, monkeypatch
):
    monkeypatch.setattr("nbloader.remedies.advice.accelerator_type", lambda: "cuda")
    names = {}
    code = code if code.startswith("print") else f"return {code}"
    path = tmp_path / "data.py"
    path.write_text(
        "import copy, json, os, re\nimport numpy as np\nimport pandas as pd\nimport torch\nfrom PIL import Image\n"
        "class Rows:\n    def pick(self):\n        return 'a'\n"
        f"    def __getitem__(self, i):\n        # one sample\n        {code}\n"
    )
    exec(compile(path.read_text(), str(path), "exec"), names)
    line = line_of(names["Rows"].__getitem__, 2)
    assert short_advice(line, [torch.utils.data.Subset(names["Rows"](), [1]), None]).remedy == short
    assert short_advice(line, []) == Advice(), "the function is not reachable"
    if "in the loop" in short:
        monkeypatch.setattr("nbloader.remedies.advice.accelerator_type", lambda: "")
        advice = short_advice(line, [names["Rows"]()])
        assert advice == Advice(), "on a CPU, only a trial tells"


def test_a_remedy_that_raises_leaves_the_verdict_as_it_is(monkeypatch, archive):
    class Broken:
        name = "broken"

        def propose(self, site):
            raise RecursionError(site.source)

    line = line_of(Archive.__getitem__, 1)
    assert short_advice(line, [archive]) == Advice(*["Read the file once per worker"] * 2)
    monkeypatch.setattr("nbloader.remedies.advice.REMEDIES", (Broken(),))
    assert short_advice(line, [archive]) == Advice()


def test_code_that_two_lines_lead_to_is_shown_once():
    lines = tuple(line_of(Photographs.__getitem__, number) for number in (1, 2))
    samples = Samples(Photographs(), None, (), iterable=False)
    found = search(HotLines(lines=lines, samples=100), samples, run=None, predict=None)
    assert [one.name for one in found] == ["full-size-jpeg"]


# ---- with real workers ----------------------------------------------------------------------------------------------


class Archive:
    """Reads a compressed archive for each sample."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 200

    def __getitem__(self, index):
        rows = np.load(self.path)["x"]
        return torch.from_numpy(rows[index].copy())


def profiled(loader, line=None):
    """The loader after enough epochs for samples of a line."""
    loader.profile_lines()
    for _ in range(50):
        for _batch in loader:
            pass
        if loader.hot_lines().samples >= 20:
            return loader
    raise AssertionError(loader.hot_lines())


@pytest.fixture
def archive(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(200, 2000)))
    return Archive(str(tmp_path / "x.npz"))


def test_a_remedy_for_a_cell_is_tried_in_a_worker_that_does_not_know_the_cell(archive, tmp_path):
    done = run_script(
        f"""
        import multiprocessing
        from IPython.core.interactiveshell import InteractiveShell
        from nbloader import DataLoader
        multiprocessing.set_start_method("spawn")
        shell = InteractiveShell.instance()
        shell.run_cell('''
        import numpy as np
        class Rows:
            def __len__(self):
                return 200
            def __getitem__(self, i):
                rows = np.load({archive.path!r})["x"]
                return rows[i].copy()
        ''')
        if __name__ == "__main__":
            with DataLoader(shell.user_ns["Rows"](), 8, num_workers=1) as loader:
                loader.profile_lines()
                while loader.hot_lines().samples < 20:
                    for _ in loader:
                        pass
                print(loader.remedies(samples=10))
        """,
        tmp_path,
    )
    assert "Tried on" in done.stdout, done
    assert "kept_load_rows" in done.stdout


def test_a_remedy_is_tried_on_the_samples_and_nothing_is_changed(archive):
    code = Archive.__getitem__.__code__
    with nbloader.DataLoader(archive, batch_size=8, num_workers=1) as loader:
        found = profiled(loader).remedies(samples=10)
        by_name = {one.name: one for one in found}
        only, cache = by_name["read-each-time"], by_name["same-each-epoch"]
        assert len(found) == 2
        assert only.gain > 2
        assert only.difference.equal
        assert only.samples >= 10
        assert "kept_load_rows('x', self.path)" in only.code.replace('"', "'")
        text, html = str(found), found._repr_html_()
        before, inside = only.code.split("# In `class Archive`:\n")
        assert before.startswith("# Before `class Archive`:\n")
        assert inside.startswith("def __getitem__(self, ")
        for part in ("Tried on", "The samples are equal", "kept_load", only.line.place):
            assert part in text
        assert cache.gain > 2
        assert cache.difference.equal
        assert "from the second epoch on" in text
        assert cache.kept_in_all == 200 * cache.kept
        assert 16_000 < cache.kept < 30_000, "2000 numbers of 8 bytes"
        assert "The cache takes" in text
        for part in ("<table>", "kept_load", f"{only.gain:.1f}x"):
            assert part in html
        told = f"{found[0].proposal.short} ({found[0].line.place}), as loader.remedies() has shown"
        assert told.lower() in loader.stats().epoch_verdict.sentence.lower()
        listed = loader.remedies(samples=0)
        assert [one.name for one in listed] == ["read-each-time"]
        assert listed[0].samples == 0
        assert "Not tried" in str(listed)
    assert Archive.__getitem__.__code__ is code
    assert "kept_load_rows" not in globals()


class Weighted:
    """Draws items with probabilities."""

    def __init__(self):
        weights = np.random.default_rng(0).random(60)
        self.weights = weights / weights.sum()
        self.items = np.arange(60) * 0.5


@pytest.mark.parametrize(
    ("draw", "found"),
    [
        ("np.random.choice(60, p=self.weights)", 1),
        ("np.random.choice(np.int64(60), size=None, p=self.weights)", 1),
        ("np.random.choice(self.items, 4, True, self.weights)", 1),
        ("np.random.choice(self.items, size=(2, 3), p=self.weights)", 1),
        ("np.random.choice(60, (2, 3), p=self.weights), np.random.choice(self.items, p=self.weights)", 1),
        ("np.random.choice(60, 4, False, self.weights)", 0),
        ("np.random.choice(60, 4, p=self.weights[::-1])", 0),
        ("np.random.choice(60)", 0),
        ("np.random.choice(*[60], p=self.weights)", 0),
        ("np.random.choice(60, **{'p': self.weights})", 0),
    ],
)
def test_items_are_drawn_with_sums_that_are_computed_once(draw, found, tmp_path):
    function = defined(tmp_path, f"import numpy as np\ndef f(self):\n    return {draw}")
    owner = type("Drawing", (Weighted,), {"f": function})()
    listed = proposals("weighted-choice", function, owner=owner)
    assert len(listed) == found
    for proposal in listed:
        new = rewritten(function, proposal)
        for seed in range(20):
            np.random.seed(seed)
            usual, after = function(owner), np.random.random()
            np.random.seed(seed)
            drawn = new(owner)
            assert np.random.random() == after, "as many random numbers are drawn"
            for one, other in zip(*(x if type(x) is tuple else (x,) for x in (usual, drawn)), strict=True):
                assert type(one) is type(other)
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("draw", "found"),
    [
        ("np.random.choice(self.items, 4, replace=False)", 1),
        ("np.random.choice(self.items.tolist(), 4, False)", 1),
        ("np.random.choice(size=self.few, replace=False, a=60)", 1),
        ("np.random.choice(60, 4, replace=False), np.random.choice(self.items, size=3, replace=False)", 1),
        ("np.random.choice(self.items, 30, replace=False)", 1),  # too many to draw again
        ("np.random.choice(self.items, (2, 2), replace=False)", 1),
        ("np.random.choice(self.items, 4)", 0),
        ("np.random.choice(self.items, 4, True)", 0),
        ("np.random.choice(self.items, replace=False)", 0),
        ("np.random.choice(self.items, 4, False, self.weights)", 0),
        ("np.random.choice(self.items, 4, **{'replace': False})", 0),
    ],
)
def test_different_items_are_drawn_without_a_permutation(draw, found, tmp_path):
    function = defined(tmp_path, f"import numpy as np\ndef f(self):\n    return {draw}")
    owner = type("Drawing", (Weighted,), {"f": function, "few": 5})()
    listed = proposals("distinct-choice", function, owner=owner)
    assert len(listed) == found
    for proposal in listed:
        assert proposal.must_differ
        new = rewritten(function, proposal)
        np.random.seed(0)
        drawn = collections.defaultdict(collections.Counter)
        for _ in range(2000):
            pairs = [x if type(x) is tuple else (x,) for x in (function(owner), new(owner))]
            for number, (one, other) in enumerate(zip(*pairs, strict=True)):
                assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)
                assert len(set(other.ravel().tolist())) == other.size
                drawn[number].update(other.ravel().tolist())
        for counts in drawn.values():
            assert len(counts) == 60
            assert max(counts.values()) < 2.5 * min(counts.values()), "all items are equally likely"


CROPS = {
    "limits in front": ("x = x + 1\n    x = x * 2\n    return_ = x[2:5, 1:4]", True),
    "inside": ("x = np.asarray(x) / 2\n    x = x - 1\n    return_ = x[..., 2:5]", True),
    "limits later": ("x = x + 1\n    a = k // 2\n    x = x * 2\n    b = a + 3\n    return_ = x[a:b]", True),
    "limits from the shape": ("x = x + 1\n    a = x.shape[0] // 2\n    x = x * 2\n    return_ = x[a:]", True),
    "random limits": ("x = x + 1\n    a = np.random.randint(3)\n    x = x * 2\n    return_ = x[a : a + 4]", True),
    "nothing between": ("x = x + 1\n    a = k // 2\n    return_ = x[a:5]", False),
    "random limits and values": (
        "x = x + 1\n    a = np.random.randint(3)\n    x = x * np.random.rand()\n    a += 1\n    return_ = x[a:]", False,
    ),
    "the same name": ("x = x + 1\n    x = x * 2\n    x = x[2:5]\n    return_ = x + 1", True),
    "a branch": ("x = x + 1\n    if k > 2:\n        x = x * 2\n    return_ = x[2:5]", True),
    "used later": ("x = x + 1\n    x = x * 2\n    part = x[2:5]\n    return_ = part, x.sum()", False),
    "used twice": ("x = x + 1\n    x = x * 2\n    return_ = x[2:5] - x.mean()", False),
    "one place": ("x = x + 1\n    x = x * 2\n    return_ = x[3]", False),
    "all of it": ("x = x + 1\n    x = x * 2\n    return_ = x[:, :]", False),
    "in steps": ("x = x + 1\n    x = x * 2\n    return_ = x[:8:2]", False),
}  # fmt: skip


@pytest.mark.parametrize(("body", "found"), CROPS.values(), ids=CROPS)
def test_a_part_of_an_array_is_taken_before_the_rest_is_computed(body, found, tmp_path):
    function = defined(tmp_path, f"import numpy as np\ndef f(x, k):\n    {body}\n    return return_\n")
    site = sites(function)[1]
    listed = BY_NAME["crop-first"].propose(site)
    assert bool(listed) is found
    for proposal in listed:
        assert proposal.must_be_equal, "whether each value depends on its place alone is not analyzed"
        for k in range(5):
            x = np.random.default_rng(k).random((10, 10))
            np.random.seed(k)
            usual = function(x.copy(), k)
            np.random.seed(k)
            np.testing.assert_array_equal(usual, rewritten(function, proposal)(x.copy(), k))


ITERATED = {
    "loop": ("for _, row in frame.iterrows():\n        found.append((row['x'], row['y'] * 2))", 1),
    "index": ("for i, row in frame[frame['x'] > 1].iterrows():\n        found.append((i, row['y']))", 1),
    "comprehension": ("found = [row[name] for _, row in frame.iterrows() for name in ['x', 'y']]", 0),
    "a name": ("name = 'x'\n    found = {i: row[name] for i, row in frame.iterrows() if row['y'] != 'b'}", 1),
    "in a method": ("for _, row in frame.sort_values('y').iterrows():\n        found += [row['y'], row['z']]", 1),
    "a Series": ("for _, row in frame.iterrows():\n        found.append(row.sum())", 0),
    "parts": ("for _, row in frame.iterrows():\n        found.append(row[['x', 'z']].sum())", 0),
    "a position": ("for _, row in frame.iterrows():\n        found.append(row.iloc[0])", 0),
    "changed": ("for _, row in frame.iterrows():\n        row['x'] = 0\n        found.append(row['x'])", 0),
    "passed on": ("for _, row in frame.iterrows():\n        found.append(str(row))", 0),
    "used later": ("for _, row in frame.iterrows():\n        found.append(row['x'])\n    found.append(row)", 0),
    "no row": ("for pair in frame.iterrows():\n        found.append(pair[1]['x'])", 0),
    "another loop": ("for row in frame.itertuples():\n        found.append(row.x)", 0),
}


@pytest.mark.parametrize(("body", "found"), ITERATED.values(), ids=ITERATED)
def test_rows_of_a_data_frame_are_dicts_in_a_loop(body, found, tmp_path):
    frame = pd.DataFrame({"x": [1, 2, 3], "y": ["a", "b", "c"], "z": [1.5, 2.5, 3.5]}, index=[5, 7, 9])
    function = defined(tmp_path, f"def f(frame):\n    found = []\n    {body}\n    return found\n")
    listed = changes("iterated-rows", function)
    assert len(listed) == found
    for proposal in listed:
        assert rewritten(function, proposal)(frame) == function(frame)


PAIRS = {
    "norm": ("np.linalg.norm(a[:, None] - b[None], axis=-1)", 1),
    "norm of three axes": ("np.linalg.norm(a[:, np.newaxis, :] - b[np.newaxis, :, :], axis=2)", 1),
    "the other way": ("np.linalg.norm(a[None] - b[:, None], axis=-1)", 1),
    "squares": ("((a[:, None] - b[None, :]) ** 2).sum(-1)", 1),
    "root": ("np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2))", 1),
    "power": ("np.sum(np.square(a[:, None] - b[None]), axis=-1) ** 0.5", 1),
    "part of more": ("np.argmin(np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1)), axis=1).mean()", 1),
    "a variable": ("diff = a[:, None] - b[None]\n    return np.sqrt((diff * diff).sum(-1)).min(1)", 1),
    "a variable that is used twice": ("d = a[:, None] - b[None]\n    return np.linalg.norm(d, axis=-1) + d.sum(-1)", 1),
    "another axis": ("np.linalg.norm(a[:, None] - b[None], axis=1)", 0),
    "another norm": ("np.linalg.norm(a[:, None] - b[None], 1, axis=-1)", 0),
    "axes that stay": ("((a[:, None] - b[None]) ** 2).sum(-1, keepdims=True)", 0),
    "absolute differences": ("np.abs(a[:, None] - b[None]).sum(-1)", 0),
    "a part": ("((a[:5, None] - b[None]) ** 2).sum(-1)", 0),
    "one axis": ("((a[:, None] - b) ** 2).sum(-1)", 0),
    "products": ("((a[:, None] * b[None]) ** 2).sum(-1)", 0),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("code", "found"), PAIRS.values(), ids=PAIRS)
def test_distances_of_all_pairs_are_computed_pair_by_pair(code, found, dtype, tmp_path):
    pytest.importorskip("scipy")
    body = code if "return" in code else f"return {code}"
    function = defined(tmp_path, f"import numpy as np\ndef f(a, b):\n    {body}\n")
    listed = changes("pair-distances", function)
    assert len(listed) == found
    a, b = (np.random.default_rng(n).random((count, 3)).astype(dtype) for n, count in enumerate((20, 30)))
    for proposal in listed:
        usual, now = function(a, b), rewritten(function, proposal)(a, b)
        assert usual.dtype == now.dtype
        np.testing.assert_allclose(usual, now, rtol=1e-5, atol=1e-6)
        assert ("diff =" in proposal.code) is False


SORTED = {
    "first": ("np.argsort(x[0])[:k]", 1),
    "second to last": ("np.argsort(-x, axis=1)[:, 1 : k + 1]", 1),
    "the last ones": ("np.argsort(x, -1)[:, -k:]", 1),
    "rows": ("np.argsort(x)[:k]", 1),
    "all but a few": ("np.argsort(x)[:, :-k]", 1),
    "from one on": ("np.argsort(x)[:, k:]", 1),
    "reversed later": ("np.argsort(x[1])[-k:][::-1]", 1),
    "sorted": ("sorted(x[0])[:k]", 1),
    "sorted by a key": ("sorted(x[0].tolist(), key=lambda v: -v)[:3]", 1),
    "sorted in reverse": ("sorted(x[0], reverse=True)[:k]", 1),
    "the other axis": ("np.argsort(x, axis=0)[:, :k]", 0),
    "another kind of sort": ("np.argsort(x, kind='stable')[:, :k]", 0),
    "in steps": ("np.argsort(x)[:, :k:2]", 0),
    "a part of the rows": ("np.argsort(x)[1:, :k]", 0),
    "all": ("np.argsort(x)[:, :]", 0),
    "the lowest of sorted": ("sorted(x[0])[k:]", 0),
    "all but the last": ("sorted(x[0])[:-1]", 0),
}


@pytest.mark.parametrize(("code", "found"), SORTED.values(), ids=SORTED)
def test_only_the_values_that_are_used_are_sorted(code, found, tmp_path):
    function = defined(tmp_path, f"import numpy as np\ndef f(x, k):\n    return {code}\n")
    listed = changes("partial-sort", function)
    assert len(listed) == found
    for proposal in listed:
        for seed, k in itertools.product(range(5), (1, 3, 10, 40, 60)):
            x = np.random.default_rng(seed).permutation(4 * 50).reshape(4, 50) * 0.5
            np.testing.assert_array_equal(function(x, k), rewritten(function, proposal)(x, k))


DATES = (
    *("2026-11-30", "2026-11-30 09:15", "2026-11-30 09:15:07", "2026-11-30T09:15:07", "2026-11-30 09:15:07.250000"),
    *("2026-11-30 09:15:07.25", "2026-11-30T09:15:07+01:00", "30 Nov 2026", "11/30/2026", "2026-1-3", "9:15", "none"),
)


@pytest.mark.parametrize(
    ("read", "found"),
    [
        ("parser.parse(text)", 1),
        ("[parser.parse(one) for one in (text, text)]", 1),
        ("datetime.strptime(text, '%Y-%m-%d')", 1),
        ("datetime.strptime(text, FORM)", 1),
        ("dt.datetime.strptime(text, '%Y-%m-%d %H:%M:%S.%f')", 1),
        ("dt.datetime.strptime(text, '%Y-%m-%dT%H:%M:%S')", 1),
        ("pd.to_datetime(text)", 1),
        ("pd.to_datetime([text, text])", 1),
        ("parser.parse(text, dayfirst=True)", 0),
        ("parser.parse(*[text])", 0),
        ("datetime.strptime(text, '%d.%m.%Y')", 0),
        ("datetime.strptime(text, '%Y-%m-%d %H')", 0),
        ("pd.to_datetime(text, utc=True)", 0),
        ("(lambda parse: parse(text))(parser.parse)", 0),
    ],
)
@pytest.mark.filterwarnings("ignore:Could not infer format")
def test_dates_in_iso_format_are_read_by_a_parser_for_them(read, found, tmp_path):
    pytest.importorskip("dateutil")
    source = f"""\
        import datetime as dt
        from datetime import datetime
        import pandas as pd
        from dateutil import parser
        FORM = "%Y-%m-%d %H:%M"
        def f(text):
            return {read}
        """
    function = defined(tmp_path, source)
    listed = proposals("date-text", function)
    assert len(listed) == found
    for proposal in listed:
        new = rewritten(function, proposal)
        for text in DATES:
            results = []
            for one in (function, new):
                try:
                    results.append(one(text))
                except ValueError as error:
                    results.append(type(error))
            assert np.all(results[0] == results[1])


def test_probabilities_that_change_are_added_up_each_time(tmp_path):
    source = """\
        import numpy as np
        def f(self):
            self.weights[0] = 0
            return np.random.choice(60, p=self.weights)
        """
    function = defined(tmp_path, source)
    assert not proposals("weighted-choice", function, owner=type("Drawing", (Weighted,), {"f": function})())


class Volumes:
    """Takes fifty samples from each of four volumes, which it computes for each sample."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        number = index // 50
        volume = np.sort(np.sqrt(np.arange(100_000.0) % (number + 2)))
        return torch.from_numpy(volume[index % 50 :: 50] + np.random.random())


def test_a_cache_takes_the_memory_of_the_results_that_samples_share():
    with nbloader.DataLoader(Volumes(), batch_size=8, num_workers=1) as loader:
        found = profiled(loader).remedies(samples=20)
    (cache,) = (one for one in found if one.name == "same-each-epoch")
    assert cache.cached.results in (3, 4), "samples are drawn at random, and seldom leave out one of the four"
    assert cache.cached.samples >= 20
    assert cache.kept_in_all < 6 * cache.kept
    assert re.search(r"about (4[0-9]|50|67) samples share a result of", str(cache))
    assert "gains only where samples share a result" in str(cache)
    assert 'nbloader.configure_cache(directory="cache") before the first epoch' in str(cache)


class Prepared(Archive):
    """Gets its file from `worker_init_fn` in each worker, and warns about what it reads."""

    def __getitem__(self, index):
        warnings.warn(f"sample {index} was read", stacklevel=2)
        return super().__getitem__(index)


def prepare(worker):
    info = nbloader.get_worker_info()
    info.dataset.path = f"{info.dataset.path}/x.npz"


@pytest.mark.filterwarnings("ignore:sample .* was read")
def test_a_trial_is_prepared_as_a_worker_is_and_shows_a_bar_and_no_warnings(archive, capfd):
    dataset = Prepared(os.path.dirname(archive.path))
    with nbloader.DataLoader(dataset, batch_size=8, num_workers=1, worker_init_fn=prepare) as loader:
        profiled(loader)
        capfd.readouterr()
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            found = loader.remedies(samples=10)
        told = capfd.readouterr().err
    assert found[0].name == "read-each-time"
    assert found[0].samples >= 10
    assert not [one for one in shown if "was read" in str(one.message)]
    assert "was read" not in told
    assert "trying remedies: 100%" in told
    assert found[0].line.place in told


class Quick:
    def __getitem__(self, index):
        return index


def search_in_quick():
    """Search for remedies of `Quick`, one sample at a time.

    Returns:
        The remedies, and the measurements that were made.
    """
    measured = []

    def run(trial):
        for position in range(len(trial)):
            one = trial[position]
            measured.extend([] if one is None else [one])
            yield one

    samples = Samples(Quick(), None, list(range(100)), iterable=False, batch_size=4)
    line = line_of(Quick.__getitem__, 1)
    return search(HotLines(lines=(line,), samples=100), samples, run, lambda *_args, **_options: None), measured


def test_a_change_that_is_far_slower_is_not_tried_on_all_samples(monkeypatch):
    class Slower:
        name = "slower"

        def propose(self, site):
            code = site.source.replace("return", "import time; time.sleep(0.1); return")
            return [nbloader.remedies.remedy.Proposal("Why.", "Instead.", code, short="Sleep for each sample")]

    monkeypatch.setattr("nbloader.loader.remedy_search.REMEDIES", (Slower(),))
    found, measured = search_in_quick()
    assert len(measured) == 1
    assert re.match(
        r"nbloader has no ready code that makes `Quick.__getitem__` \(here:1\) faster\. What remains: use more workers "
        r"where cores are free\.\n\n"
        r"Tried, not proposed: Sleep for each sample \(here:1\): 0\.00x\.$",
        repr(found),
    )


@pytest.mark.parametrize(("samples", "first", "measured"), [(3, 3, [3]), (9, 4, [4]), (42, 12, [4] * 7)])
def test_what_is_done_once_per_process_is_done_before_the_samples_that_are_measured(
    monkeypatch, samples, first, measured
):
    class Remedy:
        name = "remedy"

        def propose(self, site):
            return [nbloader.remedies.remedy.Proposal("Why.", "Instead.", site.source + "\n", short="Keep files")]

    groups = []

    def run(trial):
        groups.extend(map(len, trial.groups))
        return ()

    monkeypatch.setattr("nbloader.loader.remedy_search.REMEDIES", (Remedy(),))
    tried = Samples(Quick(), None, list(range(samples)), iterable=False, batch_size=4)
    search(HotLines(lines=(line_of(Quick.__getitem__, 1),), samples=100), tried, run, None)
    assert groups == [first, *measured]


@pytest.mark.parametrize("more", [True, False])
def test_what_is_made_of_the_results_of_a_cache_can_be_kept_as_well(more, tmp_path):
    source = f"""\
        import nbloader, numpy as np
        @nbloader.cached
        def same_each_epoch(path):
            return np.arange(len(path))
        class f:
            paths = ["abc", "defgh"]
            def __getitem__(self, i):
                page = same_each_epoch(self.paths[i])
                {"part = page[: i + 2] * 2" if more else "part = page + np.random.random()"}
                return part + np.random.random()
        """
    data = defined(tmp_path, source)()
    found = proposals("same-each-epoch", type(data).__getitem__, owner=data, facts=Facts(samples=100, nbytes=1000))
    assert len(found) == more
    for proposal in found:
        assert "def same_each_epoch_2(one_of_paths, i):\n    page = same_each_epoch(one_of_paths)\n" in proposal.helper
        new = rewritten(type(data).__getitem__, proposal)
        for index in (0, 1, 0):
            np.random.seed(index)
            usual = data[index]
            np.random.seed(index)
            np.testing.assert_array_equal(new(data, index), usual)


class TwoLines:
    def __getitem__(self, index):
        total = 0
        for digit in str(index):
            total += hash(digit)
        return total + self.other(index)

    def other(self, index):
        return index


@pytest.mark.parametrize("new_workers", [True, False])
def test_beside_remedies_for_other_lines_the_slowest_one_is_named_with_what_often_helps(monkeypatch, new_workers):
    class Remedy:
        name = "remedy"

        def propose(self, site):
            if site.function.__name__ != "other":
                return []
            return [
                nbloader.remedies.remedy.Proposal("Why.", "Instead.", site.source + "\n", "_kept = {}", short="Keep it")
            ]

    monkeypatch.setattr("nbloader.loader.remedy_search.REMEDIES", (Remedy(),))
    slowest = replace(line_of(TwoLines.__getitem__, 3), source="total += hash(digit)", place="there:4")
    lines = (slowest, replace(line_of(TwoLines.other, 1), share=0.1))
    found = search(
        HotLines(lines=lines, samples=100), Samples(TwoLines(), None, list(range(50)), iterable=False),
        lambda trial: [Measured(16, Cost(2.0, 0.0), Cost(1.0, 0.0), difference(1, 1))],
        lambda *_args, **_options: None, new_workers=new_workers,
    )  # fmt: skip
    assert [one.line.function for one in found] == ["TwoLines.other"]
    told = repr(found)
    assert (
        "\n\nnbloader has no ready code that makes `total += hash(digit)` (there:4) faster. It runs in a Python "
        in told
    )
    assert ("Set persistent_workers=True as well" in told) is new_workers, (
        "the workers of an epoch keep it until its end"
    )
    assert ("Set persistent_workers=True as well" in found._repr_html_()) is new_workers


KEEPS = """\
def f(index):
    return kept(index)
"""


@pytest.mark.parametrize("keeps", [True, False])
def test_a_call_of_a_cached_function_is_no_reason_to_cache_it(keeps, tmp_path):
    function = defined(tmp_path, KEEPS, kept=functools.lru_cache(len) if keeps else len)
    hot = HotLines(lines=(line_of(function, 1),), samples=100)
    data = types.SimpleNamespace(function=function)
    found = search(hot, Samples(data, None, (), False), None, None, more_workers=False)
    assert ("What remains: keep what is computed from them" in repr(found)) == keeps
    collated = search(hot, Samples(Quick(), function, (), False), None, None, more_workers=False)
    assert ("What remains" in repr(collated)) == keeps
    assert ("from the cache of `kept`" in repr(collated)) == keeps


def test_more_workers_remain_unless_the_verdict_says_that_they_do_not_help():
    hot = HotLines(lines=(line_of(Quick.__getitem__, 1),), samples=100)
    for more in (False, True):
        found = search(hot, Samples(Quick(), None, (), False), None, None, more_workers=more)
        assert ("What remains: use more workers where cores are free." in repr(found)) is more


def test_the_share_of_libraries_is_named_if_nothing_helps():
    line = line_of(Quick.__getitem__, 1)
    own, inner = CodeLine(line.file, line.function, line.line), CodeLine(np.__file__, "sort", 3)
    stacks = (StackCount((own, inner), 30.0, 5.0), StackCount((own,), 10.0, 0.0), StackCount((inner,), 99.0, 0.0))
    found = search(HotLines(lines=(line,), samples=100, stacks=stacks), Samples(Quick(), None, (), False), None, None)
    assert "faster, and at least 75% of its CPU time is spent inside numpy. What remains:" in repr(found)
    other = StackCount((own, CodeLine(pd.__file__, "sort", 3)), 30.0, 0.0)
    mixed = search(
        HotLines(lines=(line,), samples=100, stacks=(*stacks, other)), Samples(Quick(), None, (), False), None, None
    )
    assert "at least 86% of its CPU time is spent inside libraries." in repr(mixed)
    assert "Tried" not in repr(found)
    assert "at least 75% of its CPU time" in found._repr_html_()
    loop = "Your loop is the bottleneck."
    found = search(HotLines(lines=(line,), samples=100, elsewhere=loop), Samples(Quick(), None, (), False), None, None)
    assert repr(found).startswith(f"{loop} nbloader has no"), "first what limits it"
    assert "What remains" not in repr(found), "more workers would not help"


def result(name, gain, changed=(), **fields):
    """A remedy of a line that was tried."""
    saves = fields.pop("saves", "time")
    proposal = nbloader.remedies.remedy.Proposal("Why.", "Instead.", saves=saves, short=f"Do {name}")
    usual = {"samples": 9, "before": Cost(gain, 0.0), "after": Cost(1.0, 0.0), "changed": frozenset(changed)}
    return RemedyResult(line_of(Archive.__getitem__, 1), name, proposal, **{**usual, **fields})


def test_a_smaller_picture_that_has_the_same_pixels_is_no_remedy():
    found = result("a", 1.3)
    draft = replace(found, proposal=found.proposal._replace(must_differ=True))
    assert found.helps
    assert not draft.helps, "the gain is noise"
    assert replace(draft, difference=difference(np.zeros(9), np.full(9, 1e-3))).helps


def test_values_that_differ_by_more_than_rounding_are_no_remedy():
    found = result("a", 3.0)
    assert replace(found, difference=difference(np.array([0.0, 1.0]), np.array([0.0, 1.0 + 1e-6]))).helps
    few = np.zeros(1000)
    few[0] = 1
    assert not replace(found, difference=difference(few, np.zeros(1000))).helps, "one pixel"
    resampled = replace(found, proposal=found.proposal._replace(must_differ=True))
    assert replace(resampled, difference=difference(np.arange(9.0), np.arange(9.0) + 0.1)).helps


def test_contents_are_copied_where_a_shallow_copy_is_not_enough(tmp_path):
    source = """\
        import copy
        import numpy as np
        class Board:
            def __init__(self):
                self.rows, self.moves, self.last = [[1, 2], [3]], {"a": np.arange(3)}, (4, [5])
        def f(board):
            new = copy.deepcopy(board)
            new.rows[0][0] = 9
            new.moves["a"][0] = 9
            new.last[1].append(9)
            return new
        """
    function = defined(tmp_path, source)
    shallow, contents, words = changes("deep-copy", function)
    assert [one.fallback for one in (shallow, contents, words)] == [False, True, True]
    assert words.untried
    kind = function.__globals__["Board"]
    kind.__module__ = function.__globals__["__name__"]
    board = kind()
    new = rewritten(function, contents)(board)
    assert type(new) is kind
    assert difference(vars(new), vars(function(board))).equal
    assert difference(vars(board), vars(kind())).equal, "it has not changed"
    shared = [torch.zeros(2), np.zeros(2), {1, 2}, kind, len, memoryview(b"x")]
    own = function.__globals__["copied"](shared[:-1])
    assert own[0] is not shared[0]
    assert own[1] is not shared[1]
    assert own[2:] == shared[2:-1]


def test_what_is_not_tried_for_lack_of_time_is_not_shown():
    late = result("a", 3.0, samples=0, problem="other trials have taken 60 s")
    assert not late.helps
    assert repr(Remedies((), "", [late])).endswith("Not tried: Do a (here:1): other trials have taken 60 s.")


def test_a_cache_inside_what_another_cache_keeps_is_superfluous():
    inner = result("inner", 2.0, [2], saves="later", cached=Kept(30, 30, 30))
    inner = replace(inner, line=replace(inner.line, function="normalize", file="other"))
    outer = result("outer", 3.0, [7], saves="later", cached=Kept(30, 30, 30))
    around = replace(outer, proposal=outer.proposal._replace(helper="def kept(x):\n    return normalize(x)"))
    assert without_lesser([inner, around]) == [around]
    assert without_lesser([inner, outer]) == [inner, outer]
    weaker = replace(around, before=Cost(1.5, 0.0))
    assert without_lesser([inner, weaker]) == [inner, weaker]


def test_nothing_is_proposed_for_code_of_a_remedy(tmp_path):
    function = defined(tmp_path, f"{ROWS_WITH}\nf = rows_with")
    (site, *_rest) = sites(function)
    assert is_pasted(site, REMEDIES)
    other = defined(tmp_path, f"{ROWS_WITH.replace('frame.take', 'frame.iloc')}\nf = rows_with")
    assert not is_pasted(sites(other)[0], REMEDIES)


CALLS_KEPT = "def f(x):\n    return same_each_epoch(x)"


def test_a_helper_of_names_that_the_module_has_is_compared(tmp_path):
    helper = "@nbloader.cached\ndef same_each_epoch(x):\n    return x + 1"
    function = defined(tmp_path, f"import nbloader\n{helper}\ndef f(x):\n    return len(str(x))")
    site = sites(function)[0]
    same = with_free_names(site, nbloader.remedies.remedy.Proposal("Why.", "Instead.", CALLS_KEPT, helper))
    assert same.helper == ""
    other = nbloader.remedies.remedy.Proposal("Why.", "Instead.", CALLS_KEPT, helper.replace("+ 1", "+ 2"))
    assert "def same_each_epoch_2(x)" in with_free_names(site, other).helper


def test_remedies_for_one_function_that_do_not_exclude_each_other_are_to_be_merged():
    first, second, third = (result(name, 2.0, [line]) for name, line in (("a", 2), ("b", 5), ("c", 5)))
    coded = [replace(one, proposal=one.proposal._replace(code="def f(): pass")) for one in (first, second, third)]
    (text,) = _to_merge(coded[:2])
    assert text.startswith("Several remedies change `__getitem__`, each at its own lines: merge them")
    assert _to_merge(coded[1:]) == [], "they are alternatives"
    assert _to_merge(coded[:1]) == []


def test_a_helper_that_was_pasted_before_is_left_out(tmp_path):
    source = f"{ROWS_WITH}\ndef f(name):\n    return frame[frame['item'] == name].sum()"
    frame = pd.DataFrame({"item": ["a"], "x": [1]})
    for code, there in ((source, True), (source.replace("frame.take(rows)", "frame.iloc[rows]"), False)):
        function = defined(tmp_path, code, frame=frame)
        proposal = proposals("filtered-frame", function)[0]
        named = with_free_names(sites(function)[0], proposal)
        assert (named.helper == "") is there
        assert ("`rows_with` is there." in named.instead) is there
        assert ("rows_with(frame" in named.code) is there


def test_a_slow_trial_ends_before_it_takes_the_time_of_the_others():
    groups = [range(8), range(16), range(16)]
    assert _limit(groups, 0.0) == 60
    assert 15 < _limit(groups, 1e-3) < 16
    assert _limit(groups, 1.0) == 60


def test_a_variable_of_a_comprehension_is_no_argument(tmp_path):
    source = """\
        class Movies:
            def __init__(self):
                self.numbers = {n: n + 1 for n in range(9)}
            def __getitem__(self, i):
                found = sorted(self.numbers[m] for m in range(i))
                return sum(found)
        f = Movies
        """
    owner = defined(tmp_path, source)()
    found = proposals("same-each-epoch", type(owner).__getitem__, owner=owner, facts=Facts(samples=9, nbytes=10))
    assert found
    assert not any("one_of_numbers" in one.code for one in found)


def test_fetching_and_collating_count_as_in_the_loop():
    before = Cost(computing=9.0, waiting=1.0, collating=1.0)
    assert _saved(before, Cost(1.0, 0.0, 1.0), 0.1) == pytest.approx(0.9), "as in the trial"
    assert _saved(before, Cost(1.0, 0.0, 1.0), 0.4) == pytest.approx(0.6), "collating takes longer in the loop"
    assert _saved(before, Cost(9.0, 1.0, 0.5), 0.4) == pytest.approx(0.2), "half of it"
    assert _saved(Cost(2.0, 0.0), Cost(1.0, 0.0), 0.0) == 0.5
    assert _saved(before, Cost(20.0, 0.0, 1.0), 0.1) == 0.0, "it is slower"


def test_remedies_that_replace_the_same_code_are_alternatives():
    found = [result("a", 4.0, [2]), result("b", 3.0, [5]), result("c", 2.0, [2, 3]), result("d", 1.5, saves="threads")]
    failed = [
        result("e", 1.02), result("f", 2.0, difference=difference([1], [1, 2])),
        result("h", 1.0, samples=0, problem="it takes 9 GB of memory"),
    ]  # fmt: skip
    remedies = Remedies(found, "", failed)
    assert [one.name for one in remedies] == ["a", "c", "b", "d"]
    choice, *each, tried = repr(remedies).split("\n\n")
    assert choice.startswith("Choose one of the next two: they replace the same code")
    assert each == [str(one) for one in remedies]
    assert tried == (
        "Tried, not proposed: Do e (here:1): 1.02x. Do f (here:1): 2.00x, other values. "
        "Not tried: Do h (here:1): it takes 9 GB of memory."
    )
    assert repr(Remedies((), "", [result("e", 0.4), result("e", 0.3)])).count("Do e") == 1, "one line, one remedy"
    html = remedies._repr_html_()
    assert html.count("Choose one of the next") == 1
    assert tried in html
    lambdas = [result(name, 2.0, [2]) for name in "ab"]
    lambdas = [replace(one, line=replace(one.line, function="<lambda>", line=n)) for n, one in enumerate(lambdas)]
    assert "Choose" not in repr(Remedies(lambdas)), "two lambdas"
    both = repr(Remedies([result("a", 4.0, [2]), result("b", 3.0, [2], saves="later")]))
    assert both.startswith("Begin with one of the next two: they change the same code. Then call remedies() again")
    three = repr(Remedies([result(name, 2.0, [2]) for name in "abc"]))
    assert "Choose one of the next three" in three
    assert "Tried without" not in three


def test_the_lines_that_a_proposal_replaces_are_known(tmp_path):
    function = defined(tmp_path, "def f(p):\n    a = p\n    b = a\n    return b")
    site = sites(function)[1]
    for code, lines, more in (
        ("def f(p):\n    a = 1\n    b = a\n    return b", {2}, {}),
        ("def f(p):\n    a = p\n    return 2", {3, 4}, {}),
        ("def f(p):\n    a = p\n    x()\n    b = a\n    return b", {3}, {}),
        ("", {2}, {}),
        ("def f(p):\n    one_thread()", set(), {"saves": "threads"}),
    ):
        proposal = nbloader.remedies.remedy.Proposal("Why.", "Instead.", code, **more)
        assert changed_lines(site, proposal) == lines


@pytest.mark.parametrize(
    "path", ["f'{FOLDER}/{i // 9}.csv'", "os.path.join(FOLDER, str(i // 9))", "FOLDER + str(i // 9)"]
)
def test_samples_of_one_file_share_what_is_kept(path, tmp_path):
    source = f"""\
        import os, random
        import numpy as np
        def f(i):
            rows = np.loadtxt({path})
            return rows[i % 9] + random.random()
        """
    function = defined(tmp_path, source, FOLDER="a/")
    found = proposals("same-each-epoch", function, facts=Facts(samples=100, nbytes=1000))
    assert all("def same_each_epoch_f(path):\n    rows = np.loadtxt(path)\n" in proposal.helper for proposal in found)
    assert found


def test_a_list_that_is_filled_is_kept_with_what_fills_it(tmp_path):
    source = """\
        import datetime
        def f(path):
            events = []
            with open(path) as file:
                for line in file:
                    time = datetime.datetime.fromisoformat(line.strip())
                    events.append((time, len(line)))
            return events
        """
    function = defined(tmp_path, source)
    (proposal, *_others) = proposals("same-each-epoch", function, facts=Facts(samples=100, nbytes=1000))
    assert "def same_each_epoch_f(path):\n    events = []\n    with open(path) as file:" in proposal.helper
    assert "return same_each_epoch_f(path)" in proposal.code
    clock = defined(tmp_path, "from time import time\ndef f(x):\n    y = len(str(x)) + time()\n    return y")
    assert not proposals("same-each-epoch", clock, facts=Facts(samples=100, nbytes=1000))


def test_what_all_samples_share_is_offered_beside_a_cache_of_each():
    each = result("each", 20.0, [2], saves="later", cached=Kept(30, 30, 30))
    shared = result("shared", 5.0, [2], saves="later", cached=Kept(1, 1, 30), shared_by=30)
    weak = replace(shared, before=Cost(1.05, 0.0))
    assert best_of([each, shared]) == [shared, each]
    assert best_of([each, weak]) == [each]
    assert best_of([replace(each, before=Cost(1.0, 0.0)), shared]) == [shared]
    floats = replace(each, name="floats", cached=Kept(30, 240, 30))
    for gain, best in ((19.0, each), (23.0, each), (25.0, floats)):
        assert best_of([each, replace(floats, before=Cost(gain, 0.0))])[0].name == best.name, "bytes, if about as fast"
    code = result("code", 6.0, [2])
    for gain, left in ((5.0, 2), (8.9, 2), (9.1, 3)):
        found = without_lesser([each, code, replace(shared, before=Cost(gain, 0.0))])
        assert len(found) == left, "code that gains about as much keeps nothing"
    listed = Remedies([each, shared])
    assert [one.name for one in listed] == ["shared", "each"], "what gains at once comes first"
    assert repr(listed).startswith("Begin with one of the next two")
    far_better = replace(each, before=Cost(25.0, 0.0))
    assert [one.name for one in Remedies([far_better, shared])] == ["each", "shared"], "unless it gains far more later"


@pytest.mark.parametrize(("samples", "per_file"), [(1000, 100), (1000, 20), (100, 2), (200, 3), (30, 5), (500, 1)])
def test_the_results_of_a_cache_are_estimated_from_the_arguments_that_samples_share(samples, per_file):
    estimates = []
    for seed in range(50):
        tried = random.Random(seed).sample(range(samples), 30)
        kept = Kept(1, len({index // per_file for index in tried}), len(tried))
        estimates.append(results_of(samples, kept))
    files = samples / per_file
    assert 0.6 * files <= np.median(estimates) <= 1.7 * files
    assert max(estimates) <= samples


@pytest.mark.parametrize(("population", "each"), [(1, 1), (500, 4), (500, 20), (4000, 20), (10**9, 4)])
@pytest.mark.parametrize("own", [False, True])
def test_the_results_of_a_cache_are_estimated_from_the_calls_of_a_trial(population, each, own):
    draw = random.Random(0)
    keys = Counter()
    for sample in range(90):
        keys.update(draw.randrange(population) for _ in range(each))
        keys.update([f"own {sample}"] * own)  # an argument that no other sample has
    once, twice = (sum(count == times for count in keys.values()) for times in (1, 2))
    tried = Kept(1, len(keys), 90, keys.total(), len(keys), once, twice)
    samples = 20_000
    expected = min(population, samples * each) + samples * own
    assert results_of(samples, tried) < 1.7 * expected
    least = len(keys) if own else 0.6 * expected  # a lower bound where only some calls share arguments
    assert results_of(samples, tried) >= least


def test_only_calls_of_the_own_cached_function_are_counted():
    helper = "@nbloader.cached\ndef own(x, y=0):\n    return x"
    names = {"nbloader": nbloader}
    exec(helper + "\n@nbloader.cached\ndef other(x):\n    return x", names)
    with cached_calls(names, helper) as calls:
        for value in (1, 1, "a", np.zeros(3), np.zeros(3), [torch.zeros(2)], {"k": 1}):
            names["own"](value)
            names["other"](value)
        names["own"](1, y=2)
        names["own"](torch.zeros(2, dtype=torch.bfloat16))  # unknown to NumPy
    assert calls.counts.total() == 9
    assert sorted(calls.counts.values()) == [1, 1, 1, 1, 1, 2, 2]
    assert calls.different == 6, "own(1) and own(1, y=2) return the same"
    assert sys.getprofile() is None


def test_a_cache_with_several_results_per_sample_needs_room_for_all():
    assert results_of(1000, Kept(1, 60, 30)) == 2000
    assert results_of(1000, Kept(1, 30, 30)) == 1000
    assert (
        "The cache takes 30.0 MB for all samples, 1.00 MB for each."
        in result("x", 2.0, cached=Kept(30_000_000, 30, 30), kept_in_all=3e7).measurement()
    )


@pytest.mark.parametrize(("shared_by", "first"), [(30, True), (10, True), (9.5, False), (1, False)])
def test_a_cache_whose_results_many_samples_share_gains_in_the_first_epoch(shared_by, first):
    kept = Kept(20_000_000, 20, 30)
    cache = result("x", 1.15, saves="later", cached=kept, kept_in_all=5e6, shared_by=shared_by)
    assert cache.helps is first, "it takes little memory"
    told = cache.measurement()
    assert ("with the remedy from the second epoch on" in told) is not first
    shared = f"The cache takes about 5.00 MB for all samples: about {shared_by:.0f} samples share a result of 1.00 MB"
    assert (shared in told) is (shared_by > 1)
    assert told.endswith(" of 1.00 MB, so the first epoch is faster, too.") is first
    cache = replace(cache, before=Cost(3.0, 0.0))
    assert (min([result("y", 2.5), cache], key=_rank) is cache) is first


@pytest.mark.parametrize(("limit", "measurements"), [("TRIAL_SECONDS", 1), ("SEARCH_SECONDS", 0)])
def test_trials_have_a_time_limit(limit, measurements, monkeypatch):
    class Same:
        name = "same"

        def propose(self, site):
            return [nbloader.remedies.remedy.Proposal("Why.", "Instead.", site.source)]

    monkeypatch.setattr("nbloader.loader.remedy_search.REMEDIES", (Same(),))
    monkeypatch.setattr(f"nbloader.loader.remedy_search.{limit}", 0.0)
    found, measured = search_in_quick()
    assert len(measured) == measurements
    if not measurements:
        assert "other trials have taken" in str(found)


class Locked:
    """Samples that are slow, and fetched under a lock."""

    def __init__(self):
        self.lock = multiprocessing.Lock()

    def __len__(self):
        return 100

    def __getitem__(self, index):
        with self.lock:
            time.sleep(0.3)
            return index


def test_a_trial_that_ends_early_leaves_no_lock_behind(monkeypatch):
    class Same:
        name = "same"

        def propose(self, site):
            return [nbloader.remedies.remedy.Proposal("Why.", "Instead.", site.source, short="Do the same")]

    monkeypatch.setattr("nbloader.loader.remedy_search.REMEDIES", (Same(),))
    monkeypatch.setattr("nbloader.loader.remedy_search.TRIAL_SECONDS", 0.0)
    data = Locked()
    with nbloader.DataLoader(data, 1, sampler=range(3), num_workers=1) as loader:
        loader.profile_lines()
        for _batch in loader:
            pass
        assert "Do the same" in str(loader.remedies(samples=4))
    assert data.lock.acquire(timeout=30), "a worker was killed while it held the lock"


def test_a_cache_that_gains_little_is_left_out(archive):
    line = line_of(Archive.__getitem__, 1)
    for saves, gain, helps in (("later", 1.15, False), ("later", 1.3, True), ("time", 1.15, True)):
        proposal = nbloader.remedies.remedy.Proposal("Why.", "Instead.", saves=saves)
        before, after = Cost(gain, 0.0), Cost(1.0, 0.0)
        assert RemedyResult(line, "cache", proposal, samples=9, before=before, after=after).helps == helps


@pytest.mark.parametrize(
    ("speedup", "low", "high", "helps"),
    [(1.0, 1.0, 1.0, False), (1.06, 0.84, 1.28, False), (1.5, 1.2, 1.8, True), (93.0, 0.0, 415.0, True),
     (None, 0.0, 0.0, True)],
)  # fmt: skip
def test_a_remedy_that_does_not_speed_up_the_loop_is_left_out(speedup, low, high, helps):
    predicted = Prediction(change="a", measured=10.0, speedup=speedup, low=low, high=high)
    found = result("a", 1.3, prediction=predicted)
    assert found.helps == helps
    assert result("a", 2.0, prediction=predicted).helps, "of short epochs, the prediction says little"
    if not helps:
        text = f"Tried, not proposed: Do a (here:1): 1.30x, loop {speedup:.2f}x ({low:.2f} to {high:.2f})."
        assert repr(Remedies((), "", [found])) == text


def test_a_remedy_whose_code_raises_is_logged_and_not_shown(archive, monkeypatch, caplog):
    caplog.set_level("DEBUG", "nbloader")

    class Broken:
        name = "broken"

        def propose(self, site):
            return [
                nbloader.remedies.remedy.Proposal(
                    "Why.", "Instead.", site.source.replace("rows[index]", "rows[None:]['q']")
                )
            ]

    monkeypatch.setattr("nbloader.loader.remedy_search.REMEDIES", (Broken(),))
    with nbloader.DataLoader(archive, batch_size=8, num_workers=1) as loader:
        found = profiled(loader).remedies(samples=5)
    assert "broken" not in [one.name for one in found]
    assert "Tried, not" not in repr(found)
    assert "the rewritten code raises IndexError" in caplog.text


def test_a_cache_whose_calls_raise_is_not_shown(monkeypatch):
    class Unfit:
        name = "unfit"

        def propose(self, site):
            code = site.source.replace("return index", "raise TypeError('cannot be compared')")
            return [nbloader.remedies.remedy.Proposal("Why.", "Instead.", code, saves="later")]

    monkeypatch.setattr("nbloader.loader.remedy_search.REMEDIES", (Unfit(),))
    found, measured = search_in_quick()
    assert len(found) == 0
    assert len(measured) == 1, "the others would raise the same"
    assert "Tried" not in repr(found)


LAZY = """\
    import json
    class f:
        def __init__(self):
            self.rows = None
        def __getitem__(self, i):
            if {test}:
                self.rows = {value}
            return self.rows[i]
        def read(self):
            with open("x.json") as f:
                return json.load(f)
        def again(self):
            {more}
    """


@pytest.mark.parametrize(
    ("test", "value", "more", "instead"),
    [
        ("self.rows is None", "self.read()", "pass", "or move it to __init__"),
        ("not self.rows", "json.load(open('x.json'))", "pass", "or move it to __init__"),
        ("not hasattr(self, 'rows')", "open('x.json')", "pass", "only in the first epoch."),
        ("i == 0", "self.read()", "pass", ""),
        ("self.rows is None", "self.read()", "return self.read()", ""),
    ],
)
def test_what_each_worker_does_for_its_first_sample_is_not_said_to_run_for_each_sample(
    test, value, more, instead, tmp_path
):
    cls = defined(tmp_path, LAZY.format(test=test, value=value, more=more))
    line = line_of(cls.read, 2) if "read" in value else line_of(cls.__getitem__, 2)
    found = search(HotLines(lines=(line,), samples=100), Samples(cls(), None, (), iterable=False), None, None)
    names = [one.name for one in found]
    assert names == ["once-per-worker"] if instead else "once-per-worker" not in names
    assert instead.lower() in repr(found).lower()
    assert not instead or "This runs once per worker, for its first sample" in repr(found)


OPENED = """\
    import itertools, random, sqlite3
    class Rows:
        def __init__(self):
            self.numbers, self.rest = itertools.count(), [1, 2, 3]
            self.con = sqlite3.connect(":memory:")
            self.lines = (text for text in "ab")
        def __getitem__(self, i):
            if random.random() < 2:
                con = sqlite3.connect(":memory:")
            {line}  # slow
            return row + random.random()
    f = Rows
    """


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("row = con.execute('SELECT ?', (i,)).fetchone()[0]", 0),
        ("row = self.con.execute('SELECT ?', (i,)).fetchone()[0]", 0),
        ("row = len(next(self.lines)) + i", 0),
        ("row = next(self.numbers) + len(str(i))", 0),
        ("row = self.rest.pop() + len(str(i))", 0),
        ("row = sqlite3.connect(':memory:').execute('SELECT ?', (i,)).fetchone()[0]", 1),
    ],
)
def test_what_is_open_is_no_argument_of_a_cached_function(line, found, tmp_path):
    owner = defined(tmp_path, OPENED.format(line=line))()
    lines = sites(type(owner).__getitem__, owner=owner, facts=Facts(samples=1000, nbytes=50_000))
    slow = next(site for site in lines if "# slow" in site.source.splitlines()[site.number - 1])
    assert len(BY_NAME["same-each-epoch"].propose(slow)) == found


def test_a_worker_that_dies_in_a_trial_ends_only_the_trial(archive, monkeypatch):
    class Deadly:
        name = "deadly"

        def propose(self, site):
            code = site.source.replace("rows = ", "import os; os._exit(3); rows = ")
            return [nbloader.remedies.remedy.Proposal("Why.", "Instead.", code)]

    monkeypatch.setattr("nbloader.loader.remedy_search.REMEDIES", (Deadly(),))
    with nbloader.DataLoader(archive, batch_size=8, num_workers=1) as loader:
        (only,) = [one for one in profiled(loader).remedies(samples=5) if one.name != "all-samples"]
        assert "exit" in only.problem
        assert sum(len(batch) for batch in loader) == 200


def test_without_samples_of_lines_the_call_to_make_is_named(archive):
    with nbloader.DataLoader(archive, batch_size=8, num_workers=1) as loader:
        assert "profile_lines()" in repr(loader.remedies())
        assert "profile_lines()" in loader.remedies()._repr_html_()
        with pytest.raises(ValueError, match="samples must be at least 0, not -1"):
            loader.remedies(samples=-1)


def test_a_collate_function_is_tried_on_whole_batches():
    class Sequences:
        def __len__(self):
            return 400

        def __getitem__(self, index):
            return [index] * (50 + index % 50)

    def collate(rows):
        out = torch.zeros(len(rows), 100)
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                out[i, j] = value
        return out

    with nbloader.DataLoader(Sequences(), batch_size=20, num_workers=1, collate_fn=collate) as loader:
        found = profiled(loader).remedies(samples=20)
    assert found[0].name == "python-padding"
    assert found[0].samples % 20 == 0
    assert found[0].gain > 2
    assert found[0].difference.equal


def collate_slowly(rows):
    time.sleep(0.1)
    return torch.stack(rows)


def test_what_a_batch_costs_is_divided_among_its_samples(archive):
    with nbloader.DataLoader(archive, batch_size=16, num_workers=1, collate_fn=collate_slowly) as loader:
        found = profiled(loader).remedies(samples=10)
    assert found[0].name == "read-each-time"
    assert 0.1 / 16 <= found[0].after.seconds < 0.1 / 6


def test_a_dataset_with_few_samples_is_tried_on_what_it_has(archive):
    few = torch.utils.data.Subset(archive, [3])
    with nbloader.DataLoader(few, batch_size=8, num_workers=1) as loader:
        loader.profile_lines()
        for _ in range(400):
            for _batch in loader:
                pass
            if loader.hot_lines().samples >= 5:
                break
        (only,) = (one for one in loader.remedies() if one.name == "read-each-time")
    assert only.samples == 1
    assert only.difference.equal


def test_a_search_beside_a_running_epoch_changes_nothing(archive):
    few = torch.utils.data.Subset(archive, range(60))
    torch.manual_seed(3)
    with nbloader.DataLoader(few, batch_size=8, num_workers=1, shuffle=True) as loader:
        expected = [[batch.clone() for batch in loader] for _ in range(3)]
    torch.manual_seed(3)
    steps, found = [], []
    with nbloader.DataLoader(few, batch_size=8, num_workers=1, shuffle=True) as loader:
        loader.profile_lines()
        first = [batch.clone() for batch in loader]
        searching = threading.Thread(
            target=lambda: found.append(loader.remedies(10, report=lambda *step: steps.append(step)))
        )
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
        searching.start()
        searching.join()
        assert torch.equal(states[0], torch.get_rng_state())
        assert states[1] == random.getstate()
        assert np.array_equal(states[2], np.random.get_state()[1])
        searching = threading.Thread(target=lambda: found.append(loader.remedies(10)))
        searching.start()
        later = [[batch.clone() for batch in loader] for _ in range(2)]
        searching.join()
    for batches, same in zip(expected, [first, *later], strict=True):
        assert all(torch.equal(*pair) for pair in zip(batches, same, strict=True))
    assert ["read-each-time" in {one.name for one in tried} for tried in found] == [True, True]
    assert steps == [(name, number, len(steps)) for number, (name, _n, _m) in enumerate(steps)]
    assert steps[0][0] == "read-each-time"


class Shown:
    """Photographs that are decoded at their full size."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 100

    def __getitem__(self, index):
        picture = Image.open(self.path).convert("RGB").resize((60, 40))
        return np.array(picture), float(index)


def test_pictures_that_differ_are_shown_beside_each_other(files):
    photo = files / "a.jpg"
    coarse = np.random.default_rng(0).integers(0, 256, (15, 20, 3)).astype(np.uint8)
    Image.fromarray(coarse).resize((1600, 1200), Image.BICUBIC).save(photo)  # noise is slow to decode at any size
    with nbloader.DataLoader(Shown(str(photo)), batch_size=4, num_workers=1) as loader:
        found = profiled(loader).remedies(10)
    (jpeg,) = (one for one in found if one.name == "full-size-jpeg")
    assert not jpeg.difference.equal
    assert decoded(jpeg.pictures.before).shape == (40, 60, 3)
    assert jpeg.code.count("draft") == 1
    html = found._repr_html_()
    assert html.count("data:image/png;base64,") == 3
    assert re.search(r"difference, [\d.]+x as bright", html)


def test_a_helper_takes_no_name_of_the_user(tmp_path):
    from nbloader.remedies.free_names import taken_names
    from nbloader.remedies.kinds.list_membership import HELPER

    helper = HELPER.replace("NUMPY", "np")
    source = "import numpy as np\ndef f(x): return x in NAMES\n"
    patterns = "import functools, re\n\ncompiled = functools.lru_cache(maxsize=None)(re.compile)\n"
    for added, replaces in (
        ("", []),
        (helper, []),
        (patterns, []),
        ("def contains(text): return 'a' in text\n", [helper]),
        ("_positions = [1, 2]\n", [helper]),
        ("compiled = 3\n", [patterns]),
        ("def compiled(): pass\n", [patterns]),
    ):
        function = defined(tmp_path, source + added)
        before = dict(function.__globals__)
        assert [one for one in (helper, patterns) if taken_names(function, one)] == replaces, added
        assert function.__globals__ == before


@pytest.mark.parametrize(
    ("body", "renamed"),
    [("return int(frame.iloc[i]['x'])", True), ("return int(frame.iloc[row_of()]['x']) + i", False)],
)
def test_a_helper_whose_name_is_taken_gets_another_one(tmp_path, body, renamed):
    frame = pd.DataFrame({"x": [1, 2]})
    function = defined(tmp_path, f"def row_of(): return 0\n_columns = 3\ndef f(i):\n    {body}", frame=frame)
    (site,) = (one for one in sites(function) if "iloc" in one.source.splitlines()[one.number - 1])
    (proposal,) = BY_NAME["pandas-row"].propose(site)
    named = with_free_names(site, proposal)
    assert (named is not None) == renamed
    if named is not None:
        assert "row_of_2(frame, i)" in named.code
        assert "_columns_2 = {}" in named.helper
        assert "def columns_of(" in named.helper
        assert [rewritten(function, named)(i) for i in (0, 1)] == [1, 2]
        assert function.__globals__["row_of"]() == 0


def test_a_lock_that_is_held_for_less_time_helps_although_one_worker_alone_does_not_gain():
    found = result("a", 1.0, saves="lock", locked=0.5)
    assert found.gain == 2.0
    assert found.helps


@pytest.mark.parametrize(
    ("result", "are_floats"),
    [
        ("return x", True),
        ("return x.long()", False),
        ("return x.to(torch.int64)", False),
        ("out[0] = x; return out", False),
    ],
)
def test_a_list_is_not_converted_to_floats_that_become_integers(tmp_path, result, are_floats):
    function = defined(
        tmp_path, f"import torch\ndef f(values, out=None):\n    x = torch.tensor(values)\n    {result}\n"
    )
    assert any("float32" in one.code for one in proposals("array-to-tensor", function)) == are_floats


def test_tensors_of_a_type_are_made_by_numpy_but_not_those_of_a_size_or_inside_of_others(tmp_path):
    function = defined(
        tmp_path,
        """\
        import torch
        def f(ids, n):
            empty = torch.FloatTensor(n, 2), torch.LongTensor()
            size = torch.FloatTensor(n)
            return (torch.LongTensor(ids),
                    torch.DoubleTensor(torch.DoubleTensor([0.5, 1.5]).tolist()))
        """,
    )
    of_size, found = changes("array-to-tensor", function)
    assert "np.asarray(n, np.float32)" in of_size.code, "the trial shows that it is none"
    assert found.helper == "import numpy as np"
    assert "torch.FloatTensor(n, 2), torch.LongTensor()\n    size = torch.FloatTensor(n)\n" in found.code
    x, floats = rewritten(function, found)([1, 2], 2)
    assert (x.tolist(), x.dtype, floats.tolist(), floats.dtype) == ([1, 2], torch.int64, [0.5, 1.5], torch.float64)


def test_a_tensor_of_a_type_is_a_copy(tmp_path):
    function = defined(tmp_path, "import torch\ndef f(x):\n    return torch.FloatTensor(x).mul_(2)")
    (found,) = changes("array-to-tensor", function)
    values = np.ones(3, np.float32)
    assert rewritten(function, found)(values).tolist() == [2, 2, 2]
    assert values.tolist() == [1, 1, 1]


def test_a_module_that_pasted_code_imports_below_is_imported_again_above(tmp_path):
    source = """\
        def f(path):
            with open(path) as file:
                return len(file.read().split())

        import nbloader

        @nbloader.cached
        def g(path):
            return path
        """
    function = defined(tmp_path, source)
    assert site_of(function, line_of(function, 1), Facts()).module("nbloader", "nbloader").helper == "import nbloader"
    first = defined(tmp_path, "import nbloader as nb\n" + textwrap.dedent(source))
    assert site_of(first, line_of(first, 1), Facts()).module("nbloader", "nbloader") == ("nb", "")


@pytest.mark.parametrize(
    ("values", "best"),
    [
        (
            "torch.tensor(floats), torch.tensor(lengths)",
            "np.asarray(floats, np.float32)), torch.as_tensor(np.asarray(lengths))",
        ),
        (
            "torch.tensor(lengths), torch.tensor(floats)",
            "np.asarray(lengths)), torch.as_tensor(np.asarray(floats, np.float32))",
        ),
        (
            "torch.tensor(floats), torch.tensor(floats)",
            "np.asarray(floats, np.float32)), torch.as_tensor(np.asarray(floats, np.",
        ),
        (
            "torch.tensor(lengths, dtype=torch.float32), torch.tensor(lengths)",
            "np.asarray(lengths), dtype=torch.float32), ",
        ),
    ],
)
def test_each_of_several_tensors_keeps_its_own_type(values, best, tmp_path):
    source = f"import numpy as np, torch\ndef f(floats, lengths):\n    return {values}\n"
    function = defined(tmp_path, source)
    arguments = [[0.1 * n for n in range(99)] for _ in range(99)], [2**24 + 1, *range(98)]
    expected = function(*arguments)
    equal = [
        one for one in proposals("array-to-tensor", function)
        if difference(expected, rewritten(function, one)(*arguments)).equal and "asarray" in one.code
    ]  # fmt: skip
    assert [best in one.code for one in equal] == [True]


SCENES = """\
    import numpy as np
    class f:
        rows = np.arange(50)
        def __len__(self):
            return 50
        def load(self, i):
            return np.sqrt(np.ones((2000, 500), np.float32)), self.rows[i : i + 9]
        def __getitem__(self, i):
            {body}
"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("x, y = self.load(i)\n            x = x[i : i + 9, :9]\n            return x * 2, y", 1),
        ("x, y = self.load(i)\n            return x[i : i + 9, :9], x.shape[:1]", 1),
        ("x, y = self.load(i)\n            return x[:9, :9], y[i : i + 9]", 0),
        ("x, y = self.load(i)\n            return x[i : i + 9, :9], y", 1),
        ("x, y = self.load(i)\n            return x[i:]", 0),
        ("x, y = self.load(i)\n            return x.mean() + x[i : i + 9]", 0),
    ],
)
def test_a_part_of_a_large_result_is_named_with_the_sizes(body, found, tmp_path):
    data = defined(tmp_path, SCENES.format(body=body))()
    samples = Samples(data, None, (), iterable=False)
    usual = sys.getprofile()
    _indices, facts = Scout(samples, None, 3)[0]
    assert sys.getprofile() is usual
    hot = HotLines(lines=(line_of(type(data).load, 1),), samples=100)
    told = repr(search(hot, samples._replace(facts=facts), None, None))
    size = "`load` returns 4.00 MB, and `__getitem__` takes a part of it: a sample has "
    assert told.count(size) == found, told
    assert told.count("Not tried: it changes two functions.") == found


def test_only_arrays_in_memory_have_a_size(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(99))
    source = (
        "import numpy as np, torch\ndef f(p):\n    return np.load(p, mmap_mode='r'), np.zeros(9), torch.zeros(9), 'x'"
    )
    function = defined(tmp_path, source)
    with measure_calls() as calls:
        function(tmp_path / "x.npy")
    assert [one.nbytes for one in calls.returned.values() if one.file == function.__code__.co_filename] == [
        (0, 72, 36, 0)
    ]


OWN_REMEDIES = """\
import numpy as np
tables, parts = {}, {}
def part_of(frame, columns):
    if columns not in parts:
        parts[columns] = frame[columns]
    return parts[columns]
def sum_of(frame, columns):
    return frame[columns]
def read_once(path, read):
    return tables.setdefault(path, read())
class f:
    frame, columns = {"x": 1}, "x"
    def kept(self, index):
        return index + part_of(self.frame, self.columns)
    def computed(self, index):
        return index + sum_of(self.frame, self.columns)
    def read(self, path):
        return read_once(path, lambda: np.load(path))
"""


def test_what_a_pasted_function_keeps_is_not_kept_a_second_time(tmp_path):
    rows = defined(tmp_path, OWN_REMEDIES)()
    assert proposals("computed-each-time", type(rows).computed, owner=rows)
    assert not proposals("computed-each-time", type(rows).kept, owner=rows)
    assert not proposals("read-each-time", type(rows).read, owner=rows)


class ReadOnly:
    """Samples are made of an array that is not writable."""

    def __init__(self):
        self.values = np.arange(40_000.0)
        self.values.flags.writeable = False

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.tensor(self.values[index:])


def test_a_tensor_that_shares_memory_that_is_not_writable_is_not_proposed():
    hot = HotLines(lines=(line_of(ReadOnly.__getitem__, 1),), samples=100)
    samples = Samples(ReadOnly(), None, list(range(40)), iterable=False, batch_size=4)
    tried = []

    def run(trial):
        for position in range(len(trial)):
            one = trial[position]
            tried.extend([] if one is None else [one.problem])
            yield one

    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch warns once in a process, and each trial has one of its own
    try:
        found = search(hot, samples, run, lambda *_args, **_options: None)
    finally:
        torch.set_warn_always(always)
    assert not found
    assert any("not writable" in problem for problem in tried)


def test_a_measurement_that_takes_too_long_is_said_in_words():
    def run(trial):
        raise nbloader.LoaderTimeoutError("DataLoader timed out after 60 seconds")

    samples = Samples(ReadOnly(), None, list(range(40)), iterable=False, batch_size=4)
    hot = HotLines(lines=(line_of(ReadOnly.__getitem__, 1),), samples=100)
    found = search(hot, samples, run, lambda *_args, **_options: None)
    assert "Not tried: it had not ended after 60 s." in repr(found)
