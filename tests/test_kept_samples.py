"""Caches of what a sample is made of, up to the first random draw: what they keep, and where they end."""

from __future__ import annotations

import math
import random
import threading

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_remedies import BY_NAME, defined, line_of, profiled, proposals, rewritten, sites

import nbloader
from nbloader.loader.remedy_search import Samples, search
from nbloader.metrics.hot_lines import HotLines
from nbloader.remedies.calls import _key
from nbloader.remedies.site import Facts
from nbloader.remedies.transforms import with_first_transforms

unit = pytest.mark.unit
FACTS = Facts(samples=100, nbytes=1000)
TRANSFORMED = """\
    import random
    class Double:
        def __call__(self, x):
            return x * 2
    class Add:
        def __init__(self, value):
            self.value = value
        def __call__(self, x):
            return x + self.value
    class Jitter:
        def __call__(self, x):
            return x + random.random()
    class Compose:
        def __init__(self, transforms):
            self.transforms = transforms
        def __call__(self, x):
            for one in self.transforms:
                x = one(x)
            return x
    class f:
        def __init__(self, transforms):
            self.transforms = transforms
            self.transform = Compose(transforms)
        def load(self, i):
            return i + 100
        def __getitem__(self, i):
            x = self.load(i)
            {applied}
            return x
    """
LOOP = "for t in self.transforms:\n                x = t(x)"
COMPOSE = "x = self.transform(x)"
OTHER = "y = x\n            x = self.transform(y + 1), y\n            x = x[0] + x[1]"
RETURNED = "return self.transform(x), i"
GIVEN = "if self.transform is not None:\n                x = self.transform(x)"


@unit
@pytest.mark.parametrize("applied", [LOOP, COMPOSE, GIVEN, OTHER, RETURNED])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(kinds=st.lists(st.sampled_from(["Double", "Add", "Jitter"]), max_size=5))
def test_transforms_before_the_first_random_one_are_kept(tmp_path, applied, kinds):
    cls = defined(tmp_path, TRANSFORMED.format(applied=applied))
    names = cls.__getitem__.__globals__
    transforms = [names[kind](3) if kind == "Add" else names[kind]() for kind in kinds]
    owner, function = cls(transforms), cls.__getitem__
    first = kinds.index("Jitter") if "Jitter" in kinds else len(kinds)
    divided = 0 < first < len(kinds)
    slow = sites(function, owner=owner, facts=FACTS)[1]
    assert (with_first_transforms(slow) is not slow) == divided
    found = BY_NAME["same-each-epoch"].propose(slow)
    kept = f"dataset.transform{'s' if applied == LOOP else '.transforms'}[:{first}]"
    assert any(kept in proposal.helper for proposal in found) == divided
    fewer = kept.replace(f"[:{first}]", f"[:{first - 1}]")
    assert any(fewer in proposal.helper for proposal in found) == (first > 1)
    for proposal in found:
        new = rewritten(function, proposal)
        for _epoch in range(2):
            for index in (0, 7):
                random.seed(index)
                expected = function(owner, index)
                random.seed(index)
                assert new(owner, index) == expected


METHODS = """\
    import random
    class Tokens:
        def __init__(self, drops):
            self.drops = drops
        def __call__(self, text):
            return [one for one in text if not (self.drops and random.random() < 0.5)]
    class f:
        def __init__(self, drops=False):
            self.tokens = Tokens(drops)
            self.seen = 0
        def encode(self, text):
            return self.inner(text)
        def inner(self, text):
            {inner}
        def __getitem__(self, i):
            text = self.encode(str(i))
            return text
    """


@unit
@pytest.mark.parametrize(
    ("inner", "kept"),
    [
        ("return text + '!'", True),
        ("return text + str(random.random())", False),
        ("return self.tokens(text)", False),  # its class can draw random numbers
        ("self.seen += 1; return text", False),
    ],
)
def test_methods_are_kept_if_nothing_that_they_use_is_random_or_changes(tmp_path, inner, kept):
    owner = defined(tmp_path, METHODS.format(inner=inner))()
    found = proposals("same-each-epoch", type(owner).__getitem__, owner=owner, facts=FACTS)
    assert any("dataset.encode(" in one.helper for one in found) is kept


@unit
@pytest.mark.parametrize(
    "row", ["self.frame.iloc[i]", "self.frame.loc[i]", "self.frame[self.frame['x'] == i]", "self.names[i]"]
)
def test_rows_of_a_table_are_no_arguments_of_a_cache(tmp_path, row):
    source = f"""\
        import json
        class f:
            def __init__(self, frame):
                self.frame, self.names = frame, ["1", "2"]
            def __getitem__(self, i):
                row = {row}
                value = json.loads(str(row))
                return value
        """
    owner = defined(tmp_path, source)(pd.DataFrame({"x": range(9)}))
    found = proposals("same-each-epoch", type(owner).__getitem__, owner=owner, facts=FACTS)
    assert found
    assert any("def same_each_epoch(row)" in one.helper for one in found) == ("names" in row)


@unit
@pytest.mark.parametrize(("calls", "kept"), [(1, True), (1000, False)])
def test_a_cache_is_not_tried_for_calls_that_take_less_than_the_cache(tmp_path, calls, kept):
    function = defined(tmp_path, "import json\ndef f(text):\n    return json.loads(text)")
    key = function.__code__.co_filename, function.__code__.co_firstlineno
    facts = FACTS._replace(calls={key: calls}, seconds=0.01)
    assert bool(proposals("same-each-epoch", function, facts=facts)) is kept


class Routes:
    """The time is spent in a function that runs often for each sample; only the last line is random."""

    def __len__(self):
        return 200

    def nearest(self, x):
        best = ""
        for stand in range(300):
            text = repr((x, stand))
            best = max(best, text)
        return len(best)

    def __getitem__(self, i):
        found = 0.0
        for step in range(20):
            found += self.nearest(i + step)
        return np.float64(found + random.random())


