"""Loops that `remedies()` compiles with Numba: the values stay, and what Numba does not know is left alone."""

from __future__ import annotations

import importlib.util
import math
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from test_remedies import defined, line_of, proposals, rewritten

import nbloader
from nbloader.loader.remedy_search import Samples, search
from nbloader.metrics.hot_lines import HotLines
from nbloader.remedies.difference import difference
from nbloader.remedies.trial import CannotTryError

NUMBA = importlib.util.find_spec("numba") is not None
needs_numba = pytest.mark.skipif(not NUMBA, reason="Numba is not installed")
LOOPS = {
    "shortest paths": """\
        d = x.copy()
        for k in range(len(d)):
            for i in range(len(d)):
                for j in range(len(d)):
                    if d[i, k] + d[k, j] < d[i, j]:
                        d[i, j] = d[i, k] + d[k, j]
        return d""",
    "a filter that remembers": """\
        level, out = 0.0, []
        total = 0.0
        for i in range(len(x)):
            total = 0.9 * total + x[i, 0]
            out.append(total)
        return np.array(out, dtype=np.float32)""",
    "a tensor that is filled": """\
        out = torch.zeros(*x.shape)
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                value = x[i, j]
                while value < 0.9:
                    value = value * 1.1 + 0.01
                out[i, j] = value
        return out""",
    "lists of lists": """\
        grid = [[0.0] * 5 for _ in range(5)]
        for i in range(5):
            for j in range(5):
                grid[i][j] = x[i, j] if i == 0 else grid[i - 1][j] + x[i, j]
        return np.array(grid)""",
    "lists that other code has filled": """\
        hops = [[9 if i != j else 0 for j in range(5)] for i in range(5)]
        for pair in PAIRS:
            hops[pair[0]][pair[1]] = 1
        for k in range(5):
            for i in range(5):
                for j in range(5):
                    hops[i][j] = min(hops[i][j], hops[i][k] + hops[k][j])
        return np.array(hops)""",
    "a function of the user": """\
        longest = 0.0
        for i in range(len(x)):
            for j in range(i):
                apart = distance(x[i], x[j])
                if apart > longest and apart < 5:
                    longest = apart
        return np.array(longest)""",
    "rows": """\
        out = np.zeros((5, 5, 3), np.float32)
        for i in range(5):
            for j in range(5):
                out[i, j] = np.exp(-WIDTH * (np.linalg.norm(x[i] - x[j]) - CENTERS) ** 2)
        return out""",
    "means of parts": """\
        out = np.zeros((5, 3))
        for i in range(len(x)):
            part = x[i:, :3]
            out[i] = x[i:, :3].mean(axis=0) - part.mean(1).sum()
        return out""",
    "a text": """\
        out = np.zeros((2, 6), np.float32)
        text = "ACGTAC"
        for i, letter in enumerate(text):
            if letter == "A":
                out[0, i] = 1
            elif letter == "C":
                out[1, i] = 1
        return out""",
    "several results": """\
        best, where = -1.0, -1
        for i, value in enumerate(x[0]):
            if value > best:
                best = value
                where = i
        return np.array([best, where])""",
    "a result that a later loop reads": """\
        last, total = 0.0, 0.0
        for i in range(len(x)):
            last = last * 0.5 + x[i, 0]
            total += last
        for j in range(2):
            total = total + last * j
            last = 1.0
        if total > 0:
            total = total + 1
        return np.array([total, last])""",
    "items of a dict": """\
        item = {"onsets": x[0].tolist(), "notes": [[1, 2], [3, 9], [70, 1], [2, 2], [5, 1]]}
        near = [[0] * 5 for _ in range(5)]
        for i in range(len(item["onsets"])):
            for j in range(5):
                apart = item["notes"][i][0] - item["notes"][j][0]
                near[i][j] = max(-24, min(24, apart)) + int(item["onsets"][i] * 10)
        return np.array(near)""",
    "loops over several dicts": """\
        found = []
        for item in ({"a": [1, 2, 3]}, {"a": [4, 5]}):
            for i in range(2):
                found.append(item["a"][i])
            sums = [0] * 9
            for i in range(len(item["a"])):
                for j in range(len(x)):
                    sums[i] = sums[i] * 3 + item["a"][i] * j
            found.append(sums)
        return [int(one) for one in np.hstack(found)]""",
    "numbers in the order of their first appearance": """\
        mask = (x * 3).astype(np.int64)
        numbers = {}
        count = 0
        for i in range(mask.shape[0]):
            for j in range(mask.shape[1]):
                if mask[i, j] not in numbers:
                    numbers[mask[i, j]] = count
                    count += 1
                mask[i, j] = numbers[mask[i, j]]
        return mask""",
    "an inner loop": """\
        out = {}
        for name in ("a", "b"):
            total = 0.0
            for i in range(len(x)):
                total = total * 0.5 + x[i, 0]
            out[name] = np.array(total)
        return out""",
}
HEAD = """\
import math
import numpy as np
import torch
PAIRS = ((0, 1), (1, 2), (2, 3), (3, 4))
WIDTH = 2.0
CENTERS = np.linspace(0, 1, 3)
def distance(a, b):
    return math.sqrt((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2)
"""


