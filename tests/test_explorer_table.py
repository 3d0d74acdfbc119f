"""What the explorer knows of samples: columns, histograms, filters, costs, and the finders of problems. Pure."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from nbloader.explorer.describer import describe
from nbloader.explorer.problems import Check, Form, find_problems
from nbloader.explorer.reader import ReadSample, SampleReader, scan_request
from nbloader.explorer.scan import AHEAD, Scan
from nbloader.explorer.table import BINS, LARGEST_GROUPS, OTHERS, SampleTable
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
        ({"data": b"jpeg"}, {"data": b"jpeg"}, True),
        (3, 3, True),
        (3, 3.0, False),
    ],
)
def test_duplicates_are_compared_by_what_a_sample_mainly_is(first, second, equal):
    digests = [check_of(sample).digest for sample in (first, second)]
    assert all(digests)
    assert (digests[0] == digests[1]) is equal


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
    assert find_problems({}, shapes)["shape"][8] == "has no field x; has a field y, as 3 % of the samples"


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
    assert table.filtered({}) == list(range(40))


def test_axes_span_the_points_that_are_drawn():
    table = table_of([{"a": 3}, {"a": 5}, {"other": 1}], seconds=[0.1, 0.2, 0.00001])  # the last one has no such field
    axes = table.statistics({}, "a", "seconds", "a")[0]["scatter"]
    assert (axes["x"]["low"], axes["x"]["high"], axes["y"]["low"], axes["y"]["high"]) == (3, 5, 0.1, 0.2)


def test_costs_of_a_number_are_by_bins():
    table = table_of([{"n": float(i)} for i in range(100)], seconds=[1.0 if i >= 95 else 0.01 for i in range(100)])
    first = table.statistics({}, "", "", "n")[0]["costs"][0]
    assert first["value"][0] >= 90
    assert first["share_of_time"] > 0.7


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
