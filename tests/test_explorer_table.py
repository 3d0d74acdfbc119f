"""What the explorer knows of samples: columns, histograms, filters, costs, and the finders of problems. Pure."""

from __future__ import annotations

import io
import json
import math
import re
import time

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from nbloader._util.format import clean
from nbloader.explorer.arrangement import Arrangement
from nbloader.explorer.describer import describe
from nbloader.explorer.embedding import Embedding
from nbloader.explorer.looks import alike
from nbloader.explorer.own_columns import OwnColumn
from nbloader.explorer.problems import Check, Form, find_problems
from nbloader.explorer.reader import ReadSample, Request, SampleReader, scan_request
from nbloader.explorer.scan import AHEAD, Scan
from nbloader.explorer.table import BINS, LARGEST_GROUPS, OTHERS, SampleTable
from nbloader.explorer.tables import rows_of
from nbloader.explorer.text_index import excerpt
from nbloader.explorer.view import View

pytestmark = pytest.mark.unit


def table_of(samples, seconds=None, scanned=True):
    """A table of samples."""
    reader = SampleReader(samples, {}, ())
    table = SampleTable()
    for index in range(len(samples)):
        sample = reader[scan_request(index)]
        table.add(index, sample._replace(seconds=seconds[index] if seconds else 0.001, worker=0))
    return table


def check_of(sample):
    """What a scan finds out about a sample."""
    return describe(sample, {"label": ["cat", "dog"]}, (), View(scan=True)).check


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ({"image": np.zeros((9, 9, 3)), "label": 0}, {"image": np.zeros((9, 9, 3)), "label": 1}, True),
        ({"image": np.zeros((9, 9, 3)), "path": "a"}, {"image": np.zeros((9, 9, 3)), "path": "b"}, True),
        ({"image": np.zeros((9, 9, 3))}, {"image": np.zeros((9, 9, 3), np.float32)}, False),
        ({"image": np.eye(9)}, {"image": np.eye(9).T.copy(order="F")}, True),
        ({"left": np.eye(9), "right": np.eye(9)}, {"left": np.eye(9), "right": np.ones((9, 9))}, False),
        ({"image": Image.new("P", (9, 9))}, {"image": Image.new("P", (9, 9))}, True),
        ({"wave": np.arange(9.0), "label": 0}, {"wave": torch.arange(9.0).double(), "label": 1}, True),
        ((np.array([1.0, 2, 3]), 0), (np.array([1.0, 2, 3]), 1), True),
        ({"text": "a", "n": 1}, {"text": "a", "n": 2}, True),
        ({"text": "a"}, {"text": "b"}, False),
        ({"city": "a", "rooms": 1, "price": 2.5}, {"city": "a", "rooms": 1, "price": 3.5}, False),
        (
            {"city": "a", "rooms": 1, "price": 2.5, "label": 0},
            {"city": "a", "rooms": 1, "price": 2.5, "label": 1},
            True,
        ),
        ({"data": b"jpeg"}, {"data": b"jpeg"}, True),
        (3, 3, True),
        (3, 3.0, False),
    ],
)
def test_duplicates_are_compared_by_what_a_sample_mainly_is(first, second, equal):
    digests = [check_of(sample).digest for sample in (first, second)]
    assert all(digests)
    assert (digests[0] == digests[1]) is equal


