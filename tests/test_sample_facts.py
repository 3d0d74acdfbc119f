"""What is known of samples without reading them, and that the verdict names what slow ones have in common."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from datasets import wait_for
from torch.utils.data import Subset, TensorDataset, random_split

import nbloader
from nbloader import DataLoader
from nbloader.loader.sample_facts import SampleIndex


class Files:
    """Like torchvision's ImageFolder: a list of files and labels."""

    def __init__(self, samples: list[tuple[str, int]], slow: str = "") -> None:
        self.samples = samples
        self.targets = [label for _path, label in samples]
        self.classes = ["a", "b", "c"]
        self.slow = slow

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        path, _label = self.samples[index]
        time.sleep(0.2 if self.slow and path.endswith(self.slow) else 0.0005)
        return index


def facts_of(dataset: Any, index: int) -> Any:
    return SampleIndex(dataset).facts([index], patient=True)[index]


@pytest.mark.unit
def test_files_have_suffix_folder_and_size(tmp_path: Path):
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "1.TIF").write_bytes(bytes(1234))
    dataset: Any = Files([(str(tmp_path / "cats" / "1.TIF"), 7), ("no such file.png", 8)])
    index = SampleIndex(dataset)
    known: dict[Any, Any] = {}

    def sized() -> bool:
        known.update(index.facts([0, 1, 99, "x", -3], patient=True))
        return "file size" in known[0].sizes

    wait_for(sized, "the size of the file")  # a thread reads it
    assert known[0].values == {"suffix": ".TIF", "folder": f"{tmp_path.name}/cats", "label": 7, "targets": 7}
    assert known[0].sizes == {"file size": 1234.0, "label": 7.0, "targets": 7.0}
    assert known[1].values["suffix"] == ".png"
    assert "file size" not in known[1].sizes
    assert not known[99].values
    assert "x" not in known
    relative: Any = Files([("cats/1.TIF", 7)])
    relative.root = str(tmp_path)
    index = SampleIndex(relative)
    wait_for(lambda: index.facts([0], patient=True)[0].sizes.get("file size") == 1234, "the file below `root`")


@pytest.mark.unit
def test_labels_and_lengths_come_from_plain_attributes_also_within_subsets():
    class Texts:
        def __init__(self) -> None:
            self.texts = ["short", "a longer text, " * 9, "c"]
            self.labels = np.array([1, 0, 1])
            self.weights = torch.tensor([0.5, 1.5, float("nan")])
            self.images = np.zeros((3, 8, 8))
            self.names = nbloader.share(["x", "y", "z"])
            self.other = [1, 2]

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("no sample is read")

        @property
        def paths(self) -> Any:
            raise AssertionError("no code of the dataset runs")

    dataset: Any = Texts()
    known = facts_of(dataset, 1)
    assert known.values == {"labels": 0, "names": "y"}
    lengths = {"len(texts)": 135.0, "len(names)": 1.0}
    assert known.sizes == {"labels": 0.0, "weights": 1.5, "size of images": 64.0, **lengths}
    assert "weights" not in facts_of(dataset, 2).sizes
    assert facts_of(Subset(Subset(dataset, [2, 1]), np.array([1])), 0) == known
    assert facts_of(random_split(dataset, [1, 2])[1], 0).values

    class Wrapper:
        def __init__(self) -> None:
            self.dataset = dataset

        def __len__(self) -> int:
            return 3

    assert facts_of(Wrapper(), 1) == known
    pair = facts_of(TensorDataset(torch.zeros(4, 3), torch.tensor([5, 6, 7, 8])), 2)
    assert pair.values == {"tensors[1]": 7}
    assert SampleIndex([1, 2, 3]).facts([0], patient=False) == {}, "it has no attributes"


@pytest.mark.unit
def test_columns_of_a_data_frame_are_known():
    pandas: ModuleType = pytest.importorskip("pandas")

    class Frame:
        def __init__(self) -> None:
            self.df = pandas.DataFrame({"image": ["a/x.jpg", "b/y.png"], "label": ["cat", "dog"]}, index=[7, 8])

        def __len__(self) -> int:
            return 2

    assert facts_of(Frame(), 1).values == {"suffix": ".png", "folder": "b", "label": "dog"}


def test_the_verdict_names_the_suffix_of_the_files_that_are_slow():
    draw = random.Random(1)
    names = [f"{i}{'.tif' if draw.random() < 0.04 else '.png'}" for i in range(480)]
    dataset = Files([(name, draw.randrange(10)) for name in names], ".tif")
    with DataLoader(dataset, batch_size=8, num_workers=4, workers="thread", shuffle=True) as loader:
        list(loader)
        s = loader.stats()
        assert s.slow_in_common == "suffix .tif"
        assert s.cause == "slow_samples"
        assert "The slow ones are those with suffix .tif." in s.verdict
        assert "Slow ones have in common: suffix .tif" in str(s)
        assert "suffix .tif" in s._repr_html_()
