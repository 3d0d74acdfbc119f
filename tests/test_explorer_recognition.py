"""What values are taken for: by shapes, types, values and what is beside them, and by what the user says."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from test_explorer_fields import decode

from nbloader.explorer.api import Explore
from nbloader.explorer.declarations import class_names, tokenizer_of
from nbloader.explorer.describer import describe
from nbloader.explorer.kinds import KINDS, Context, Value
from nbloader.explorer.overview import pictures_in
from nbloader.explorer.pictures import LABEL_COLORS
from nbloader.explorer.view import View

pytestmark = pytest.mark.unit

FULL = View(full=True)
RANDOM = np.random.default_rng(0)
RGB = RANDOM.integers(0, 256, (64, 48, 3)).astype(np.uint8)
GRAY = np.full((64, 48, 3), 100, np.uint8)
LABELS = np.zeros((64, 48), np.int64)
LABELS[10:20, 10:20] = 2
TIME = np.linspace(0, 9, 1024)
TOMOGRAM = RANDOM.normal(0, 500, (40, 64, 48)).clip(-1000, 2000).astype(np.int16)
FLOW = RANDOM.normal(0, 1, (2, 64, 48)).astype(np.float32)
EDGES = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])


def encoded(array, form):
    """A picture as a file."""
    file = io.BytesIO()
    Image.fromarray(array).save(file, form)
    return file.getvalue()


def sound_file(rate=8000, channels=2):
    """A WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(np.arange(4000, dtype="<i2").tobytes())
    return file.getvalue()


def described(sample, **options):
    """Fields of a sample by path, and the whole description."""
    description = describe(sample, options.pop("names", {}), (), options.pop("view", FULL), **options)
    return {field.path: field for field in description.fields}, description


