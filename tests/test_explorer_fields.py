"""What the explorer makes of samples: kinds, figures, pictures, labels; odd arrays; texts; renderers."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import struct
import zlib
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from nbloader.explorer import pictures
from nbloader.explorer.api import Explore
from nbloader.explorer.declarations import class_names
from nbloader.explorer.describer import MAX_FIELDS, Renderer, describe
from nbloader.explorer.field import to_json
from nbloader.explorer.normalization import Normalization, declared
from nbloader.explorer.values import as_array, envelope, figures_of
from nbloader.explorer.view import FULL_TEXT, View

pytestmark = pytest.mark.unit

FULL = View(full=True)


def decode(png):
    """The pixels of a PNG that `pictures.png` wrote, as (height, width, channels)."""
    at, chunks = 8, {}
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        name, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size]) == (zlib.crc32(name + data),)
        chunks[name], at = data, at + 12 + size
    width, height, _depth, color = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    channels = {0: 1, 4: 2, 2: 3, 6: 4}[color]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    out = lines[:, 1:].copy()
    for row in range(1, height):
        if lines[row, 0] == 2:
            out[row] += out[row - 1]
    return out.reshape(height, width, channels)


def fields(sample, names=None, renderers=(), view=FULL):
    """Fields of a sample by path, and the whole description."""
    description = describe(sample, names or {}, renderers, view)
    return {field.path: field for field in description.fields}, description


ODD = st.one_of(
    hnp.arrays(
        st.one_of(
            hnp.floating_dtypes(), hnp.integer_dtypes(), hnp.boolean_dtypes(), hnp.complex_number_dtypes(),
            hnp.unsigned_integer_dtypes(), hnp.datetime64_dtypes(), hnp.timedelta64_dtypes(), hnp.byte_string_dtypes(),
            hnp.unicode_string_dtypes(), st.just(np.dtype(object)), st.just(np.dtype([("a", "<f4"), ("b", "<i2")])),
        ),
        hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4),
    ),
    st.sampled_from(["", "a\0b", "<b>", "\ud800"]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.binary(),
)  # fmt: skip
SAMPLES = ODD | st.lists(ODD, max_size=3) | st.dictionaries(st.text(max_size=3), ODD, max_size=3)


@given(SAMPLES, st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_sample_is_described_and_can_be_sent(sample, full):
    description = describe(sample, {"*": ["a", "b"]}, (), View(full=full))
    text = json.dumps([to_json(field) for field in description.fields], allow_nan=False)
    text.encode()
    assert "\\u0000" not in text
    assert [field.summary for field in description.fields if field.kind == "error"] == []
    for field in description.fields:
        assert field.picture < len(description.buffers)


@given(hnp.arrays(st.sampled_from([np.float64, np.float32, np.float16]), hnp.array_shapes(min_side=0, max_side=20)))
@settings(max_examples=40, deadline=None)
def test_figures_are_those_of_the_finite_elements(array):
    figures = figures_of(array)
    finite = array[np.isfinite(array)].astype(np.float64)
    if not array.size:
        assert (figures.count, figures.nan, figures.inf, figures.minimum) == (0, 0, 0, None)
        return
    assert figures.nan == pytest.approx(np.isnan(array).mean())
    assert figures.inf == pytest.approx(np.isinf(array).mean())
    if finite.size:
        assert (figures.minimum, figures.maximum) == (finite.min(), finite.max())
        assert figures.minimum <= figures.mean <= figures.maximum
        assert sum(figures.histogram) in (0, finite.size)
        assert bool(figures.histogram) == (finite.min() < finite.max())
    else:
        assert (figures.minimum, figures.mean, figures.histogram) == (None, None, ())


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((40, 50, 3), np.uint8), ((3, 40, 50), np.uint8), ((40, 50), np.uint8), ((40, 50, 1), np.uint8),
     ((4, 40, 50), np.uint8)],
)  # fmt: skip
def test_bytes_of_a_picture_arrive_unchanged_in_any_layout(shape, dtype):
    array = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    (field,), description = (fields(array)[0].values(), fields(array)[1])
    assert (field.kind, field.size) == ("image", (50, 40))
    expected = pictures.rows_columns(array, pictures.layout_of(shape))
    assert np.array_equal(decode(description.buffers[0]), expected)


@pytest.mark.parametrize(
    ("array", "darkest", "brightest"),
    [
        (np.linspace(0, 1, 400).reshape(20, 20), 0, 255),
        (np.linspace(-1, 1, 400).reshape(20, 20), 0, 255),
        (np.linspace(0, 0.5, 400).reshape(20, 20), 0, 128),
        (np.linspace(-3, 900, 400).reshape(20, 20), 0, 255),
        (np.linspace(0, 65535, 400).reshape(20, 20).astype(np.uint16), 0, 255),
        (np.linspace(0, 255, 400).reshape(20, 20).astype(np.int64), 0, 255),
        ((np.linspace(-1, 1, 400) * 1.7e308).reshape(20, 20), 0, 255),
    ],
)
def test_floats_of_any_range_and_16_bits_become_brightness(array, darkest, brightest):
    image = decode(describe(array, {}, (), FULL).buffers[0])
    assert abs(int(image.min()) - darkest) <= 1
    assert abs(int(image.max()) - brightest) <= 1


def test_pixels_that_are_not_finite_are_marked():
    array = np.zeros((10, 12))
    array[2, 3] = np.nan
    image = decode(describe(array, {}, (), FULL).buffers[0])
    assert tuple(image[2, 3]) == pictures.INVALID
    assert tuple(image[0, 0]) != pictures.INVALID


def test_a_large_picture_is_sent_small_and_keeps_its_proportions():
    array = np.zeros((4000, 10_000, 3), np.uint8)
    array[:, 5000:] = 200
    card = describe(array, {}, (), View())
    image = decode(card.buffers[0])
    assert max(image.shape) <= 192
    assert 0.3 < image.shape[0] / image.shape[1] < 0.5
    assert (image[:, 2].max(), image[:, -3].min()) == (0, 200)
    assert len(card.buffers[0]) < 20_000


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "F"])
def test_images_of_pillow_in_any_mode(mode):
    (field,), description = (fields(Image.new(mode, (30, 20)))[0].values(), fields(Image.new(mode, (30, 20)))[1])
    assert (field.kind, field.size) == ("image", (30, 20))
    assert decode(description.buffers[0]).shape[:2] == (20, 30)


def test_tensors_of_types_that_numpy_lacks():
    by_path, _ = fields({"b": torch.arange(100, dtype=torch.bfloat16), "m": torch.empty(3, device="meta")})
    found = by_path["b"]
    assert (found.kind, found.dtype, found.nbytes, found.figures.maximum) == ("signal", "bfloat16", 200, 99)
    assert by_path["m"].kind == "object"


def test_labels_have_the_names_of_the_dataset():
    @dataclasses.dataclass
    class Vision:
        classes: tuple[str, ...] = ("cat", "dog")

    @dataclasses.dataclass
    class Feature:
        names: list[str]

    @dataclasses.dataclass
    class HuggingFace:
        features: dict

    names = class_names(torch.utils.data.Subset(Vision(), [0]))
    by_path, _ = fields((np.zeros((9, 9)), 1), names)
    assert (by_path["1"].kind, by_path["1"].summary) == ("label", "dog (1)")
    names = class_names(HuggingFace({"animal": Feature(["cat", "dog"]), "other": object()}))
    by_path, _ = fields({"animal": torch.tensor(0), "count": 1}, names)
    assert (by_path["animal"].summary, by_path["count"].kind) == ("cat (0)", "number")
    assert fields((0, 7), {"*": ["cat", "dog"]})[0]["1"].kind == "number"  # out of range: no label


def test_classes_of_several_objects_have_the_names_of_the_dataset():
    objects = {"boxes": [[1, 2, 30, 20], [4, 4, 9, 9]], "labels": torch.tensor([1, 0])}
    by_path, _ = fields((np.zeros((40, 60, 3), np.uint8), objects), {"*": ["cat", "dog"]})
    assert (by_path["1.labels"].kind, by_path["1.labels"].summary) == ("label", "dog, cat")
    by_path, _ = fields((np.zeros((40, 60, 3), np.uint8), np.eye(3, dtype=int)[1]), {"*": ["cat", "dog", "bird"]})
    assert by_path["1"].kind == "array"  # a flag for each class
    by_path, _ = fields({"labels": np.array([1, 2])}, {"*": ["cat", "dog"]})  # a number without a name
    assert by_path["labels"].kind == "array"


def test_masks_and_boxes_are_drawn_over_the_picture():
    image = np.full((40, 60, 3), 100, np.uint8)
    mask = np.zeros((40, 60), np.int64)
    mask[10:20, 10:20] = 2
    by_path, description = fields({"image": image, "mask": mask, "boxes": [[10, 5, 30, 25]]})
    assert [by_path[name].kind for name in ("image", "mask", "boxes")] == ["image", "mask", "boxes"]
    over = decode(description.buffers[by_path["mask"].picture])
    assert tuple(over[0, 0]) == (100, 100, 100)
    assert tuple(over[15, 15]) != (100, 100, 100)
    boxed = decode(description.buffers[by_path["boxes"].picture])
    outlined = np.argwhere((boxed != 100).any(axis=2))
    assert (outlined.min(axis=0).tolist(), outlined.max(axis=0).tolist()) == ([5, 10], [25, 30])
    assert np.array_equal(decode(description.buffers[by_path["image"].picture]), image)
    annotated = decode(description.buffers[by_path["image"].data["annotated"]])
    assert np.array_equal((annotated != 100).any(axis=2), (boxed != 100).any(axis=2) | (over != 100).any(axis=2))


def test_a_card_has_the_mask_and_the_boxes_over_one_picture():
    mask = np.zeros((40, 60), np.int64)
    mask[10:20, 40:50] = 2
    sample = {"image": np.full((40, 60, 3), 100, np.uint8), "mask": mask, "boxes": [[10, 5, 30, 25]]}
    description = describe(sample, {})
    [buffer] = description.buffers
    drawn = decode(buffer)
    assert [tuple(drawn[y, x]) == (100, 100, 100) for y, x in ((0, 0), (15, 45), (5, 20))] == [True, False, False]


def test_a_slice_of_a_volume_can_be_chosen():
    volume = np.zeros((6, 20, 30), np.uint8)
    volume[4] = 255
    by_path, description = fields({"scan": volume}, view=View(full=True, choices=(("scan", 4),)))
    data = by_path["scan"].data
    assert (by_path["scan"].kind, data["slices"], data["slice"]) == ("volume", 6, 4)
    assert decode(description.buffers[0]).min() == 255
    strip = decode(description.buffers[data["frames"]["strip"]])
    assert (strip.shape, data["frames"]["count"]) == ((6 * 20, 30, 1), 6)
    assert [int(strip[20 * at, 0, 0]) for at in range(6)] == [0, 0, 0, 0, 255, 0]
    assert fields(np.zeros((2, 3, 4, 16, 16)))[0][""].kind == "volume"
    batch = fields(np.zeros((5, 16, 24, 3), np.uint8))[0][""]  # pictures with the channels last
    assert (batch.kind, batch.data["slices"], batch.size) == ("volume", 5, (24, 16))


def test_audio_becomes_a_file_that_can_be_played():
    wave = np.sin(np.arange(16_000) / 20)
    by_path, description = fields({"sound": {"array": wave, "sampling_rate": 8000, "path": "a.wav"}})
    field = by_path["sound"]
    assert (field.kind, field.summary) == ("audio", "2.00 s at 8,000 Hz")
    wav = description.buffers[field.data["sound"]]
    assert (wav[:4], struct.unpack("<I", wav[24:28])) == (b"RIFF", (8000,))
    assert len(wav) == 44 + 2 * 16_000


def test_texts_are_bounded_and_keep_no_control_characters():
    by_path, _ = fields({"t": "<script>\0\x1b[31m" + "x" * 1_000_000})
    assert by_path["t"].text.startswith("<script>\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[31m")
    assert len(by_path["t"].text) <= FULL_TEXT
    assert "of 1,000,014 characters" in by_path["t"].note
    assert len(describe({"t": "x" * 10**6}, {}, (), View()).fields[1].text) < 1000


class Broken:
    """An object that raises whenever it is looked at."""

    def __repr__(self):
        raise RuntimeError("no repr")


class BrokenDict(dict):
    """A dict whose values cannot be read."""

    def __getitem__(self, key):
        raise KeyError("gone")


def test_an_object_that_raises_when_it_is_looked_at_is_one_field():
    by_path, _ = fields({"a": Broken(), "b": BrokenDict(x=1), "c": 1})
    assert by_path["a"].summary == "<Broken instance>"
    assert (by_path["b"].kind, by_path["c"].summary) == ("error", "1")


def test_a_card_shows_a_number_without_an_exponent_unless_it_is_huge_or_tiny():
    sample = {"price": 193500.0, "area": 12345.67, "huge": 1e12, "tiny": 1e-6, "nan": float("nan")}
    by_path, _ = fields(sample, view=View())
    assert [field.summary for path, field in by_path.items() if path] == ["193500", "12346", "1e+12", "1e-06", "nan"]


def test_one_number_in_an_array_has_no_statistics():
    by_path, _ = fields({"a": np.int64(3), "b": torch.tensor(2.5)})
    assert [(by_path[path].value, by_path[path].figures, by_path[path].facts) for path in "ab"] == [
        (3, None, {}),
        (2.5, None, {}),
    ]


def test_dates_and_decimal_numbers_are_shown_as_people_write_them():
    by_path, _ = fields(
        {
            "date": dt.datetime(2024, 10, 2, 3, 4, tzinfo=dt.timezone.utc),
            "array": np.array("2024-10-02", "M8[D]"), "price": Decimal("1.50"),
            "long": dt.timedelta(days=1),
        }
    )  # fmt: skip
    shown = {path: by_path[path].summary for path in ("date", "array", "price", "long")}
    assert shown == {
        "date": "2024-10-02 03:04:00+00:00",
        "array": "2024-10-02",
        "price": "1.50",
        "long": "1 day, 0:00:00",
    }
    assert by_path["price"].value == 1.5
    assert by_path["long"].value == 86_400.0, "ten days are more than nine"


def test_containers_are_bounded_also_one_that_contains_itself():
    own = [1]
    own.append(own)
    assert len(fields(own)[1].fields) < 10
    wide = {f"k{i}": {f"m{j}": j for j in range(30)} for i in range(30)}
    description = fields(wide)[1]
    assert len(description.fields) == MAX_FIELDS
    assert description.left_out > 0


def test_renderers_of_the_user_draw_instead():
    explore = Explore()

    @explore.renderer("depth")
    def depth(value):
        return np.full((9, 9, 3), value, np.uint8)

    @explore.renderer(Broken)
    def words(_value):
        return "a text"

    @explore.renderer(lambda path, value: path == "bad")
    def failing(_value):
        raise ValueError("cannot draw")

    by_path, _ = fields({"depth": 3, "b": Broken(), "bad": 1}, renderers=explore._renderers)
    assert (by_path["depth"].kind, by_path["b"].text) == ("image", "a text")
    assert (by_path["bad"].kind, by_path["bad"].summary) == ("error", "ValueError: cannot draw")
    assert Renderer("x", depth).matches("a.x", 1)
    explore.clear_renderers()
    by_path, _ = fields({"depth": 3}, renderers=explore._renderers)
    assert by_path["depth"].kind == "number"


def test_the_cover_is_a_picture_else_a_wave_else_a_text():
    def cover(sample):
        description = describe(sample, {}, (), View())
        return description.fields[description.cover].path

    assert cover({"n": 1, "t": "a", "w": np.arange(50), "i": np.zeros((9, 9))}) == "i"
    assert cover({"n": 1, "t": "a", "w": np.arange(50)}) == "w"
    assert cover({"n": 1, "t": "a"}) == "t"
    assert cover({"attention_mask": np.ones(50, int), "input_ids": np.arange(50)}) == "input_ids"
    assert cover({"position_ids": np.arange(50), "input_ids": np.arange(50)}) == "input_ids"
    assert cover({"t": "a", "observed": np.ones(50, bool)}) == "observed"
    assert cover(3) == ""


def test_an_envelope_has_the_extremes_of_each_section():
    values = np.zeros(1000)
    values[700] = 5
    points = envelope(values, 10)
    assert len(points) == 10
    assert points[7] == (0.0, 1.0)
    assert points[0] == (0.0, 0.0)
    assert as_array([[1, 2], [3]]) is None


class Normalize:
    """As torchvision's and albumentations' transforms."""

    mean, std = (0.5, 0.4, 0.3), torch.tensor([0.2, 0.2, 0.1])


class NormalizeModule(Normalize, torch.nn.Module):
    """The same as a module."""


class Compose:
    """Transforms in a list."""

    def __init__(self, *transforms):
        self.transforms = list(transforms)


class Transformed:
    """A dataset with transforms."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


