"""What to write instead of slow lines: recognized in the code, tried on samples in a spare worker."""

from __future__ import annotations

import ast
import copy
import json
import os
import textwrap
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import nbloader
from nbloader.loader.remedy_search import Samples, search
from nbloader.metrics.hot_lines import HotLine, HotLines
from nbloader.remedies.difference import difference
from nbloader.remedies.kinds import REMEDIES
from nbloader.remedies.site import UNKNOWN, Edit, site_of
from nbloader.remedies.trial import CannotTryError, code_of

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


def sites(function, picture=None):
    """All lines of a function as sites."""
    first = site_of(function, line_of(function, 0), picture)
    return [site_of(function, line_of(function, number), picture) for number in range(len(first.source.splitlines()))]


def proposals(name, function, picture=None):
    """What a remedy proposes for any line of a function."""
    found = [p for site in sites(function, picture) for p in BY_NAME[name].propose(site)]
    return list(dict.fromkeys(found))


def rewritten(function, proposal):
    """A copy of a function that runs the proposed code."""
    code = code_of(function, proposal)
    return types.FunctionType(code, function.__globals__, "f", function.__defaults__, function.__closure__)


@pytest.fixture
def files(tmp_path):
    """A folder with one file of each kind."""
    pixels = np.kron(np.random.default_rng(0).integers(0, 256, (30, 40, 3)), np.ones((20, 20, 1))).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=90)
    (tmp_path / "a.json").write_text(json.dumps({"x": [1.5, 2.0], "y": "é"}), encoding="utf-8")
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(10))
    pd.DataFrame({"x": [1, 2], "y": ["a", "b"]}).to_csv(tmp_path / "a.csv", index=False)
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
    "deepcopy": ("deep-copy", "from copy import deepcopy\ndef f(p):\n    return deepcopy({'a': [1, 2]})", ()),
    "print": ("printing", "def f(p):\n    for k in range(2):\n        print('é', k)\n    return k", ()),
    "row": (
        "pandas-row",
        "def f(p, d=None):\n    row = frame.iloc[1]\n    return row['x'], row['y']",
        {"frame": {"x": [1, 2], "y": ["a", "b"]}},
    ),
    "row values": ("pandas-row", "def f(p):\n    return frame.iloc[1].values", {"frame": {"x": [1, 2], "z": [3, 4]}}),
    "row of a column": ("pandas-row", "def f(p):\n    return frame['x'].iloc[1]", {"frame": {"x": [1, 2]}}),
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
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_rewritten_code_has_the_same_values(case, files, capsys):
    name, source, names = SAME[case]
    given_names = {
        key: pd.DataFrame(value) if isinstance(value, dict) else value for key, value in dict(names).items()
    }  # fmt: skip
    function = defined(files, source, **given_names)
    found = proposals(name, function)
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


def test_a_lambda_and_code_without_source_have_no_site(tmp_path):
    unnamed = lambda x: x  # noqa: E731
    assert site_of(unnamed, line_of(unnamed, 0)) is None
    names = {}
    exec("def f(x):\n    return x", names)
    assert site_of(names["f"], line_of(names["f"], 0)) is None


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


# ---- differences ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (torch.ones(2), torch.ones(2), "equal"),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), "equal"),
        ({"a": [1, "x"]}, {"a": [1, "x"]}, "equal"),
        (np.array([0.0, 10.0]), np.array([0.0, 8.0]), "differs by up to 2, 1 on average, of a range of 10"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "dtype torch.float64 instead of torch.float32"),
        (np.ones(2), np.ones(3), "shape (3,) instead of (2,)"),
        (np.ones(2), torch.ones(2), "is a Tensor instead of a ndarray"),
        ({"a": 1}, {"b": 1}, "keys ['b'] instead of ['a']"),
        ((1, 2), (1,), "1 items instead of 2"),
        ([1, "x"], [1, "y"], "the sample[1] differs"),
        (np.array(["a"]), np.array(["b"]), "differs"),
        (np.array([np.nan]), np.array([1.0]), "not finite"),
        (float("nan"), float("nan"), "equal"),
        (3, 4, "differs by up to 1"),
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


def test_a_remedy_is_tried_on_the_samples_and_nothing_is_changed(archive):
    code = Archive.__getitem__.__code__
    with nbloader.DataLoader(archive, batch_size=8, num_workers=1) as loader:
        found = profiled(loader).remedies(samples=10)
        (only,) = found
        assert only.name == "read-each-time"
        assert only.gain > 2
        assert only.difference.equal
        assert only.samples >= 10
        assert "kept_load('x', self.path)" in only.code.replace('"', "'")
        text, html = str(found), found._repr_html_()
        for part in ("Tried on", "the samples are equal", "kept_load", only.line.place):
            assert part in text
        for part in ("<table>", "kept_load", f"{only.gain:.1f} x"):
            assert part in html
        listed = loader.remedies(samples=0)
        assert [one.name for one in listed] == ["read-each-time"]
        assert listed[0].samples == 0
        assert "Not tried" in str(listed)
    assert Archive.__getitem__.__code__ is code
    assert "kept_load" not in globals()


def test_a_remedy_that_fails_says_so(archive, monkeypatch):
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
        (only,) = profiled(loader).remedies(samples=5)
    assert "the rewritten code raises IndexError" in only.problem
    assert "Not tried" in str(only)


def test_a_worker_that_dies_in_a_trial_ends_only_the_trial(archive, monkeypatch):
    class Deadly:
        name = "deadly"

        def propose(self, site):
            code = site.source.replace("rows = ", "import os; os._exit(3); rows = ")
            return [nbloader.remedies.remedy.Proposal("Why.", "Instead.", code)]

    monkeypatch.setattr("nbloader.loader.remedy_search.REMEDIES", (Deadly(),))
    with nbloader.DataLoader(archive, batch_size=8, num_workers=1) as loader:
        (only,) = profiled(loader).remedies(samples=5)
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
