"""A program that keeps the small parts of its batches, such as labels, does not keep the memory of the large ones."""

from __future__ import annotations

import gc
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Numbers
from same import assert_same
from torch.utils.data import DataLoader as TorchLoader

from nbloader import DataLoader
from nbloader.batch.serialize import SMALL

MB = 1e6


def resident():
    """Memory of this process, shared and private, in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(status[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem", "RssFile"))


class Images(Numbers):
    """Images of 256 kB with labels of several types."""

    def __getitem__(self, i):
        return {
            "image": np.full((256, 256), i, np.float32),
            "label": i,
            "box": torch.full((4,), float(i)),
            "weight": torch.full((2,), float(i), dtype=torch.bfloat16),
            "name": f"image {i}",
        }


def bag(samples):
    """A batch that is pickled, and whose arrays are sent out of band."""
    batch = torch.utils.data.default_collate(samples)
    return types.SimpleNamespace(**batch)


def labels_of(batch):
    batch = vars(batch) if isinstance(batch, types.SimpleNamespace) else batch
    return [batch[name] for name in ("label", "box", "weight", "name")]


def nested(samples):
    """A batch whose arrays are found before it is pickled."""
    batch = torch.utils.data.default_collate(samples)
    return [(batch["image"], {"label": batch["label"].numpy()}), {"box": batch["box"]}, object]


HOW = {
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "workers": "thread"},
    "inline": {},
    "chunks": {"num_workers": 2, "chunk_size": 2},
    "chunks of threads": {"num_workers": 2, "chunk_size": 2, "workers": "thread"},
    "custom batches": {"num_workers": 2, "collate_fn": bag},
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_kept_labels_do_not_keep_the_images(how):
    kept = []
    with DataLoader(Images(400), 4, **how) as loader:
        for number, batch in enumerate(loader):
            kept.append(labels_of(batch))
            del batch
            if number == 30:
                before = resident()
        growth = resident() - before
    assert growth < 25 * MB, "the other batches have 69 * 1 MB of images"
    assert torch.cat([label for label, *_rest in kept]).tolist() == list(range(400))
    assert [row[0] for _label, box, _weight, _name in kept for row in box.tolist()] == list(range(400))
    assert [name for *_rest, names in kept for name in names] == [f"image {i}" for i in range(400)]


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_batches_with_small_and_large_arrays_equal_those_of_torch(how):
    ours, theirs = DataLoader(Images(40), 4, **how), TorchLoader(Images(40), 4, collate_fn=how.get("collate_fn"))
    with ours:
        for mine, other in zip(ours, theirs, strict=True):
            if isinstance(mine, types.SimpleNamespace):
                mine, other = vars(mine), vars(other)  # noqa: PLW2901
            assert_same(mine, other)
            parts = [part for name, part in mine.items() if name != "name"]
            assert len({part.is_shared() for part in parts}) == 1
            for part in parts:
                part.add_(1)  # it can be written, and is no part of another batch


@pytest.mark.parametrize("size", [0, 1, SMALL - 1, SMALL, SMALL + 1])
@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_every_size_is_delivered_beside_a_large_array(size, output):
    class Sized(Numbers):
        def __getitem__(self, i):
            return np.full(100_000, i, np.uint8), np.full(size, i + 1, np.uint8)

    with DataLoader(Sized(20), 1, num_workers=1, output=output) as loader:
        batches = list(loader)
    for i, (large, part) in enumerate(batches):
        assert large.shape == (1, 100_000)
        assert part.shape == (1, size)
        assert (np.asarray(large) == i).all()
        assert (np.asarray(part) == i + 1).all()


def twice(samples):
    large, small = torch.full((50_000,), float(samples[0])), torch.full((3,), float(samples[0]))
    return {"a": small, "b": small, "large": large, "deep": [[[small.clone().numpy(), large.numpy()]]]}


def test_an_array_that_a_batch_holds_twice_remains_one():
    with DataLoader(Numbers(6), 1, num_workers=1, collate_fn=twice) as loader:
        for i, batch in enumerate(loader):
            assert batch["a"] is batch["b"]
            batch["a"] += 1
            assert batch["b"].tolist() == [i + 1] * 3
            small, large = batch["deep"][0][0]
            assert small.tolist() == [i] * 3
            assert (large == i).all()
            assert (batch["large"] == i).all()


def test_arrays_of_a_custom_batch_are_rebuilt_by_their_type():
    with DataLoader(Images(12), 4, num_workers=1, collate_fn=nested) as loader:
        for number, ((image, labels), boxes, kind) in enumerate(loader):
            numbers = list(range(4 * number, 4 * number + 4))
            assert isinstance(labels["label"], np.ndarray)
            assert labels["label"].tolist() == numbers
            assert boxes["box"][:, 0].tolist() == numbers
            assert image[:, 0, 0].tolist() == numbers
            assert image.is_shared()
            assert boxes["box"].is_shared()
            assert kind is object


def test_the_segment_of_an_image_is_returned_while_its_label_is_kept():
    with DataLoader(Images(40), 4, num_workers=1, persistent_workers=True) as loader:
        labels = [batch["label"] for batch in loader]
        gc.collect()
        (handle,) = loader._engine._group.pool.handles.values()
        assert not handle.segments._lent
    assert torch.cat(labels).tolist() == list(range(40))