@pytest.mark.parametrize(
    "dataset",
    [
        Transformed(transform=Compose(lambda x: x, Compose(Normalize()))),
        Transformed(train_augmentations=[Normalize()]),
        Transformed(preprocess=torch.nn.Sequential(torch.nn.Identity(), NormalizeModule())),
        torch.utils.data.Subset(Transformed(transform=Normalize()), [0]),
        Transformed(image_processor=Transformed(image_mean=[0.5, 0.4, 0.3], image_std=[0.2, 0.2, 0.1])),
    ],
)  # fmt: skip
def test_a_declared_normalization_is_undone_where_pictures_are_drawn(dataset):
    normalization = declared(dataset)
    assert np.allclose(normalization, [(0.5, 0.4, 0.3), (0.2, 0.2, 0.1)])
    original = np.random.default_rng(0).integers(0, 256, (12, 16, 3)).astype(np.uint8)
    mean, std = (np.array(part, np.float32) for part in normalization)
    delivered = torch.from_numpy(((original / np.float32(255) - mean) / std).astype(np.float32)).permute(2, 0, 1)
    description = describe(
        {"image": delivered, "batch": delivered[None], "other": np.eye(12)}, {}, (), FULL, normalization
    )
    image, batch, other = description.fields[1:]
    for field in (image, batch):
        assert np.array_equal(decode(description.buffers[field.picture]), original)
        assert "normalization undone" in field.note
    assert image.figures.minimum < 0, "figures are those of the sample"
    assert "undone" not in other.note


@pytest.mark.parametrize(
    "dataset", [[1], {}, Transformed(transform=len), Transformed(transform=Compose()), Transformed(normalize=True),
                Transformed(transform=Transformed(image_mean=[0.5], image_std=[0.0]))]
)  # fmt: skip
def test_a_dataset_without_a_normalization(dataset):
    assert declared(dataset) is None
    assert Normalization.of("ab", 1) is None
    assert Normalization.of([1, 2], [1]) is None


def test_lists_of_labels_have_names():
    by_path, _ = fields({"tags": np.array([1, 0]), "ids": [1, 0]}, {"tags": ["cat", "dog"]})
    assert (by_path["tags"].kind, by_path["tags"].value) == ("label", "dog, cat")
    assert by_path["ids"].kind != "label"
