"""The workloads of the benchmark: datasets and collate functions. NumPy only, so that every system can import it.

Everything is deterministic: sample `i` has the same value in every system, and values differ between samples, so that
wrong, late or duplicate batches are detected.
"""

from __future__ import annotations

import io
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import real_samples
import startup

PIXELS = 3 * 224 * 224


class Large:
    """Images of 3x224x224 float32, no computation: sample i is a view that begins at the i-th float of one array."""

    def __init__(self, length):
        self.length = length
        self.base = np.arange(PIXELS + length, dtype=np.float32)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self.base[i : i + PIXELS].reshape(3, 224, 224)


class Tiny:
    """Eight floats and an int."""

    def __init__(self, length):
        self.x = np.arange(8 * length, dtype=np.float32).reshape(length, 8)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], i


class Fields:
    """A dict of 40 arrays of 64 floats."""

    names = tuple(f"field_{k:02d}" for k in range(40))

    def __init__(self, length):
        self.length = length
        self.x = np.arange(40 * 64 + length, dtype=np.float32)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        x = self.x
        return {name: x[i + 64 * k : i + 64 * k + 64] for k, name in enumerate(self.names)}


class Captions:
    """A text, nested lists and an array of 100 to 1,000 points."""

    def __init__(self, length):
        self.length = length
        self.x = np.arange(3 * (1000 + length), dtype=np.float32)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        n = 100 + 7919 * i % 900
        return {
            "text": f"sample {i} has {n} points",
            "boxes": [[i, k, [i + k, i - k]] for k in range(i % 5)],
            "points": self.x[3 * i : 3 * (i + n)].reshape(n, 3),
        }


def columns(samples):
    """A typical custom collate function for such samples: one list per field, nothing stacked."""
    return {key: [sample[key] for sample in samples] for key in samples[0]}


class Waiting:
    """Samples that sleep, as if they were read from a disk or a network."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, i):
        time.sleep(self.seconds[i])
        return np.full(8, i, np.float32), i


AWAITED = 0.05
"""Seconds that a sample of `Awaited` takes."""


class Awaited:
    """Samples that are awaited, as if they came from a web server. It has no `seconds`: those are for `time.sleep`."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    async def __getitem__(self, i):
        import asyncio  # which takes 30 ms: the workers of the other rows start without it

        await asyncio.sleep(AWAITED)
        return np.full(8, i, np.float32), i


def straggling(length):
    """1 ms per sample; every 50th, at random positions, 100 ms."""
    late = set(random.Random(0).sample(range(length), length // 50))
    return [0.1 if i in late else 0.001 for i in range(length)]


class Photographs:
    """JPEG files: decode, resize to 256 on the short side, crop 224x224 at random, channels first."""

    def __init__(self, files, length):
        self.files = files
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        from PIL import Image

        number = i % len(self.files)
        with Image.open(io.BytesIO(self.files[number])) as image:
            width, height = image.size
            scale = 256 / min(width, height)
            size = round(width * scale), round(height * scale)
            pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))
        rng = random.Random(i)
        top, left = rng.randint(0, size[1] - 224), rng.randint(0, size[0] - 224)
        return np.ascontiguousarray(pixels[top : top + 224, left : left + 224].transpose(2, 0, 1)), number


def decoded(path):
    """A photograph as pixels, its short side 256."""
    from PIL import Image

    with Image.open(path) as image:
        width, height = image.size
        scale = 256 / min(width, height)
        size = round(width * scale), round(height * scale)
        return np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))


class PhotographFiles:
    """`Photographs`, read from their files. `decode` is `decoded`, or the same cached."""

    def __init__(self, files, length):
        self.files = files
        self.length = length
        self.decode = decoded

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        number = i % len(self.files)
        pixels = self.decode(self.files[number])
        rng = random.Random(i)
        top, left = rng.randint(0, pixels.shape[0] - 224), rng.randint(0, pixels.shape[1] - 224)
        return np.ascontiguousarray(pixels[top : top + 224, left : left + 224].transpose(2, 0, 1)), number


