"""Two versions of a dataset side by side: the same samples under the same seeds."""

from __future__ import annotations

import random
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image

from nbloader.explorer import cell_output, widget
from nbloader.explorer.describer import describe
from nbloader.explorer.versions import Versions, difference, renewed
from nbloader.explorer.view import View
from nbloader.frontend.live import LiveWidget

CELL = """
import random
import numpy as np
from nbloader import get_worker_info

def generator():
    info = get_worker_info()
    return random if info is None or info.rng is None else info.rng.random_generator

class Augment:
    def __call__(self, image):
        return np.clip(image.astype(int) + STEP, 0, 255).astype(np.uint8)

def shift(number):
    return number + STEP

class Data:
    classes = ["cat", "dog"]
    def __init__(self):
        self.transforms = [Augment()]
        self.shift = shift
    def __len__(self):
        return 6
    def __getitem__(self, index):
        if STEP == 9 and index == 2:
            raise ValueError("edited")
        image = np.full((20, 30, 3), generator().randrange(100), np.uint8)
        mask = np.zeros((20, 30), np.int64)
        mask[STEP:10] = 1
        return {"image": self.transforms[0](image), "mask": mask, "label": index % 2, "n": self.shift(index)}
"""


@pytest.fixture
def cell(monkeypatch):
    """A function that runs the cell of a notebook again, with a number that was edited."""
    module = types.ModuleType("edited_cell")
    monkeypatch.setitem(sys.modules, "edited_cell", module)

    def run(step):
        module.STEP = 0
        exec(CELL.replace("STEP", str(step)), vars(module))
        return module

    return run


def test_the_current_definitions_of_classes_and_functions_make_the_second_version(cell):
    dataset = torch.utils.data.Subset(cell(1).Data(), [3, 4, 5])
    assert renewed(dataset) is dataset
    cell(5)
    new = renewed(dataset)
    random.seed(0)
    before = dataset[1]
    random.seed(0)
    after = new[1]
    assert (np.abs(after["image"].astype(int) - before["image"]) == 4).all()
    assert (before["n"], after["n"]) == (5, 9)
    assert new.dataset.transforms is not dataset.dataset.transforms
    assert new.indices is dataset.indices


def test_both_versions_of_a_sample_have_the_same_seed_and_the_difference_is_shown(cell):
    old = cell(1).Data()
    cell(9)
    versions = Versions(old, renewed(old), "thread")
    random.seed(1)
    sample = versions[1]
    assert (sample["difference"]["image"] == 8).all()
    assert sample["difference"]["image"].dtype == np.uint8
    assert (sample["difference"]["n"], list(sample["difference"])) == (8.0, ["image", "mask", "n"])
    assert versions[2]["after"] == "raises ValueError: edited"
    assert Versions(old, old, "thread")[0]["difference"] == "none"
    fields = {f.path: f for f in describe(sample, Versions.names({"*": old.classes}), (), View(full=True)).fields}
    assert [fields[f"{side}.label"].value for side in ("before", "after")] == ["dog", "dog"]
    assert [fields[f"{side}.mask"].note for side in ("before", "after")] == ["over before.image", "over after.image"]


def test_an_explorer_compares_and_says_if_nothing_was_edited(cell, monkeypatch):
    monkeypatch.setattr(LiveWidget, "send", lambda *_args, **_kwargs: None)
    monkeypatch.setattr(cell_output, "_write_static_in_time", lambda: None)
    view = widget.Explorer(cell(1).Data(), num_workers=1, workers="thread", seed=0, buffer=10)
    with pytest.raises(ValueError, match="no class or function that Data uses has changed"):
        view.compare()
    cell(3)
    both = view.compare()
    assert both.scan(6) == 6
    assert {row["difference.image.max"] for row in both.rows()} == {2}
    assert both._source.title == "Two versions of Data"
    both.close()
    view.close()
    stream = widget.Explorer((i for i in range(3)), num_workers=1, workers="thread", seed=0, buffer=10)
    with pytest.raises(TypeError, match="__getitem__ and __len__"):
        stream.compare()
    stream.close()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (1, 1, None),
        (1, 1.5, 0.5),
        ("a", "b", "'a' is now 'b'"),
        (None, 3, "None is now 3"),
        ([1, "a"], [1, "b"], {"1": "'a' is now 'b'"}),
        ({"a": 1}, {"a": 1, "b": 2}, {"b": "None is now 2"}),
        (np.zeros(3), np.zeros(4), "float64 (3,) is now float64 (4,)"),
        (np.zeros(3), np.zeros(3, np.float32), "float64 is now float32"),
        (np.array([np.nan]), np.array([np.nan]), None),
        (torch.zeros(3), torch.zeros(3), None),
        (Image.new("L", (9, 9)), Image.new("L", (9, 9)), None),
    ],
)
def test_differences_of_values(before, after, expected):
    assert difference(before, after) == expected
