"""The registry of kinds: which kind a value is of, kinds from outside, several kinds in one picture."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pickle
import re
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from PIL import Image
from test_explorer_fields import decode

from nbloader.explorer.describer import describe
from nbloader.explorer.field import to_json
from nbloader.explorer.kinds import KINDS, Kind, named, register
from nbloader.explorer.kinds.image import Image as ImageKind
from nbloader.explorer.kinds.none import Nothing
from nbloader.explorer.pictures import LABEL_COLORS
from nbloader.explorer.reader import Request, SampleReader, scan_request
from nbloader.explorer.view import View

pytestmark = pytest.mark.unit

FULL = View(full=True)
GRAY = np.full((40, 60, 3), 100, np.uint8)
LABELS = np.zeros((40, 60), np.int64)
LABELS[10:20, 10:20] = 2


@pytest.fixture
def registry():
    """The registry, which is restored."""
    before = list(KINDS)
    yield KINDS
    KINDS[:] = before


@pytest.fixture
def gaze(registry, monkeypatch):
    """The kind of the worked example, registered by its import."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "browser")
    yield importlib.import_module("gaze").Gaze
    del sys.modules["gaze"]


@dataclasses.dataclass
class Record:
    """A container."""

    number: int = 1


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"array": np.zeros(9), "sampling_rate": 8}, "audio"),  # a mapping, but no container
        ({"array": np.zeros(9)}, "tree"),
        (Record(), "tree"),
        ([1, 2], "tree"),
        ([], "object"),
        (None, "none"),
        ("1", "text"),
        (b"1", "bytes"),
        (1, "label"),
        (5, "number"),
        (True, "number"),
        (torch.tensor(1), "label"),
        (np.float32(1), "number"),
        (Image.new("L", (2, 2)), "image"),
        (np.zeros((9, 9)), "image"),
        (np.zeros((5, 9, 9)), "volume"),
        (np.zeros(9), "signal"),
        (np.zeros((2, 9)), "signal"),
        (np.zeros(3), "array"),
        (np.zeros((3, 4, 5)), "array"),
        (np.array(["a"]), "array"),
        (np.array("a"), "object"),
        (object(), "object"),
    ],
)
def test_the_first_kind_of_the_registry_that_recognizes_a_value_describes_it(value, kind):
    assert describe(value, {"*": ["cat", "dog"]}, (), FULL).fields[0].kind == kind


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("boxes", np.zeros((9, 4)), "boxes"),
        ("points", np.zeros((9, 4)), "array"),
        ("mask", LABELS, "mask"),
        ("depth", LABELS, "image"),
        ("mask", LABELS.astype(float), "image"),
        ("boxes", np.zeros((9, 9), int), "image"),
    ],
)
def test_boxes_and_masks_are_recognized_by_their_names_too(name, value, kind):
    assert describe({name: value}, {}, (), FULL).fields[1].kind == kind


def test_each_kind_has_a_name_of_its_own_and_a_module_that_draws_it():
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    folder = Path(sys.modules[Kind.__module__].__file__).parent
    assert {path.stem for path in folder.glob("*.js")} == {kind.name for kind in KINDS}
    for kind in KINDS:
        script = kind.script().read_text("utf-8")
        exported = set(re.findall(r"^export function (\w+)\(el, field, \{", script, re.MULTILINE))
        assert "draw" in exported <= {"draw", "cover", "words"}, kind.name
        draws_on_cards = kind in (named("audio"), named("signal")) or kind.is_canvas
        assert "cover" in exported or not draws_on_cards


def test_a_registered_kind_is_asked_first_and_reaches_a_process_that_has_not_registered_it(gaze, registry):
    sample = {"image": GRAY, "gaze": np.array([[10.0, 5.0], [30.0, 25.0]])}
    assert registry[0] is gaze
    reader = cloudpickle.dumps(SampleReader([sample], {}, ()))
    registry.remove(gaze)
    read = pickle.loads(reader)[Request(0, view=FULL)]
    field = json.loads(read.content)["fields"][2]
    assert (field["kind"], field["summary"], field["note"]) == ("gaze", "2 gaze points", "over image")
    assert field["data"] == {"corners": [[10.0, 5.0], [30.0, 25.0]]}
    assert (field["shape"], field["facts"]["shape"]) == ([2, 2], "2\N{MULTIPLICATION SIGN}2")
    drawn = decode(read.buffers[field["picture"]])
    assert [tuple(drawn[y, x]) != (100, 100, 100) for x, y in ((10, 5), (30, 25), (20, 15))] == [True, True, False]
    assert describe(sample, {}, (), FULL).fields[2].kind == "array"