def test_the_sample_is_kept_where_the_time_is_spent_in_functions_that_it_calls():
    with nbloader.DataLoader(Routes(), batch_size=10, num_workers=1) as loader:
        found = profiled(loader).remedies(samples=20)
    best = next(one for one in found if one.name == "same-each-epoch")
    assert best.line.function == "Routes.__getitem__"
    assert best.line.share > 0.5, "with what it calls"
    assert "found += dataset.nearest(i + step)" in best.proposal.helper
    assert "return np.float64(found + random.random())" in best.code
    assert best.gain > 3
    assert [one for one in found if one.name == "same-each-epoch"] == [best], "what it calls is kept with it"
    assert "no ready code" not in str(found), "its slowest line is inside"


class Floats:
    def __len__(self):
        return 40

    def __getitem__(self, i):
        values = np.arange(60_000.0) * i
        return values.astype(np.float32)


def test_floats_that_become_shorter_are_converted_in_the_workers():
    function = Floats.__getitem__
    line = line_of(function, 2)
    measured = []

    def run(trial):
        for position in range(len(trial)):
            one = trial[position]
            measured.extend([] if one is None else [one])
            yield one

    samples = Samples(Floats(), None, list(range(40)), iterable=False, batch_size=4, facts=Facts(floats=240_000))
    found = search(
        HotLines(lines=(line,), samples=100),
        samples,
        run,
        lambda *_args, **_options: None,
    )
    assert any("integers" in one.problem for one in measured), "it was tried"
    assert "sent as larger numbers" not in str(found)


def far(x, y):
    return math.sqrt((x - y) * (x - y) + 1.0)


class Stands:
    def __init__(self):
        self.stands = pd.DataFrame({"id": np.arange(60), "x": np.linspace(0.0, 9.0, 60)})

    def __len__(self):
        return 200

    def nearest(self, x):
        best, least = -1, 1e9
        for number, y in zip(self.stands["id"], self.stands["x"]):  # noqa: B905 - as users write it
            distance = far(x, y)
            if distance < least:
                best, least = number, distance
        return best

    def __getitem__(self, i):
        found = 0
        for step in range(40):
            found += self.nearest(step + random.random())
        return np.int64(found)


def test_a_loop_that_calls_a_slow_function_is_compiled_with_it():
    pytest.importorskip("numba")
    with nbloader.DataLoader(Stands(), batch_size=10, num_workers=1) as loader:
        hot = profiled(loader).hot_lines()
        found = loader.remedies(samples=20)
    assert any(line.function == "far" for line in hot)
    best = next(one for one in found if one.name == "python-loop")
    assert best.line.function == "Stands.nearest"
    assert "compiled_far = numba.njit(far, boundscheck=True)" in best.proposal.helper
    assert "columns_of(self.stands)['x']" in best.code, "converted once"
    assert best.gain > 3
    assert str(found).count("def compiled_nearest") == 1, "shown once"


ITEMS = """\
    import json, random
    import numpy as np
    LABELS = ["a", "b"]
    class f:
        def __init__(self, frame):
            self.frame = frame
        def __getitem__(self, i):
            row = self.frame.iloc[i]
            text = json.loads(str(row["x"]))
            value = random.random()
            {last}
    """


@unit
@pytest.mark.parametrize(
    ("last", "results"),
    [
        ("return text, value, row['x'], row['x'] + row['y']", "text, row_x, row_y"),
        ("return text, value, row[LABELS].tolist()", "text, row_labels"),
        ("return text, value, row['x'], len(row)", "row, text"),
        ("return text, value, row['x'] if value > 2 else 0", "row, text"),
        ("row_x = 3\n            return text, value, row['x'], row_x", "row, text"),
    ],
)
def test_of_a_row_only_the_items_that_are_read_later_are_kept(tmp_path, last, results):
    frame = pd.DataFrame({"x": range(9), "y": 2.0, "a": 1, "b": 0})
    owner = defined(tmp_path, ITEMS.format(last=last))(frame)
    function = type(owner).__getitem__
    found = proposals("same-each-epoch", function, owner=owner, facts=FACTS)
    assert any(f"{results} = same_each_epoch(" in one.code for one in found), found
    for one in found:
        new = rewritten(function, one)
        for _epoch in range(2):
            random.seed(3)
            expected = function(owner, 4)
            random.seed(3)
            assert new(owner, 4) == expected


@unit
@pytest.mark.parametrize(("values", "found"), [("[1, 2]", False), ("np.arange(3)", True)])
def test_iterating_over_a_list_is_nothing_to_compute_once(tmp_path, values, found):
    source = f"""\
        import numpy as np
        VALUES = {values}
        def f(x):
            for position, value in zip(VALUES, VALUES):
                x = x + position * value
            return x
        """
    assert bool(proposals("computed-each-time", defined(tmp_path, source))) is found


@unit
def test_numbers_of_a_text_are_not_called_scalars(tmp_path):
    source = "def f(line):\n    return [int(part) for part in line.strip().split(' ')]"
    assert proposals("numbers-one-by-one", defined(tmp_path, source)) == []


@unit
def test_arguments_without_a_hash_are_compared_by_what_they_contain():
    image = pytest.importorskip("PIL.Image")
    pictures = [image.new("L", (4, 4), value) for value in (1, 2, 1)]
    first, second, again = map(_key, pictures)
    assert first == again != second
    assert _key(lock := threading.Lock()) == _key(lock), "by identity"
    assert len({_key(image.new("L", (4, 4), value)) for value in range(50)}) == 50, "also if the memory is used again"