def function_of(tmp_path, body):
    return defined(tmp_path, f"{HEAD}def f(x):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n")


def compiled(function, owner=None):
    return [one for one in proposals("python-loop", function, owner=owner) if "import numba" in one.helper]


@needs_numba
@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaWarning")  # lists become something else in a later version
@pytest.mark.parametrize("case", LOOPS)
def test_a_compiled_loop_has_the_same_values(case, tmp_path):
    function = function_of(tmp_path, LOOPS[case])
    x = np.random.default_rng(0).random((5, 5))
    found = compiled(function)
    assert found
    assert any(difference(function(x.copy()), new(x.copy())).equal for new in working(function, found, x))


def working(function, found, x):
    """The rewritten functions that Numba compiles. Of several ways to pass a value, one may not fit."""
    for one in found:
        new = rewritten(function, one)
        try:
            new(x.copy())
        except (TypeError, AttributeError):
            assert len(found) > 1
            continue
        yield new


class Table:
    """A dataset whose loop reads attributes."""

    def __init__(self):
        self.weights, self.scales = np.arange(5.0), [1.0, 2.0, 3.0]

    def __len__(self):
        return 200

    def __getitem__(self, index):
        values = np.random.default_rng(index).random(3000)
        out = np.zeros(3000)
        level = 0.0
        for i in range(3000):
            level = 0.5 * level + values[i] * self.weights[i % 5] * self.scales[i % 3]
            out[i] = level
        return out


@needs_numba
def test_attributes_become_arguments_and_a_trial_finds_the_gain():
    with nbloader.DataLoader(Table(), batch_size=8, num_workers=1) as loader:
        loader.profile_lines()
        while loader.hot_lines().samples < 20:
            for _batch in loader:
                pass
        found = loader.remedies(samples=8)
    best = found[0]
    assert best.name == "python-loop"
    assert "compiled_getitem(" in best.code
    assert "np.asarray(self.scales)" in best.code
    assert best.difference.equal
    assert best.gain > 5
    assert "persistent_workers=True" in found.advice, "each new worker would compile it again"
    assert best.once > 0.1, "it was compiled"
    assert ("more for its first samples" in best.measurement()) == (best.once >= 1)


@needs_numba
def test_a_cached_function_may_call_a_compiled_one(tmp_path, recwarn):
    source = """\
        import numba
        @numba.njit
        def inner(x):
            return x * FACTOR
        FACTOR = 2
        def f(x):
            return inner(x)
        """
    function = defined(tmp_path, source)
    cached = nbloader.cached(function)
    assert [cached(3), cached(3), cached(4)] == [6, 6, 8]
    other = nbloader.cached(defined(tmp_path, source.replace("x * FACTOR", "x * 3")))
    assert other(3) == 9
    assert not [one for one in recwarn if "compared at each call" in str(one.message)]


@needs_numba
def test_an_index_outside_an_array_is_an_error_as_in_python(tmp_path):
    function = function_of(tmp_path, "s = 0.0\nfor i in range(9):\n    s = s * 0.5 + x[0, i]\nreturn np.array(s)")
    (new,) = {rewritten(function, one) for one in compiled(function)[:1]}
    with pytest.raises(IndexError):
        new(np.zeros((1, 5)))