class Attributed:
    """An object with these attributes, as PyTorch Geometric's `Data`."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def to_dict(self):
        return dict(vars(self))


@pytest.mark.parametrize(
    ("sample", "kinds"),
    [
        ((torch.rand(3, 64, 48), torch.zeros(64, 48, dtype=torch.int64)), ["image", "mask"]),
        ((torch.rand(3, 64, 48), torch.zeros(1, 64, 48)), ["image", "mask"]),
        ((torch.rand(1, 64, 48), torch.zeros(64, 48, dtype=torch.int64)), ["image", "mask"]),
        ((LABELS, RGB), ["mask", "image"]),
        ((Image.fromarray(RGB), Image.fromarray((RGB[:, :, 0] > 99).astype(np.uint8))), ["image", "mask"]),
        ((Image.fromarray(RGB), Image.fromarray(RGB[:, :, 0])), ["image", "image"]),
        ((Image.fromarray(RGB[:, :, 0]), 3), ["image", "number"]),
        ({"image": RGB, "depth": LABELS}, ["image", "image"]),
        ((RGB, LABELS[:32]), ["image", "image"]),
        ((RGB, {"masks": np.ones((3, 64, 48), np.uint8), "boxes": [[1, 2, 9, 9]]}), ["image", "tree", "mask", "boxes"]),
        ((RGB, {"masks": torch.ones(5, 64, 48, dtype=torch.bool)}), ["image", "tree", "mask"]),
        ((RGB, {"masks": np.eye(5, dtype=np.uint8)[LABELS % 5]}), ["image", "tree", "mask"]),
        ((RGB, np.eye(3, dtype=np.float32)[LABELS % 3]), ["image", "mask"]),
        ((torch.rand(3, 64, 48), np.zeros((64, 48, 7), np.bool_)), ["image", "mask"]),
        ((RGB, LABELS[..., None] > np.arange(3)), ["image", "mask"]),
        ([{"masks": np.eye(3, dtype=np.uint8)[LABELS % 3]}], ["tree", "mask"]),
        ((RGB, np.zeros((64, 48, 7), np.uint8)), ["image", "volume"]),
        ((RGB, (RGB // 64).repeat(2, axis=2)), ["image", "volume"]),
        ((RGB, np.repeat(LABELS[..., None] > 0, 3, axis=2)), ["image", "image"]),
        ({"image": RGB, "mask": np.eye(3, dtype=np.uint8)[LABELS % 3] * 255}, ["image", "image"]),
        ((RGB, (LABELS[..., None] > np.arange(3)).astype(np.float32)), ["image", "image"]),
        ((RGB[:32], np.zeros((64, 48, 5), np.bool_)), ["image", "volume"]),
        ((torch.randn(2, 16_000), 16_000, "yes"), ["audio", "rate", "text"]),
        ((torch.randn(2, 16_000), 16_001), ["signal", "number"]),
        ({"audio": np.zeros(99), "sampling_rate": 8000, "text": "a"}, ["audio", "rate", "text"]),
        ({"label": 3, "sample_rate": np.float32(44_100), "wave": np.zeros(99)}, ["number", "rate", "audio"]),
        ({"rate": 16_000, "image": RGB}, ["number", "image"]),
        ((RGB, [{"bbox": [1, 2, 9, 9], "category_id": 1}]), ["image", "objects"]),
        ([torch.randn(96, 7)], ["signal"]),
        ([torch.randn(7, 96)], ["signal"]),
        ((torch.randn(12, 5000), 3), ["signal", "number"]),
        ([torch.randn(1000, 12)], ["signal"]),
        ([torch.randn(80, 3000)], ["image"]),
        ({"samples": np.zeros(999, np.int16), "sr": 8000, "label": 1}, ["audio", "rate", "number"]),
        ([np.stack([np.sin(TIME), np.cos(TIME), TIME], 1)], ["signal"]),
        ([torch.randn(1024, 3)], ["cloud"]),
        ({"points": torch.randn(50, 4)}, ["cloud"]),
        ([np.zeros((64, 48, 12), np.uint16)], ["volume"]),
        ([torch.rand(3, 16, 64, 48)], ["volume"]),
        ({"image": RGB, "keypoints": np.ones((17, 3)), "flow": FLOW}, ["image", "keypoints", "flow"]),
        ((RGB, RGB, FLOW), ["image", "image", "flow"]),
        ([np.moveaxis(FLOW, 0, 2)], ["volume"]),
        ({"input_ids": [1, 2, 3]}, ["tokens"]),
        ({"input_ids": [1.5, 2, 3]}, ["array"]),
        ({"input_ids": [5] * 9, "attention_mask": [1] * 9, "labels": [-100] * 9}, ["tokens", "flags", "tokens"]),
        ({"input_ids": [5] * 9, "position_ids": list(range(9))}, ["tokens", "signal"]),
        ({"observed": np.arange(9) > 4, "x": np.arange(9) % 2, "mask": np.arange(9)}, ["flags", "signal", "signal"]),
        ({"jpg": encoded(RGB, "JPEG"), "cls": b"3"}, ["image", "bytes"]),
        ({"jpg": encoded(RGB, "JPEG"), "seg.png": encoded(LABELS.astype(np.uint8), "PNG")}, ["image", "mask"]),
        ({"image": {"bytes": encoded(RGB, "PNG"), "path": None}}, ["image"]),
        ([np.frombuffer(encoded(RGB, "PNG"), np.uint8)], ["image"]),
        ({"wav": sound_file(), "mp3": b"ID3" + bytes(99)}, ["audio", "media"]),
        ({"jpg": b"\x89PNG\r\n\x1a\n" + bytes(50)}, ["bytes"]),
        ({"path": "/nowhere/1.png"}, ["text"]),
        ({"edge_index": EDGES, "x": np.zeros((3, 5))}, ["array", "array"]),
        ((RGB, np.array([[0, 0.5, 0.5, 0.2, 0.2]])), ["image", "boxes"]),
        ((RGB, {"b": np.array([[1.0, 2, 30, 40]]), "labels": [1]}), ["image", "tree", "boxes", "array"]),
        ((np.random.rand(4), 1), ["array", "number"]),
        ([np.zeros((5, 7, 3))], ["array"]),
    ],
)  # fmt: skip
def test_values_are_recognized_without_names_by_shape_type_values_and_what_is_beside_them(sample, kinds):
    _, description = described(sample)
    assert [field.kind for field in description.fields[1:]] == kinds


def test_a_sampling_rate_is_the_last_in_a_caption_and_has_a_unit():
    _, description = described((torch.randn(1, 16_000), 16_000, "yes", 7, 8))
    assert [description.fields[at].summary for at in description.caption] == ["7", "8", "yes"]
    assert description.fields[2].summary == "16,000 Hz"


@given(
    st.one_of(
        hnp.arrays(
            st.one_of(hnp.scalar_dtypes(), st.just(np.dtype(object)), st.just(np.dtype([("a", "<f4"), ("b", "<i2")]))),
            hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=20),
        ),
        st.binary(max_size=40),
        st.text(max_size=20),
    ),
    st.sampled_from(["", "mask", "boxes", "points", "flow", "keypoints", "input_ids", "edge_index", "0", "a.png"]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_kind_raises_on_any_array_and_what_is_recognized_is_described(array, name):
    beside = {name: array, "1": 16_000, "image": RGB}
    for view in (View(), View(scan=True)):
        context = Context(view, {}, None, pictures_in(beside))
        value = Value(name, array, context, neighbors=beside)
        for kind in KINDS:
            if kind.recognizes(value) or kind.fits(value):
                kind(value).describe()
    assert [field.text for field in describe(beside, {}, (), FULL).fields if field.kind == "error"] == []


def test_the_user_says_what_a_field_is():
    sample = (RGB, RANDOM.random((40, 30)), "a", {"x": LABELS})
    by_path, _ = described(sample, hints={"1": "signal", "2": "mask", "x": "mask"})
    assert [by_path[path].kind for path in ("1", "2", "3.x")] == ["signal", "text", "mask"]
    assert by_path["2"].note == "not drawn as mask: neither its shape nor its type suits"
    assert described(RANDOM.random(4000), hints={"": "audio"})[0][""].note == "a rate of 16,000 Hz is assumed"
    with pytest.raises(ValueError, match=r"kinds must be one of 'error', 'audio', .*not 'picture'"):
        Explore()([1], kinds={"0": "picture"})


def test_a_mask_without_a_name_and_layers_of_objects_are_drawn_over_the_picture():
    by_path, description = described((GRAY, LABELS))
    over = decode(description.buffers[by_path["1"].picture])
    assert [tuple(over[y, x]) == (100, 100, 100) for y, x in ((0, 0), (15, 15))] == [True, False]
    layers = np.zeros((3, 64, 48), np.uint8)
    layers[0, :8], layers[2, 20:30] = 1, 1
    by_path, description = described({"image": GRAY, "masks": layers})
    over = decode(description.buffers[by_path["masks"].picture])
    assert (by_path["masks"].summary, by_path["masks"].note) == ("3 objects", "over image")
    colors = [tuple(int(part) for part in (100 + LABEL_COLORS[at].astype(int)) // 2) for at in (1, 3)]
    assert [tuple(over[y, 5]) for y in (4, 25, 40)] == [*colors, (100, 100, 100)]
    last, description = described({"image": GRAY, "masks": np.moveaxis(layers, 0, 2)})
    assert np.array_equal(decode(description.buffers[last["masks"].picture]), over)
    assert (last["masks"].summary, last["masks"].shape) == ("3 objects", (64, 48, 3))


def test_annotated_objects_are_a_table_and_are_drawn_with_boxes_and_outlines():
    names = {"objects.category": ["cat", "dog"]}
    objects = [
        {"bbox": [2, 3, 10, 12], "category": 1, "segmentation": [[30, 30, 40, 30, 40, 50]]},
        {"bbox": [20, 3, 5, 5], "category": np.int64(1), "keypoints": [40.0, 60, 2]},
    ]
    by_path, description = described({"image": GRAY, "objects": objects}, names=names)
    field = by_path["objects"]
    assert (field.summary, field.note) == ("2 objects: 2 dog", "over image; read as xywh")
    assert field.data["rows"][0][:2] == ["2, 3, 10, 12", "dog"]
    drawn = decode(description.buffers[field.picture])
    changed = [
        tuple(drawn[y, x]) != (100, 100, 100) for y, x in ((3, 2), (15, 12), (30, 35), (8, 25), (60, 40), (40, 5))
    ]
    assert changed == [True, True, True, True, True, False]


def test_masks_of_annotated_objects_are_drawn_in_the_color_of_their_box():
    solid = np.zeros(GRAY.shape[:2], bool)
    solid[40:50, 5:9] = True
    objects = [
        {"bbox": [1, 0, 1, 1], "id": 3, "segmentation": {"size": [5, 7], "counts": ";320009"}},
        {"bbox": [2, 0, 1, 1], "id": 4, "mask": solid},
    ]
    by_path, description = described({"image": GRAY, "objects": objects})
    drawn = decode(description.buffers[by_path["objects"].picture])
    colors = [tuple((100 + LABEL_COLORS[at].astype(int)) // 2) for at in (1, 2)]
    height, width = GRAY.shape[:2]
    assert tuple(drawn[int(2.5 * height / 5), int(3.5 * width / 7)]) == colors[0]
    assert tuple(drawn[45, 6]) == colors[1]
    assert tuple(drawn[int(4.5 * height / 5), int(6.5 * width / 7)]) == (100, 100, 100)

    objects[0]["segmentation"]["counts"] = [3, 4]
    by_path, description = described({"image": GRAY, "objects": objects})
    assert "do not add up to 5 x 7 pixels" in by_path["objects"].note
    drawn = decode(description.buffers[by_path["objects"].picture])
    assert tuple(drawn[45, 6]) == colors[1], "the others are drawn"


def test_class_names_inside_of_lists_and_mappings_are_found():
    class Dataset:
        features = {  # noqa: RUF012
            "objects": [{"category": Attributed(names=["cat", "dog"])}],
            "more": Attributed(feature={"kind": Attributed(feature=Attributed(names=["x", "y"]))}),
        }

    names = class_names(Dataset())
    assert names == {"objects.category": ["cat", "dog"], "more.kind": ["x", "y"]}
    by_path, _ = described({"objects": [{"category": 1}], "more": {"kind": [1, 0]}}, names=names)
    assert (by_path["objects.0.category"].value, by_path["more.kind"].value) == ("dog", "y, x")


class Words:
    """A tokenizer."""

    def decode(self, ids):
        return " ".join(f"w{number}" for number in ids)


def test_token_ids_are_words_if_there_is_a_tokenizer():
    dataset = torch.utils.data.Subset(Attributed(processor=Attributed(tokenizer=Words())), [0])
    tokenizer = tokenizer_of(dataset)
    sample = {"input_ids": [1, 2, 3], "labels": torch.tensor([-100, 2, 3])}
    by_path, _ = described(sample, tokenizer=tokenizer)
    assert (by_path["input_ids"].text, by_path["labels"].text) == ("w1 w2 w3", "w2 w3")
    assert by_path["labels"].data["tokens"] == [[-100, ""], [2, "w2"], [3, "w3"]]
    assert by_path["labels"].note == "1 of them are ignored (-100)"
    assert described((torch.arange(9), torch.arange(9)), tokenizer=tokenizer)[0]["0"].kind == "tokens"
    assert "no tokenizer" in described(sample)[0]["input_ids"].note


def test_flags_are_a_strip_of_cells_and_no_problem_if_all_are_set():
    mask = torch.cat([torch.ones(48), torch.zeros(12)]).long()
    field = described({"input_ids": torch.arange(60), "attention_mask": mask})[0]["attention_mask"]
    assert (field.summary, field.data["cells"]) == ("48 of 60 set", [1.0] * 48 + [0.0] * 12)
    cells = described({"seen": np.arange(6000) % 4 == 0})[0]["seen"].data["cells"]
    assert len(cells) == 600
    assert set(cells) <= {0.2, 0.3}
    for sample in ({"input_ids": [5] * 9, "attention_mask": [1] * 9}, {"seen": np.ones(9, bool)}):
        check = describe(sample, {}, (), View(scan=True)).check
        assert check is not None
        assert check.constant == ()


def test_encoded_pictures_and_sounds_are_decoded_and_broken_ones_say_so():
    by_path, description = described(
        {"png": encoded(RGB, "PNG"), "bad": encoded(RGB, "PNG")[:200], "wav": sound_file()}
    )
    assert np.array_equal(decode(description.buffers[by_path["png"].picture]), RGB)
    assert by_path["png"].note.startswith("decoded from")
    assert (by_path["bad"].kind, by_path["bad"].note[:25]) == ("bytes", "cannot be decoded as PNG:")
    assert by_path["wav"].summary == "0.25 s at 8,000 Hz"
    [media] = describe(b"fLaC" + bytes(99), {}, (), FULL).fields
    assert (media.kind, media.data["mime"]) == ("media", "audio/flac")


def test_the_picture_at_a_path_is_read_relative_to_the_folder_of_the_dataset(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(RGB, "PNG"))
    by_path, description = described({"path": "a.png", "label": 3}, root=str(tmp_path))
    assert (by_path["path"].kind, by_path["path"].summary, by_path["path"].size) == ("file", "a.png", (48, 64))
    assert np.array_equal(decode(description.buffers[by_path["path"].picture]), RGB)
    assert described({"path": "a.png"})[0]["path"].kind == "text"


def test_a_tomogram_has_windows_and_three_axes_and_its_slices_one_scale():
    by_path, description = described({"scan": TOMOGRAM})
    data = by_path["scan"].data
    assert (data["windows"][:2], data["axes"], data["axis"], data["slices"]) == (["soft tissue", "lung"], 3, 0, 40)
    assert "soft tissue: level 40, width 400" in by_path["scan"].note
    drawn = decode(description.buffers[by_path["scan"].picture])[:, :, 0]
    assert (drawn[TOMOGRAM[20] <= -160] == 0).all()
    assert (drawn[TOMOGRAM[20] >= 240] == 255).all()
    choices = (("scan#axis", 2), ("scan", 7), ("scan#window", 2))
    by_path, description = described({"scan": TOMOGRAM}, view=View(full=True, choices=choices))
    assert (by_path["scan"].data["slices"], by_path["scan"].size) == (48, (64, 40))
    assert "bone" in by_path["scan"].note
    drawn = decode(description.buffers[by_path["scan"].picture])[:, :, 0]
    assert (drawn[TOMOGRAM[:, :, 7] <= -500] == 0).all()


def test_bands_behind_rows_and_columns_are_slices_and_colors_before_time_make_a_video():
    bands = np.zeros((64, 48, 12), np.uint8)
    bands[:, :, 5] = 200
    by_path, description = described(bands, view=View(full=True, choices=(("", 5),)))
    assert (by_path[""].size, by_path[""].data["slices"]) == ((48, 64), 12)
    assert decode(description.buffers[0]).min() == 200
    video = np.zeros((3, 16, 64, 48), np.uint8)
    video[0, 8] = 255
    by_path, description = described(video)
    assert by_path[""].note == "picture 8 of 16, channels first"
    assert decode(description.buffers[0]).reshape(-1, 3).max(axis=0).tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("low", "high", "note"), [(0, 1.02, "0 to 1"), (-0.05, 1.05, "0 to 1"), (0, 3, "0 to 3"), (0, 70, "0 to 70")]
)
def test_floats_slightly_outside_of_the_usual_range_are_not_black(low, high, note):
    array = np.linspace(low, high, 400).reshape(20, 20)
    [field], description = described(array)[0].values(), described(array)[1]
    assert field.note.replace(".00", "").replace(".0", "") == f"drawn from {note}"
    assert decode(description.buffers[0]).max() == 255


@pytest.mark.parametrize("array", [np.arange(64.0).reshape(8, 8), RANDOM.random((8, 8, 3)) * 200])
def test_floats_of_a_converted_image_are_drawn_as_its_bytes(array):
    assert described(array)[0][""].note == "drawn from 0 to 255"


def test_complex_numbers_are_drawn_as_the_logarithm_of_their_magnitude():
    """One large number does not make all others black."""
    array = np.full((16, 16), 1 + 1j)
    array[0, 0], array[1, 1], array[2, 2] = 1e6, 0, np.nan
    by_path, description = described(array)
    pixels = decode(description.buffers[0])
    assert by_path[""].note == "logarithm of the magnitude; not finite: pink"
    assert pixels[0, 0].max() == 255 > pixels[5, 5].max() > pixels[1, 1].max() == 0
    assert described(np.zeros((16, 16), complex))[0][""].note == "logarithm of the magnitude"


def test_all_channels_of_a_signal_are_drawn():
    waves = np.stack([np.zeros(96), *(np.arange(96) * at for at in range(1, 7))], axis=1)
    for array in (waves, waves.T):
        field = described(array)[0][""]
        assert [len(points) for points in field.data["waves"]] == [96] * 7
        assert field.data["waves"][0][0] == (0.5, 0.5)
        assert field.data["waves"][3][-1] == (1.0, 1.0)


def test_graphs_of_mappings_and_objects_are_drawn_and_their_arrays_are_fields():
    arrays = {"edge_index": torch.tensor(EDGES), "x": torch.zeros(3, 5), "y": torch.tensor([0, 1, 1])}
    for graph in (arrays, Attributed(**arrays, num_nodes=3)):
        _, description = described((graph, 1))
        field = description.fields[1]
        assert (field.kind, field.summary, field.container, field.drawn) == ("graph", "3 nodes, 2 edges", True, True)
        assert (field.data["edges"], field.data["classes"]) == ([[0, 1], [1, 2]], [0, 1, 1])
        assert np.ptp(field.data["places"], axis=0).max() == pytest.approx(1, abs=0.01)
        assert description.fields[2].path == "0.edge_index"
        assert description.cover == 1
    ring = np.stack([np.arange(20), (np.arange(20) + 1) % 20])
    places = np.array(described({"edge_index": ring})[0][""].data["places"])
    along = np.linalg.norm(places - np.roll(places, -1, axis=0), axis=1).mean()
    across = np.linalg.norm(places[:10] - places[10:], axis=1).mean()
    assert across > 2 * along, "connected nodes are near each other"


def test_points_in_space_are_attached_with_colors_and_without_what_is_not_finite():
    points = RANDOM.normal(size=(500, 6)).astype(np.float32)
    points[:, 3:] = RANDOM.integers(0, 256, (500, 3))
    points[7, 0] = np.nan
    by_path, description = described({"cloud": points})
    data = by_path["cloud"].data
    places = np.frombuffer(description.buffers[data["places"]], "<f4").reshape(-1, 3)
    colors = np.frombuffer(description.buffers[data["colors"]], np.uint8).reshape(-1, 3)
    assert (len(places), np.isfinite(places).all()) == (499, True)
    assert np.array_equal(colors[0], points[0, 3:])
    assert decode(description.buffers[by_path["cloud"].picture])[:, :, 3].max() == 255


def test_points_have_the_colors_of_their_labels():
    points = RANDOM.normal(size=(500, 3)).astype(np.float32)
    points[7, 0] = np.nan
    labels = np.arange(500) % 3 - 1
    by_path, description = described({"points": torch.from_numpy(points), "y": labels})
    assert by_path["points"].note == "499 points of 500 drawn; the color is the label in y"
    assert (by_path["y"].kind, by_path["y"].drawn) == ("array", False)
    colors = np.frombuffer(description.buffers[by_path["points"].data["colors"]], np.uint8).reshape(-1, 3)
    assert len(colors) == 499
    shown = np.delete(labels, 7)
    assert len({(int(label), *map(int, color)) for label, color in zip(shown, colors, strict=True)}) == 3
    assert len(np.unique(colors, axis=0)) == 3
    for other in (labels[:499], np.arange(500), labels.astype(float)):
        by_path, _ = described({"points": points, "y": other})
        assert by_path["points"].note == "499 points of 500 drawn; the color is the height"
        assert by_path["y"].kind == "signal"


def test_optical_flow_has_hues_by_direction_and_white_where_nothing_moves():
    flow = np.zeros((2, 16, 16), np.float32)
    flow[0, :, :8] = 5.0
    flow[1, 8:, 8:] = np.nan
    by_path, description = described({"flow": flow})
    drawn = decode(description.buffers[by_path["flow"].picture])
    assert (tuple(drawn[0, 0]), tuple(drawn[0, 15])) == ((255, 0, 0), (255, 255, 255))
    assert tuple(drawn[15, 15]) == (214, 39, 140)


def test_an_image_without_objects_has_no_boxes():
    sample = {"image": RGB, "boxes": np.zeros((0, 4), np.float32), "labels": np.zeros(0, np.int64)}
    by_path, _ = described(sample)
    assert (by_path["boxes"].kind, by_path["boxes"].summary, by_path["boxes"].picture) == ("boxes", "no boxes", -1)
    assert by_path["labels"].summary == "no elements"


def test_the_elements_of_a_small_matrix_are_listed():
    by_path, _ = described({"pose": np.eye(4), "edge_index": EDGES.repeat(5, axis=1), "mean": np.arange(3.0)})
    assert "[0., 1., 0., 0.]" in by_path["pose"].text
    assert by_path["edge_index"].kind == "array"
    assert by_path["edge_index"].text
    assert (by_path["mean"].summary, by_path["mean"].figures) == ("[0, 1, 2]", None)


def test_a_few_whole_numbers_have_a_bin_each():
    by_path, _ = described(np.array([3, 3, 5, 7, 7, 7, 9]))
    assert by_path[""].figures.histogram == (2, 0, 1, 0, 3, 0, 1)


@pytest.mark.parametrize("name", ["id", "user_id", "role"])
def test_the_name_of_a_sample_or_of_a_speaker_does_not_represent_it(name):
    _, description = described({name: "abc", "text": "hello"})
    assert description.fields[description.cover].path == "text"