def test_on_a_card_a_registered_kind_shares_the_picture_with_the_others(gaze):
    [buffer] = describe({"image": GRAY, "mask": LABELS, "gaze": np.array([[50, 30]])}, {}).buffers
    drawn = decode(buffer)
    assert [tuple(drawn[y, x]) != (100, 100, 100) for x, y in ((15, 15), (50, 30), (0, 0))] == [True, True, False]


def test_an_overlay_that_raises_is_noted_and_the_others_are_drawn(registry):
    class Fragile(Kind):
        name = "none"

        @classmethod
        def recognizes(cls, value):
            return value.name == "fragile"

        def describe(self):
            self.field.summary = "fragile"

        def belongs_to(self, picture):
            return True

        def draw_over(self, pixels, picture):
            raise ValueError("no room")

    fields = describe({"image": GRAY, "fragile": 1, "mask": LABELS}, {}, (), FULL, None, [Fragile, *KINDS]).fields
    assert fields[2].note == "not drawn over the picture: ValueError: no room"
    assert fields[3].note == "over image"


def test_a_kind_that_raises_becomes_an_error_and_the_other_fields_are_described():
    class Wrong(Kind):
        name = "wrong"

        @classmethod
        def recognizes(cls, value):
            return {}[value.path] if value.path == "a" else False

    fields = describe({"a": 1, "b": 2}, {}, (), FULL, None, [Wrong, *KINDS]).fields
    assert [(field.kind, field.summary) for field in fields[1:]] == [("error", "KeyError: 'a'"), ("number", "2")]
    assert "recognizes" in fields[1].text


def test_registering_a_kind_again_replaces_it_and_one_without_a_script_is_refused(registry):
    class Scriptless(Kind):
        name = "scriptless"

    with pytest.raises(FileNotFoundError, match=r"scriptless\.js does not exist"):
        register(Scriptless)

    class Again(Nothing):
        @classmethod
        def script(cls):
            return Nothing.script()

    at, count = registry.index(Nothing), len(registry)
    register(Again)
    assert (registry[at], len(registry), named("none")) == (Again, count, Again)


def test_what_the_user_chose_to_see_reaches_the_kind_of_that_field_only():
    volumes = {name: np.zeros((5, 9, 9), np.uint8) for name in "ab"}
    fields = describe(volumes, {}, (), View(full=True, choices=(("b", 3),))).fields
    assert [field.data["slice"] for field in fields[1:]] == [2, 3]


def test_a_mask_that_is_the_only_picture_has_colors_on_a_card():
    card, full = (decode(describe({"mask": LABELS}, {}, (), view).buffers[0]) for view in (View(), FULL))
    assert np.array_equal(card, full)
    assert [tuple(card[0, 0]), tuple(card[15, 15])] == [tuple(LABEL_COLORS[0]), tuple(LABEL_COLORS[2])]


def test_the_summary_of_a_mask_says_what_it_is():
    for sample in ({"image": GRAY, "mask": LABELS}, {"mask": LABELS}):
        assert describe(sample, {}, (), View()).fields[-1].summary == "mask, 2 labels"


def test_caption_and_cover_are_chosen_by_kind_and_leave_out_what_is_absent():
    sample = {"nothing": None, "x": [1, 2], "t": "text", "n": 2.5, "label": 1, "image": GRAY, "more": {}}
    content = json.loads(SampleReader([sample], {"label": ["cat", "dog"]}, ())[Request(0)].content)
    fields = content["fields"]
    assert fields[content["cover"]]["path"] == "image"
    assert content["caption"] == ["dog (1)", "n 2.5", "text"], "a number says nothing without its name"
    assert [field["path"] for field in fields if field.get("absent")] == ["nothing"]
    assert "more" not in [field["path"] for field in fields], "a container has no place on a card"
    assert json.loads(SampleReader([None], {}, ())[Request(0)].content)["cover"] == -1


def test_the_static_form_is_drawn_by_the_kind_and_escaped():
    description = describe({"image": GRAY, "text": "<b>"}, {})
    image, text = (to_json(field) for field in description.fields[1:])
    assert (
        named("image").html(image, description.buffers).startswith('<img class="nbx-picture" alt="" src="data:image/')
    )
    assert named("text").html(text, description.buffers) == '<div class="nbx-words">&lt;b&gt;</div>'
    assert named("a kind that this process has not registered") is named("object")


def test_a_scan_compares_what_the_kinds_say(registry):
    class Constant(ImageKind):
        """A kind whose values may all be the same number, and which does not count as content."""

        varies = False
        compared_as = None

    flat = {"image": np.zeros((9, 9)), "name": "a"}
    check = json.loads(SampleReader([flat], {}, ())[scan_request(0)].content)["check"]
    assert (check["constant"], check["digest"].split()[0]) == (["image"], "picture")
    registry.insert(0, Constant)
    check = json.loads(SampleReader([flat], {}, ())[scan_request(0)].content)["check"]
    assert (check["constant"], check["digest"].split()[0]) == ([], "text")
