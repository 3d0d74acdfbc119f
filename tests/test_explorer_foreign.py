"""Datasets of other libraries, arrays and streams open in the explorer without a line of configuration."""

from __future__ import annotations

import importlib
import itertools
import json
import queue
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from nbloader import DataLoader, demo
from nbloader.explorer import cell_output, widget
from nbloader.explorer.reader import Request
from nbloader.explorer.view import FULL_TEXT, View
from nbloader.frontend.live import LiveWidget

TIMEOUT = 90
IMPORTED: dict[str, object] = {}
"""Modules of Hugging Face's package."""
FULL = View(full=True)


def notes(explorer):
    """The lines of text that views show above the samples."""
    return explorer._conversation._state()["notes"]


@pytest.fixture
def opened(monkeypatch):
    """A function that opens an explorer, and reads samples in full."""
    monkeypatch.setattr(LiveWidget, "send", lambda *_args, **_kwargs: None)
    monkeypatch.setattr(cell_output, "_write_static_in_time", lambda: None)
    explorers = []

    def open_one(x, *indices, **options):
        explorer = widget.Explorer(x, **{"num_workers": 1, "workers": None, "seed": 0, "buffer": 20, **options})
        explorers.append(explorer)
        came: queue.Queue = queue.Queue()
        explorer._fetcher._on_read = lambda samples: [came.put(read) for read in samples]
        read = {}
        for index in indices:
            explorer._fetcher.ask(Request(index, view=FULL))
        while len(read) < len(indices):
            request, sample = came.get(timeout=TIMEOUT)
            read[request.index] = json.loads(sample.content) | {"end": sample.end}
        fields = [{field["path"]: field for field in read[index].get("fields", ())} for index in indices]
        return explorer, fields, [read[index] for index in indices]

    yield open_one
    for explorer in explorers:
        explorer.close()


def test_torchvision(opened, tmp_path):
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
    transforms = pytest.importorskip("torchvision.transforms")
    explorer, [fields], _ = opened(datasets.FakeData(50, (3, 32, 40)), 7)
    assert (len(explorer), fields["0"]["kind"], fields["0"]["size"], fields["1"]["kind"]) == (
        50,
        "image",
        [40, 32],
        "number",
    )

    normalize = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    steps = transforms.Compose([transforms.Resize((40, 40)), transforms.ToTensor(), normalize])
    photographs = datasets.ImageFolder(demo.photographs(tmp_path, count=16), steps)
    explorer, [fields], _ = opened(photographs, 15)
    assert (fields["0"]["kind"], fields["1"]["value"]) == ("image", photographs.classes[-1])
    assert fields["0"]["note"] == "drawn from 0 to 1; normalization undone"
    assert "0.485" in notes(explorer)[0] or "0.48" in notes(explorer)[0]


@pytest.fixture
def hugging_face(monkeypatch):
    """Their package, whose name a module of these tests has."""
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "datasets"}
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path) != Path(__file__).parent])
    importlib.invalidate_caches()
    sys.modules.update(IMPORTED)
    yield pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    for name in [name for name in sys.modules if name.partition(".")[0] == "datasets"]:
        IMPORTED[name] = sys.modules.pop(name)  # it cannot be imported twice


def test_hugging_face(opened, hugging_face):
    hf = hugging_face
    features = {
        "image": hf.Image(), "label": hf.ClassLabel(names=["cat", "dog"]), "text": hf.Value("string"),
        "tags": hf.Sequence(hf.ClassLabel(names=["x", "y"])), "tokens": hf.Sequence(hf.Value("int64")),
    }  # fmt: skip
    rows = [
        {
            "image": np.full((20, 30, 3), i, np.uint8),
            "label": i % 2,
            "tags": [1, 0],
            "tokens": [1, 2, 3],
            "text": f"<b>{i}",
        }
        for i in range(6)
    ]
    explorer, [fields], _ = opened(hf.Dataset.from_list(rows, features=hf.Features(features)), 3, workers="thread")
    assert len(explorer) == 6
    assert (fields["image"]["kind"], fields["image"]["size"]) == ("image", [30, 20])
    assert (fields["label"]["value"], fields["tags"]["value"]) == ("dog", "y, x")
    assert (fields["text"]["text"], fields["tokens"]["summary"]) == ("<b>3", "[1, 2, 3]")