class Table:
    """The rows of one large array."""

    def __init__(self, rows, row_bytes):
        self.x = np.empty((rows, row_bytes // 8), np.float64)
        self.x[:] = np.arange(rows, dtype=np.float64)[:, None]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class Annotations:
    """A list of dicts, as the boxes of a detection dataset are. A sample reads its item and is its number."""

    def __init__(self, length):
        random_ = random.Random(0)
        self.items = [
            {
                "id": i,
                "image_id": random_.randrange(10**6),
                "category_id": random_.randrange(90),
                "bbox": [600 * random_.random() for _ in range(4)],
                "file_name": f"images/{i:012d}.jpg",
            }
            for i in range(length)
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        item = self.items[i]
        return item["id"] + int(sum(item["bbox"]) < 0) + item["file_name"].count("*")


class Growing(Large):
    """`Large`, but index -1 is one float: to start the workers without producing a large batch."""

    def __getitem__(self, i):
        return np.zeros(1, np.float32) if i < 0 else super().__getitem__(i)


class WithTorch(Tiny):
    """`Tiny`, with tensors in it."""

    def __init__(self, length):
        import torch

        self.x = torch.arange(8 * length, dtype=torch.float32).reshape(length, 8)


class Values:
    """Integers, from a class of one's own."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return i


class Pairs:
    """An image of 3x32x32 floats, and a dict of a label, a name and four floats."""

    def __init__(self, length):
        import torch

        self.x = torch.arange(length + 3 * 32 * 32, dtype=torch.float32)
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        image = self.x[i : i + 3 * 32 * 32].view(3, 32, 32)
        return image, {"label": i, "name": f"image {i}", "box": self.x[i : i + 4]}


def tensors(length, *shape):
    """A list of tensors."""
    import torch

    size = int(np.prod(shape))
    x = torch.arange(length + size, dtype=torch.float32)
    return [x[i : i + size].view(shape) for i in range(length)]


def tensor_dicts(length):
    """A list of dicts of 40 tensors of 16 floats."""
    fields = tensors(length + 40, 16)
    return [{f"field_{k:02d}": fields[i + k] for k in range(40)} for i in range(length)]


def table(length):
    """A `TensorDataset` of rows of 32 floats."""
    import torch

    return torch.utils.data.TensorDataset(torch.arange(32 * length, dtype=torch.float32).view(length, 32))


def photographs(length):
    """The photographs of the notebooks, read once, ordered by name."""
    from nbloader import demo

    files = sorted(demo.photographs().glob("*/*.jpg"))
    return Photographs([file.read_bytes() for file in files], length)


def photograph_files(length):
    """The same as files."""
    from nbloader import demo

    return PhotographFiles(sorted(map(str, demo.photographs().glob("*/*.jpg"))), length)


@dataclass(frozen=True)
class Work:
    """The workload of one row."""

    dataset: Callable[[], Any]
    batch_size: int
    workers: int
    collate: Callable[[Any], Any] | None = None
    threads: bool = False
    """Whether our workers are threads; torch has processes only."""
    shuffle: bool = False
    """Whether the order is random: the same one in each epoch and for all systems."""
    package: str = ""
    """The package that the workload of a `startup` row is about."""
    cached: bool = False
    """Whether our dataset decodes with a cached function."""
    concurrency: int = 0
    """Samples in flight in each worker, if the dataset is asynchronous."""
    forked: bool = False
    """Whether our workers are forked from the process, too, and new workers begin each epoch."""
    samples: str = ""
    """The workload of real_samples.py, which determines the batch size and the collate function, too."""


BATCHES = {
    "large": 40,
    "tiny": 1000,
    "forked": 200,
    "dict40": 160,
    "custom": 200,
    "wait": 160,
    "threads": 320,
    "async": 8000,  # the first and the last 50 ms, when fewer samples are in flight, are 1% of it
    "jpeg": 20,
    "cached": 20,
    "stragglers": 160,
    "keep": 12,
    "inproc_ints": 2000,
    "inproc_own": 2000,
    "inproc_strings": 2000,
    "inproc_tensors": 1000,
    "inproc_arrays": 500,
    "inproc_dict40": 40,
    "inproc_image": 300,
    "inproc_large": 8,
}
"""Batches per epoch, for workloads that depend on it."""

WORK = {
    "large": Work(lambda: Large(64 * BATCHES["large"]), 64, 2),
    "tiny": Work(lambda: Tiny(32 * BATCHES["tiny"]), 32, 2),
    "forked": Work(lambda: Tiny(32 * BATCHES["forked"]), 32, 2, forked=True),
    "dict40": Work(lambda: Fields(32 * BATCHES["dict40"]), 32, 2),
    "custom": Work(lambda: Captions(32 * BATCHES["custom"]), 32, 2, columns),
    "wait": Work(lambda: Waiting([0.005] * (16 * BATCHES["wait"])), 16, 8),
    "threads": Work(lambda: Waiting([0.005] * (16 * BATCHES["threads"])), 16, 16, threads=True),
    "async": Work(lambda: Awaited(20 * BATCHES["async"]), 20, 2, concurrency=500),
    "jpeg": Work(lambda: photographs(32 * BATCHES["jpeg"]), 32, 2),
    "cached": Work(lambda: photograph_files(32 * BATCHES["cached"]), 32, 2, cached=True),
    "stragglers": Work(lambda: Waiting(straggling(16 * BATCHES["stragglers"])), 16, 4),
    "later": Work(lambda: Large(64 * 8), 64, 2),
    "first": Work(lambda: Tiny(32 * 16), 32, 4),
    "first_torch": Work(lambda: WithTorch(32 * 16), 32, 4),
    "memory": Work(lambda: Table(2000, 500_000), 16, 4),
    "objects": Work(lambda: Annotations(400_000), 2000, 4),
    "objects32": Work(lambda: Annotations(400_000), 2000, 32),
    "events": Work(lambda: Tiny(32 * BATCHES["tiny"]), 32, 2),
    "watched": Work(lambda: Tiny(32 * BATCHES["tiny"]), 32, 2),
    "shuffled": Work(lambda: range(100_000_000), 32, 2),
    "inproc_ints": Work(lambda: list(range(32 * BATCHES["inproc_ints"])), 32, 0),
    "inproc_own": Work(lambda: Values(32 * BATCHES["inproc_own"]), 32, 0),
    "inproc_strings": Work(lambda: [f"text {i}" for i in range(32 * BATCHES["inproc_strings"])], 32, 0),
    "inproc_tensors": Work(lambda: tensors(32 * BATCHES["inproc_tensors"], 8), 32, 0),
    "inproc_arrays": Work(lambda: [t.numpy() for t in tensors(32 * BATCHES["inproc_arrays"], 8)], 32, 0),
    "inproc_dict40": Work(lambda: tensor_dicts(32 * BATCHES["inproc_dict40"]), 32, 0),
    "inproc_image": Work(lambda: Pairs(32 * BATCHES["inproc_image"]), 32, 0),
    "inproc_large": Work(lambda: tensors(64 * BATCHES["inproc_large"], 3, 224, 224), 64, 0),
    "memory_inproc": Work(lambda: table(200_000), 1024, 0, shuffle=True),
    "memory_thread": Work(lambda: table(200_000), 1024, 1, threads=True, shuffle=True),
    "memory_process": Work(lambda: table(200_000), 1024, 2, shuffle=True),
    "keep": Work(lambda: Growing(64 * BATCHES["keep"]), 64, 2),
    **{f"startup_{name}": Work(list, 8, 2, package=name) for name in startup.WORKLOADS},
    **{f"samples_{name}": Work(list, 16, 2, samples=name) for name in real_samples.MEASURED},
}


def is_torch(value):
    """Whether it is a tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