def photograph(seed):
    """A picture of blobs of several sizes."""
    random = np.random.default_rng(seed)
    coarse = [
        np.kron(random.integers(0, 256, (size, size, 3)), np.ones((96 // size, 96 // size, 1))) for size in (4, 12)
    ]
    return ((coarse[0] * 2 + coarse[1]) / 3).astype(np.uint8)


def test_changed_pictures_look_alike_and_others_do_not():
    first = photograph(0)
    resized = np.asarray(Image.fromarray(first).resize((70, 80)))
    compressed = io.BytesIO()
    Image.fromarray(first).save(compressed, "JPEG", quality=30)
    compressed = np.asarray(Image.open(compressed))
    brighter = (first.astype(int) * 0.9 + 20).astype(np.uint8)
    changed = {1: resized, 2: compressed, 3: brighter, 4: first.copy()}
    samples = [{"image": changed.get(i, first if i == 0 else photograph(i)), "label": i % 2} for i in range(60)]
    problems = table_of(samples).problems()
    assert list(problems["alike"]) == [1, 2, 3]
    assert problems["alike"][1].startswith("looks like 0")
    assert list(problems["duplicate"]) == [4]
    plain = [{"image": np.full((32, 32, 3), i, np.uint8)} for i in range(20)]
    assert table_of(plain).problems()["alike"] == {}


@given(st.lists(st.integers(0, 2**32), min_size=2, max_size=30, unique=True), st.integers(0, 10))
@settings(max_examples=30, deadline=None)
def test_looks_with_few_different_bits_are_in_one_group(seeds, flipped):
    looks = {i: np.random.default_rng(seed).bytes(32).hex() for i, seed in enumerate(seeds)}
    changed = np.frombuffer(bytes.fromhex(looks[0]), np.uint8).copy()
    for bit in np.random.default_rng(0).choice(256, flipped, replace=False):
        changed[bit // 8] ^= 1 << (bit % 8)
    looks[100] = changed.tobytes().hex()
    assert alike(looks) == [[0, 100]]


def test_numbers_in_arrays_without_axes_are_columns():
    samples = [{"vector": np.zeros(9), "cluster": np.int64(i % 3), "target": torch.tensor(i % 2)} for i in range(12)]
    table = table_of(samples)
    assert {"cluster", "target"} <= set(table.groupable())
    assert [group.size for group in table.groups("cluster", {}, 9, table.indices())] == [4, 4, 4]


def test_objects_without_content_are_no_duplicates():
    assert check_of(object()).digest == ""
    assert find_problems({}, {0: check_of(object()), 1: check_of(object())})["duplicate"] == {}


def test_one_bad_number_in_a_large_array_is_found():
    array = np.zeros((2000, 2000), np.float32)
    array[1234, 1235] = np.nan
    assert check_of({"a": array, "b": float("inf"), "c": 1.0}).not_finite == ("a", "b")
    array[1234, 1235] = 1
    assert check_of({"a": array}) == check_of({"a": array.copy()})
    assert check_of({"a": array}).constant == ()
    assert check_of({"a": np.full((99, 99), 7), "mask": np.zeros((99, 99), int), "few": [0, 0]}).constant == ("a",)


def test_what_most_samples_have_is_no_problem():
    checks = {i: Check(str(i), (), ("padding",) if i % 3 else (), (), ()) for i in range(30)}
    assert find_problems({}, checks)["constant"] == {}
    shapes = {i: Check(str(i), (Form("x", "f4 picture with 3 channels", f"{i}"),), (), (), ()) for i in range(30)}
    assert find_problems({}, shapes)["shape"] == {}  # sizes vary
    shapes[7] = Check("7", (Form("x", "f4 picture with 1 channel", "7"),), (), (), ())
    assert find_problems({}, shapes)["shape"] == {7: "x: f4 picture with 1 channel, usually f4 picture with 3 channels"}
    shapes[8] = Check("8", (Form("y", "int", ""),), (), (), ())
    assert find_problems({}, shapes)["shape"][8] == "has no field x; has a field y, as 3% of the samples"


def test_rows_have_figures_of_arrays_and_lengths_of_texts():
    [row] = table_of([{"image": np.full((9, 12, 3), 4, np.uint8), "text": "abc", "image.mean": -1}]).rows()
    assert (row["image.shape"], row["image.max"], row["text.length"], row["worker"]) == (
        "9\N{MULTIPLICATION SIGN}12\N{MULTIPLICATION SIGN}3",
        4,
        3,
        0,
    )
    assert row["image.mean"] == -1  # the sample's own field


@given(st.lists(st.one_of(st.none(), st.floats(), st.integers(-(10**6), 10**6)), min_size=1, max_size=50))
@settings(max_examples=60, deadline=None)
@example([1.0, 1.7976931348622103e308])
def test_every_finite_number_is_in_one_bin_and_bins_choose_their_numbers(values):
    table = table_of([{"x": value} for value in values])
    finite = [value for value in values if value is not None and math.isfinite(value)]
    content, _ = table.statistics({}, "", "", "")
    json.dumps(content, allow_nan=False)
    column = next((column for column in content["columns"] if column["name"] == "x"), None)
    assert sum(column["all"]) == len(finite) if finite else column is None
    if column is None:
        return
    assert column["missing"] == len(values) - len(finite)
    assert len(column["all"]) <= BINS
    for at, count in enumerate(column["all"]):
        high = column["edges"][at + 1]
        last = at == len(column["all"]) - 1
        chosen = [column["edges"][at], high if last else np.nextafter(high, -np.inf)]
        assert len(table.filtered({"x": chosen})) == count


def test_rare_categories_share_a_bar_and_texts_have_none():
    labels = [f"class {min(i // 3, 40)}" for i in range(200)]
    table = table_of([{"name": label, "id": f"{i} x"} for i, label in enumerate(labels)])
    table_columns = table.columns()
    assert "id" not in table_columns
    assert "name" in table_columns
    content, _ = table.statistics({}, "", "", "name")
    column = next(column for column in content["columns"] if column["name"] == "name")
    assert (len(column["labels"]), column["labels"][-1], sum(column["all"])) == (LARGEST_GROUPS + 1, OTHERS, 200)
    assert len(table.filtered({"name": [OTHERS]})) == column["all"][-1]
    assert content["costs"][0]["share_of_samples"] == sum(column["all"][-1:]) / 200


def test_each_histogram_has_the_filters_of_the_others():
    table = table_of([{"a": i % 2, "b": i} for i in range(40)])
    content, buffers = table.statistics({"a": [0, 0], "b": [0, 9], "gone": [1, 2]}, "a", "b", "b")
    columns = {column["name"]: column for column in content["columns"]}
    assert columns["a"]["passed"] == [5, 5]
    assert sum(columns["b"]["passed"]) == 20
    assert content["passed"] == 5 == np.frombuffer(buffers[3], np.bool_).sum()
    assert sum(line["samples"] for line in content["costs"]) == 5
    assert table.filtered({}).tolist() == list(range(40))


def test_axes_span_the_points_that_are_drawn():
    table = table_of([{"a": 3}, {"a": 5}, {"other": 1}], seconds=[0.1, 0.2, 0.00001])  # the last one has no such field
    axes = table.statistics({}, "a", "seconds", "a")[0]["scatter"]
    assert (axes["x"]["low"], axes["x"]["high"], axes["y"]["low"], axes["y"]["high"]) == (3, 5, 0.1, 0.2)


def test_costs_of_a_number_are_by_bins():
    table = table_of([{"n": float(i)} for i in range(100)], seconds=[1.0 if i >= 95 else 0.01 for i in range(100)])
    first = table.statistics({}, "", "", "n")[0]["costs"][0]
    assert first["value"][0] >= 90
    assert first["share_of_time"] > 0.7


def own(name, values, total, names=None):
    """A column of the user."""
    return name, OwnColumn.of(name, values, total, names)


def test_costs_of_a_few_whole_numbers_are_by_number():
    table = table_of([{"n": i % 3} for i in range(9)])
    assert {line["value"] for line in table.statistics({}, "", "", "n")[0]["costs"]} == {"0", "1", "2"}


def test_columns_of_the_user_have_histograms_filters_orders_groups_and_costs():
    samples = [{"label": "cat" if i % 2 else "dog", "n": 9 - i} for i in range(10)]
    table = table_of(samples, seconds=[0.1] * 10)
    table.add_column(*own("loss", np.linspace(0, 1, 20), 20))  # also for samples that were not read
    table.add_column(*own("prediction", {1: 0, 2: 1, 3: 1, 15: 1}, 20, ["cat", "dog"]))
    content, buffers = table.statistics({"loss": [0.1, 0.45]}, "loss", "n", "prediction")
    columns = {column["name"]: column for column in content["columns"]}
    assert (sum(columns["loss"]["all"]), columns["loss"]["missing"], columns["n"]["missing"]) == (20, 0, 0)
    assert sum(columns["n"]["passed"]) == 7
    assert (content["rows"], content["own"]) == (10, ["loss", "prediction"])
    assert np.frombuffer(buffers[2]).tolist() == list(range(10)), "samples with both values"
    assert [line["samples"] for line in content["costs"]] == [2]
    assert table.filtered({"loss": [0.75, 2]}).tolist() == [15, 16, 17, 18, 19]
    assert table.sorted_by("loss", table.indices(), descending=True)[:3].tolist() == [19, 18, 17]
    assert table.sorted_by("n", table.indices())[:11].tolist() == [*range(9, -1, -1), 10], "without one: the last"
    assert table.sorted_by("label", table.filtered({"prediction": ["dog"]})).tolist() == [3, 2, 15]
    groups = table.groups("prediction", {}, 2, table.sorted_by("loss", table.indices(), descending=True))
    assert [(group.name, group.size, group.indices) for group in groups] == [("dog", 3, [15, 3]), ("cat", 1, [1])]
    assert table.filtered(groups[0].filters).tolist() == [2, 3, 15]
    assert table.rows()[1]["prediction"] == "cat"
    assert (len(table.rows()), len(table.rows(every=True)), table.rows(every=True)[15]["prediction"]) == (10, 20, "dog")
    assert {line["value"]: line["samples"] for line in table.costs("prediction")} == {None: 7, "cat": 1, "dog": 2}
    table.remove_column("loss")
    table.remove_column("prediction")
    assert table.indices().tolist() == list(range(10))
    with pytest.raises(KeyError, match=r"you have added no column 'loss'\. Yours: none"):
        table.remove_column("loss")


def test_pairs_of_labels_and_predictions_are_counted_and_each_cell_can_be_filtered():
    table = table_of([{"y": i % 3} for i in range(30)])
    predictions = [0 if i in (1, 4) else i % 3 for i in range(30)]
    table.add_column(*own("prediction", predictions, 30))
    classes, counts = table.confusion("y", "prediction")
    assert (classes, counts) == (["0", "1", "2"], [[10, 0, 0], [2, 8, 0], [0, 0, 10]])
    assert table.filtered({"y": [1.0, 1.0], "prediction": [0.0, 0.0]}).tolist() == [1, 4]
    with pytest.raises(KeyError, match="'seconds' has no classes"):
        table_of([{"y": 1}, {"y": 2}], seconds=[0.1, 0.2]).confusion("y", "seconds")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([1, 2], "has 2 values for 3 samples"),
        ({7: 1}, "has a value for sample 7, but the samples are numbered from 0 to 2"),
        ({"a": 1}, "must be dataset indices"),
        ([[1], [2], [3]], "one value per sample, not shape (3, 1)"),
        ([object()] * 3, "must be numbers or strings, not object"),
        ("abc", "must be a list, array, dict or Series, not str"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(values, error):
    with pytest.raises((ValueError, TypeError), match=re.escape(error)):
        OwnColumn.of("loss", values, 3)


def test_whole_numbers_get_the_names_of_classes_unless_one_is_no_class():
    named = OwnColumn.of("prediction", torch.tensor([1, 0, -1]), 3, ["cat", "dog"])
    assert [named.at(index) for index in range(3)] == ["dog", "cat", "-1"]
    some = OwnColumn.of("prediction", {0: 1, 2: None}, 3, ["cat", "dog"])
    assert [some.at(index) for index in range(3)] == ["dog", None, None]
    numbers = OwnColumn.of("target size", [1, 0, 17], 3, ["cat", "dog"])
    assert [numbers.at(index) for index in range(3)] == [1, 0, 17]
    assert [OwnColumn.of("right", [True, None, False], 3).at(index) for index in range(3)] == ["True", None, "False"]
    missing = OwnColumn.of("word", ["x", math.nan, "y"], 3)  # as pandas.Series(["x", None, "y"]) has it
    assert [missing.at(index) for index in range(3)] == ["x", None, "y"]
    assert OwnColumn.of("word", ["a\n", "a\t", True, "True"], 4).texts == (clean("a\n"), "True")
    with pytest.raises(ValueError, match="both numbers and strings"):
        OwnColumn.of("loss", [1, "a", 2], 3)


def test_columns_are_given_as_lists_arrays_tensors_dicts_and_series():
    pandas = pytest.importorskip("pandas")
    for values in ([0.5, None, 2], np.array([0.5, np.nan, 2]), torch.tensor([0.5, float("nan"), 2]), {2: 2, 0: 0.5},
                   pandas.Series([2, 0.5], index=[2, 0])):  # fmt: skip
        column = OwnColumn.of("loss", values, 3)
        assert [column.at(index) for index in range(3)] == [0.5, None, 2]


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=30),
    st.floats(-5, 4), st.floats(-5, 4), st.floats(0.1, 5), st.floats(0.1, 5),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_rectangle_as_a_polygon_has_the_points_inside_of_it(points, left, low, width, height):
    points.append((-6.0, -6.0))  # so that no axis is logarithmic
    table = SampleTable()
    for name, at in (("x", 0), ("y", 1)):
        table.add_column(*own(name, [point[at] for point in points], len(points)))
    right, high = left + width, low + height
    found = table.within("x", "y", [[left, low], [right, low], [right, high], [left, high]])
    edges = {left, right}, {low, high}
    clear = [i for i, (x, y) in enumerate(points) if x not in edges[0] and y not in edges[1]]
    assert [i for i in found if i in clear] == [
        i for i in clear if left < points[i][0] < right and low < points[i][1] < high
    ]


def test_a_map_of_vectors_keeps_groups_apart_and_similar_samples_are_found():
    random = np.random.default_rng(0)
    centers = random.normal(size=(3, 64)) * 5
    vectors = centers[np.arange(90) % 3] + random.normal(size=(90, 64)) * 0.1
    embedding = Embedding.of(torch.tensor(vectors), 90)
    places = embedding.places("pca")
    middles = np.stack([places[at::3].mean(axis=0) for at in range(3)])
    nearest = np.linalg.norm(places[:, None] - middles[None], axis=2).argmin(axis=1)
    assert nearest.tolist() == [at % 3 for at in range(90)]
    similar = embedding.similar(4, 29)
    assert sorted(similar) == [at for at in range(1, 90, 3) if at != 4]
    assert list(similar.values()) == sorted(similar.values(), reverse=True)
    assert len(embedding.similar(4, 1000)) == 89
    some = Embedding.of({7: [1.0, 0], 3: [1.0, 0.1], 9: [0.0, 1]}, 10)
    assert list(some.similar(7, 2)) == [3, 9]
    assert some.places(None).tolist() == [[1.0, 0.10000000149011612], [1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(KeyError, match="sample 8 has no vector"):
        some.similar(8, 2)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (np.zeros((4, 2)), "a vector for each of the 3 samples, but its shape is (4, 2)"),
        (np.zeros(3), "but its shape is (3,)"),
        ({0: [1.0, 2], 1: [1.0]}, "the same length"),
        ({5: [1.0, 2]}, "samples must be from 0 to 2"),
        (np.full((3, 2), np.nan), "neither NaN nor infinity"),
        ("abc", "vectors of numbers, not str"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(values, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        Embedding.of(values, 3)


def test_texts_of_samples_and_columns_are_searched_for_all_words():
    table = table_of([{"text": f"The {'quick' if i % 2 else 'slow'} fox {i}" + " x" * 300} for i in range(4)])
    table.add_column(*own("comment", {2: "QUICK, but not in the text"}, 4))
    assert list(table.search("fox quick")) == [1, 2, 3]
    assert list(table.search("FOX 2")) == [2]
    table.add_column(*own("author", ["Ann", None, "Bo", "Ann"], 4))
    assert list(table.search("ann quick")) == [3], "a word may be in any of the texts"
    assert table.excerpt(1, "quick").startswith("The quick fox 1")
    assert table.excerpt(3, "ann").endswith("Ann")
    assert len(table.search(" ")) == 0
    table.drop([1])
    assert list(table.search("quick fox")) == [2, 3]


def test_the_first_samples_that_are_listed_have_notes_in_any_order():
    table = SampleTable()
    table.add_column(*own("comment", ["a fox"] * 5000, 5000))
    table.add_column(*own("loss", np.arange(5000.0), 5000))
    listed = Arrangement(words="fox", sort="loss", descending=True).listed(table)
    assert (len(listed.indices), listed.indices[0], listed.notes[4999]) == (5000, 4999, "a fox")


def test_a_million_strings_of_the_user_are_sorted_grouped_and_searched_fast():
    names = [f"class {i}" for i in range(10)]
    codes = np.random.default_rng(0).integers(0, 10, 1_000_000)
    table = SampleTable()
    begin = time.thread_time()
    table.add_column(*own("prediction", codes, 1_000_000, names))
    table.add_column(*own("loss", np.random.default_rng(1).random(1_000_000), 1_000_000))
    listed = Arrangement(words="class 7", sort="loss", group="prediction", each=20).listed(table)
    assert time.thread_time() - begin < 2
    assert [(group.name, group.size) for group in listed.groups] == [("class 7", np.count_nonzero(codes == 7))]
    losses = [table._own["loss"].at(index) for index in listed.indices]
    assert losses == sorted(losses)
    assert len(losses) == 20


def test_a_million_values_of_the_user_are_counted_and_sorted_fast():
    table = table_of([{"label": i % 2} for i in range(100)])
    table.add_column(*own("loss", np.random.default_rng(0).random(1_000_000), 1_000_000))
    begin = time.thread_time()
    content, _ = table.statistics({"loss": [0.9, 1]}, "loss", "label", "label")
    first = table.sorted_by("loss", table.indices(), descending=True)[0]
    assert time.thread_time() - begin < 3
    assert content["passed"] == len(table.filtered({"loss": [0.9, 1]}))
    assert table.rows(every=False)[0]["loss"] <= table._own["loss"].at(first)


def test_an_arrangement_as_python_lists_the_same_samples():
    table = table_of([{"label": "cat" if i % 2 else "dog", "n": float(i), "text": f"a {i}"} for i in range(40)])
    arrangement = Arrangement({"label": ["cat"], "n": [3.0, 20.0]}, "a", "n", descending=True)
    first, *others = arrangement.code()
    assert others == ["view.search('a')", "view.sort('n', descending=True)"]
    condition = eval(first.removeprefix("view.filter(").removesuffix(")"))
    assert sorted(arrangement.listed(table).indices) == [row["index"] for row in table.rows() if condition(row)]
    assert arrangement.listed(table).indices[0] == 19
    assert Arrangement().code() == []


def test_a_table_is_empty_after_what_it_had_was_dropped():
    table = table_of([1, 2])
    assert table.checked(0)
    table.drop([0, 1, 7])
    assert (len(table), table.checked(0), table.statistics({}, "", "", "")[0]["columns"]) == (0, False, [])
    table.add(3, ReadSample(json.dumps({"error": "no"}), [], 0.1, 0.1, failed=True))
    assert (table.failed(), table.problems()["failed"], table.checked(3)) == ([3], {3: "no"}, True)


def test_a_scan_requests_little_ahead_and_repeats_nothing_after_a_pause():
    scan, read = Scan(range(500)), []
    waiting = scan.request()
    while waiting:
        assert len(waiting) <= AHEAD
        index = waiting.pop(0)
        if index == 100:
            scan.pause(paused=True)
            assert scan.request() == []
            waiting = []
        scan.finish(index)
        read.append(index)
        if index == 100:
            scan.pause(paused=False)
        waiting += scan.request()
    assert scan.ended
    assert sorted(read) == list(range(500))
    assert scan.to_json()["done"] == 500


def test_missing_values_of_a_table_are_missing_and_not_numbers_that_are_not_finite():
    pandas = pytest.importorskip("pandas")
    cells = [{"age": 1.5 + at, "city": f"town {at}", "when": np.datetime64("2024-01-01")} for at in range(20)]
    cells[3] = {"age": math.nan, "city": math.nan, "when": np.datetime64("NaT")}
    cells[7] = {**cells[7], "city": None}
    cells[9] = {**cells[9], "age": math.inf}
    rows = rows_of(pandas.DataFrame(cells))
    reader, table = SampleReader(rows, {}, (), tabular=True), SampleTable()
    for index in range(len(rows)):
        table.add(index, reader[scan_request(index)])
    assert table.problems() == {
        "failed": {},
        "duplicate": {},
        "alike": {},
        "not finite": {9: "age has numbers that are not finite"},
        "missing": {3: "age, city, when missing", 7: "city missing"},
        "constant": {},
        "shape": {},
    }
    fields = {field["path"]: field["summary"] for field in json.loads(reader[Request(3)].content)["fields"]}
    assert fields == {"age": "missing", "city": "missing", "when": "missing"}
    assert table.sortable().count("age") == 1
    assert SampleReader(cells, {}, ())[Request(3)].content.count("missing") == 0, "NaN in a sample is a number"
    assert rows_of(pandas.Series([1.0, math.nan]))[1] is None


def test_nan_in_another_table_than_that_of_pandas_is_a_number():
    class Frame:
        """As polars has it, in which null is missing."""

        def __len__(self):
            return 2

        def iter_rows(self):
            raise NotImplementedError

        def row(self, index, named):
            return {"age": [math.nan, None][index]}

    reader, table = SampleReader(rows_of(Frame()), {}, (), tabular=True), SampleTable()
    for index in range(2):
        table.add(index, reader[scan_request(index)])
    assert (list(table.problems()["not finite"]), list(table.problems()["missing"])) == ([0], [1])


def test_an_excerpt_is_one_line_without_replacement_characters():
    assert excerpt("dog", ["The cat\nand the dog", "", "house"]) == "The cat and the dog \u00b7 house"
    long = "a " * 200 + "dog" + " b" * 200
    assert re.fullmatch(r"\u2026[a ]+ dog [b ]+\u2026", excerpt("dog", [long]))