def test_hugging_face_splits_nested_labels_and_undecoded_pictures(opened, hugging_face):
    hf = hugging_face
    features = hf.Features(
        {
            "objects": hf.List(
                {"bbox": hf.List(hf.Value("float32"), length=4), "category": hf.ClassLabel(names=["a", "b"])}
            ),
            "image": hf.Image(decode=False),
        }
    )
    row = {"objects": [{"bbox": [2.0, 3, 10, 12], "category": 1}], "image": np.full((20, 30, 3), 9, np.uint8)}
    train, test = (hf.Dataset.from_list([row] * count, features=features) for count in (4, 3))
    splits = hf.DatasetDict({"test": test, "train": train})
    explorer, [fields], _ = opened(splits, 3, workers="thread")
    assert (len(explorer), fields["objects"]["summary"]) == (4, "1 object: 1 b")
    assert (fields["image"]["kind"], fields["image"]["size"]) == ("image", [30, 20])
    assert notes(explorer)[0].startswith("Split train. Others: test (3); explore(..., split='test')")
    assert len(opened(splits, split="test", workers="thread")[0]) == 3
    with pytest.raises(ValueError, match="no split 'dev': there are test, train"):
        opened(splits, split="dev")


def test_the_parts_of_a_random_split_are_splits(opened):
    parts = torch.utils.data.random_split(torch.utils.data.TensorDataset(torch.arange(10)), [7, 3])
    assert [len(opened(parts, split=split)[0]) for split in (None, 1)] == [7, 3]
    with pytest.raises(ValueError, match="split=1 is for a DatasetDict or a list of datasets, not for ndarray"):
        opened(np.zeros(9), split=1)


def test_pandas(opened):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    explorer, [fields], _ = opened(pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), 1)
    assert (len(explorer), fields["a"]["value"], fields["b"]["text"]) == (2, 2, "y")
    explorer, [fields], _ = opened(pd.Series([5.0, 6.0], index=[7, 1], name="loss"), 1)
    assert (len(explorer), fields[""]["value"]) == (2, 6.0), "by position, not by label"


def test_polars(opened):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    explorer, [fields], _ = opened(frame, 1)
    assert (len(explorer), fields["a"]["value"], fields["b"]["text"]) == (2, 2, "y")
    with pytest.raises(TypeError, match=r"frame\.collect\(\)"):
        opened(frame.lazy())


def test_arrow(opened, tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"a": list(range(50)), "b": list("vwxyz") * 10})
    file = tmp_path / "t.parquet"
    parquet.write_table(table, file, row_group_size=7)
    with parquet.ParquetFile(file) as already_open:
        for x in (table, table.to_batches()[0], file, str(file), already_open):
            explorer, [first, last], _ = opened(x, 0, 49)
            assert (len(explorer), first["a"]["value"], last["a"]["value"], last["b"]["text"]) == (50, 0, 49, "z")
    datasets = pytest.importorskip("pyarrow.dataset")
    explorer, [fields], _ = opened(datasets.dataset(file), 20)
    assert (len(explorer), fields["a"]["value"]) == (50, 20)
    with pytest.raises(TypeError, match=r"opens files that end in \.parquet, \.lance or \.zarr"):
        opened(tmp_path / "t.csv")
    for column in (table["b"], table["b"].chunk(0)):
        explorer, [fields], _ = opened(column, 49)
        assert (len(explorer), fields[""]["text"]) == (50, "z")


@pytest.mark.leaves_behind("Lance keeps threads of its own until the process ends")
def test_lance(opened, tmp_path):
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    pa = pytest.importorskip("pyarrow")
    lance.write_dataset(pa.table({"a": list(range(50))}), tmp_path / "t.lance")
    for x in (tmp_path / "t.lance", lance.dataset(tmp_path / "t.lance")):
        explorer, [fields], _ = opened(x, 20)
        assert (len(explorer), fields["a"]["value"]) == (50, 20)


@pytest.mark.leaves_behind("zarr keeps an event loop of its own until the process ends")
def test_zarr(opened, tmp_path):
    zarr = pytest.importorskip("zarr", minversion="3", reason="zarr 3 is not installed")
    group = zarr.create_group(store={})
    images = group.create_array("images", shape=(4, 16, 24), dtype="u1")
    group.create_array("y", shape=(4,), dtype="i4")[:] = [5, 6, 7, 8]
    explorer, [fields], _ = opened(images, 3)
    assert (len(explorer), fields[""]["size"]) == (4, [24, 16])
    explorer, [fields], _ = opened(group, 2)
    assert (len(explorer), fields["images"]["kind"], fields["y"]["value"]) == (4, "image", 7)
    zarr.save(str(tmp_path / "a.zarr"), np.arange(3))
    assert opened(tmp_path / "a.zarr", 2)[1][0][""]["value"] == 2
    splits = zarr.create_group(store={})
    splits.create_group("train").create_array("x", shape=(4,), dtype="f4")
    with pytest.raises(TypeError, match=r"no arrays, only groups\. Pass one of them, such as group\['train'\]"):
        opened(splits)