@pytest.mark.parametrize(
    "body",
    [
        "s = 0\nfor i in range(9):\n    s = s * 2 + NAMES[i]\nreturn s",
        "s = 0\nfor i in range(9):\n    s = s * 2 + len(open(x[i]).read())\nreturn s",
        "s = 0\nfor i in range(9):\n    s = s * 2 + np.random.rand()\nreturn s",
        "s = 0\nfor i in range(9):\n    with x:\n        s = s * 2 + 1\nreturn s",
        "s = ''\nfor i in range(9):\n    s += f'{i}'\nreturn s",
        "s = 0\nfor i in range(9):\n    TOTALS[0] += i * i\nreturn s",
        "for i in range(9):\n    try:\n        x[i] = i * i\n    except IndexError:\n        break\nreturn x",
        "for i in range(9):\n    if x[i] > 2:\n        return i * i\nreturn 0",
        "s = 0\nfor i in range(9):\n    s = s * 2 + other(i)\nreturn s",
        "found = {}\nfor i in range(9):\n    found[x[i]] = i * i\nreturn found",
        "found = {0: 1}\nfor i in range(9):\n    found[x[i]] = i * i\nreturn x",
        "for i in range(9):\n    yield i * i + x[i]",
        "out = []\nfor r in x:\n    print(r)\n    for i in range(3):\n        out.append(r[i] * 2)\nreturn out",
    ],
)
def test_what_numba_does_not_compile_is_left_alone(body, tmp_path):
    names = "NAMES = {0: 1}\nTOTALS = np.zeros(1)\ndef other(i):\n    return str(i)\n"
    function = defined(tmp_path, f"{HEAD}{names}def f(x):\n{textwrap.indent(body, '    ')}\n")
    assert not compiled(function)


@pytest.mark.parametrize("installed", [True, False])
def test_numba_is_named_where_it_is_missing(installed, tmp_path, monkeypatch):
    monkeypatch.setattr("nbloader.remedies.kinds.python_loop.is_installed", lambda: installed)
    found = compiled(function_of(tmp_path, LOOPS["shortest paths"]))
    assert {one.package for one in found} == {"" if installed else "numba"}
    if not installed:
        with pytest.raises(CannotTryError, match="needs numba, which is not installed: pip install numba"):
            rewritten(function_of(tmp_path, LOOPS["shortest paths"]), found[0])


class Pixels:
    """Draws into a picture, which Numba does not know; what takes the time is an inner loop."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        picture = Image.new("L", (20, 10))
        pixels = picture.load()
        for x in range(20):
            for y in range(10):
                total = 0.0
                for k in range(60):
                    a = math.atan2(y + k, x + index)
                    total += math.cos(a * k + total)
                pixels[x, y] = int(total) % 200
        return np.asarray(picture)


@needs_numba
def test_an_inner_loop_is_compiled_where_an_outer_one_uses_what_numba_does_not_know():
    with nbloader.DataLoader(Pixels(), batch_size=8, num_workers=1) as loader:
        loader.profile_lines()
        while loader.hot_lines().samples < 40:
            for _batch in loader:
                pass
        found = loader.remedies(samples=8)
    (best,) = (one for one in found if one.name == "python-loop")
    assert "pixels" not in best.proposal.helper
    assert best.difference.equal
    assert best.gain > 3


@needs_numba
@pytest.mark.parametrize("share", [0.06, 0.9])
def test_a_line_of_an_outer_loop_that_cannot_be_compiled_is_told_so_only_if_it_is_the_slowest(share):
    shares = {7: 0.8, 9: share}  # of the inner loop, and of the line that uses the picture
    lines = tuple(replace(line_of(Pixels.__getitem__, number), share=part) for number, part in shares.items())
    samples = Samples(Pixels(), None, list(range(30)), iterable=False)
    found = search(
        HotLines(lines=lines, samples=100), samples, lambda trial: [trial[n] for n in range(len(trial))],
        lambda *_args, **_options: None,
    )  # fmt: skip
    told = [one.only_listed for one in found if one.name == "python-loop"]
    assert told == [False] + [True] * (share > 0.8), found