def test_nibabel(opened):
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
    scan = nibabel.Nifti1Image(np.random.default_rng(0).normal(size=(20, 30, 9)).astype(np.float32), np.eye(4))
    explorer, [fields], _ = opened(scan, 0)
    assert (len(explorer), fields[""]["kind"], fields[""]["data"]["axes"]) == (1, "volume", 3)
    assert opened([{"scan": scan}], 0)[1][0]["scan"]["kind"] == "volume"
    series = nibabel.Nifti1Image(np.zeros((20, 30, 9, 5), np.int16), np.eye(4))
    _, [fields], _ = opened(series, 0)
    assert (fields[""]["size"], fields[""]["data"]["axes"]) == ([30, 20], 3)
    assert fields[""]["note"].endswith("slice 4 of 9; volume 0 of 5")


def test_scikit_learn(opened):
    sets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    digits, iris = sets.load_digits(), sets.load_iris()
    explorer, [fields], _ = opened(digits, 5)
    assert (len(explorer), fields["images"]["kind"], fields["target"]["value"]) == (1797, "image", 5)
    explorer, [fields], _ = opened(iris, 149)
    assert (len(explorer), fields["target"]["value"]) == (150, "virginica")


def test_scikit_image(opened):
    data = pytest.importorskip("skimage.data", reason="scikit-image is not installed")
    _, [fields], _ = opened([data.astronaut(), data.camera(), data.brick()], 0)
    assert (fields[""]["kind"], fields[""]["size"]) == ("image", [512, 512])
    explorer, [fields], _ = opened(np.stack([data.camera()] * 3), 1)
    assert (len(explorer), fields[""]["kind"]) == (3, "image")


def test_tensors_sounds_and_streams(opened):
    tensors = torch.utils.data.TensorDataset(torch.rand(9, 3, 16, 16), torch.arange(9))
    explorer, [fields], _ = opened(tensors, 8)
    assert (len(explorer), fields["0"]["kind"], fields["1"]["value"]) == (9, "image", 8)

    wave = {"array": np.sin(np.arange(8000) / 10).astype(np.float32), "sampling_rate": 16_000}
    explorer, [fields], _ = opened({"audio": [wave] * 4, "label": [0, 1, 0, 1]}, 2)
    assert (len(explorer), fields["audio"]["kind"], fields["audio"]["summary"]) == (4, "audio", "0.50 s at 16,000 Hz")

    explorer, [fields, _], [_, end] = opened(({"text": f"line {i}"} for i in range(12)), 11, 15)
    assert (fields["text"]["text"], end["end"]) == ("line 11", 12)

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return itertools.count()

    explorer, [fields], _ = opened(torch.utils.data.DataLoader(Endless(), batch_size=4), 3)
    assert (len(explorer), fields[""]["value"]) == (20, 3)
    with DataLoader(tensors, batch_size=4, num_workers=0) as loader:
        assert opened(loader, 0)[1][0]["0"]["kind"] == "image"


class Rude:
    """Its repr raises."""

    def __repr__(self):
        raise RuntimeError("no repr")


class Hostile:
    """Everything that might break a page or a worker; sample 0 hangs."""

    def __init__(self, release):
        self.release = release

    def __len__(self):
        return 7

    def __getitem__(self, index):
        if index == 0:
            self.release.wait()
        return [
            None, "<script>alert(1)</script>", "a\0b", "x" * 1_000_000, np.zeros((10_000, 10_000), np.uint8),
            np.zeros((2, 3, 4, 16, 16)), Rude(),
        ][index]  # fmt: skip


def test_hostile_samples_are_shown_and_one_that_hangs_is_given_up(opened):
    release = threading.Event()
    explorer, _, _ = opened(Hostile(release), workers="thread", num_workers=2)
    came: queue.Queue = queue.Queue()
    explorer._fetcher._on_read = lambda samples: [came.put((request.index, sample)) for request, sample in samples]
    explorer._fetcher.ask(Request(0, view=FULL))
    for index in range(1, 7):
        explorer._fetcher.ask(Request(index, view=FULL))
    read = dict(came.get(timeout=TIMEOUT) for _ in range(6))
    assert sorted(read) == list(range(1, 7)), "one worker hangs, another one reads the rest"
    by_index = {index: json.loads(sample.content)["fields"][0] for index, sample in read.items()}
    assert by_index[1]["text"] == "<script>alert(1)</script>"
    assert by_index[2]["text"] == "a\N{REPLACEMENT CHARACTER}b"
    assert len(by_index[3]["text"]) == FULL_TEXT
    assert by_index[4]["size"] == [10_000, 10_000]
    assert by_index[5]["kind"] == "volume"
    assert by_index[6]["summary"].startswith("<Rude")
    assert sum(sample.nbytes for sample in read.values()) < 500_000
    began = time.monotonic()
    explorer._fetcher.give_up(0)
    index, sample = came.get(timeout=TIMEOUT)
    assert index == 0
    assert "nbloader gave up after" in json.loads(sample.content)["error"]
    assert time.monotonic() - began < TIMEOUT
    release.set()
