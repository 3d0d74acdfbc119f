"""Slow loaders as found in forums, and what doing as the screen says gains.

    make bench-remedies                     all loaders, each in turn; writes the table into the documentation
    make bench-remedies ONLY=JSON,lock      those whose names begin so; the documentation is left alone
    python tests/bench/remedies.py --render measures nothing, and writes the stored results into the documentation

Each loader runs for some seconds with two workers. Then the screen is read: the cause in the verdict, the slowest line,
and the first remedy of `loader.remedies()` or, if there is none, the first suggested setting. The remedy's code
replaces the current code, as a user would paste it, and both loops are measured alternately. A loader counts as gained
if the loop is at least 1.5 times as fast.

The results are stored in build/remedies/results.json. A run with ONLY replaces those of its loaders there, and the
table then says that they are of another run. If a loader could not be measured, a run leaves the documentation alone,
and `--render` writes a table that says why.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import dataclasses
import gzip
import http.server
import importlib
import itertools
import json
import math
import multiprocessing
import random
import re
import resource
import statistics
import sys
import tempfile
import textwrap
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import psutil
import torch
from PIL import Image

import nbloader
from nbloader.diagnose.what_if import OVER
from nbloader.remedies.difference import Difference
from nbloader.remedies.results import RemedyResult
from nbloader.remedies.site import locate
from nbloader.remedies.trial import code_of

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "build" / "remedies" / "results.json"
PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
BEGIN, END = "<!-- remedies: written by tests/bench/remedies.py -->", "<!-- /remedies -->"
SECONDS = 4.0
"""About how long the loop runs before the screen is read."""
TURN = 1.5
"""About how long each turn of the measurement takes with the slower code."""
TURNS = 3
BATCHES = 40
"""Minimum number of batches of an epoch: a prediction needs more than twenty."""
EPOCHS = 60
"""Number of tiny epochs in a turn."""
WORKERS = 2
GAINED = 1.5
CLOSE = 0.15
"""A prediction is right if it differs from the measured gain by at most this part of it."""
WORDS = {
    "compressed-stream": "Unpack the file once per worker",
    "same-each-epoch": "Keep the results in memory with nbloader.cached",
}
"""What the code of a remedy does, where the remedy's own short text names something else."""

CODE = re.compile(r"[\w.]+\(.*?\)|\w+=\w+|\w+(?:\.\w+)+|__\w+__")
"""What is code in the short text of a remedy or a setting."""


class Repeated:
    """A dataset whose samples repeat after some, so that an epoch takes as long as needed."""

    distinct = 64
    length = 64

    def __len__(self) -> int:
        return self.length


# ---- the loaders ----------------------------------------------------------------------------------------------------


class Photographs(Repeated):
    """Photographs of a camera, for a network that sees 224 x 224 pixels."""

    line = "Image.open"

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.files = []
        for number in range(24):
            coarse = Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8))
            self.files.append(str(folder / f"{number}.jpg"))
            coarse.resize((1600, 1200), Image.Resampling.BICUBIC).save(self.files[-1], quality=90)

    def __getitem__(self, index: int) -> Any:
        img = Image.open(self.files[index % len(self.files)]).convert("RGB").resize((224, 224))
        return torch.from_numpy(np.array(img)).permute(2, 0, 1), index % 10


def image_folder(folder: Path) -> Any:
    """torchvision's ImageFolder with its default loader."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    for name in ("cats", "dogs"):
        (folder / name).mkdir()
        Photographs(folder / name)
    steps = [transforms.Resize((224, 224)), transforms.PILToTensor()]
    return ImageFolder(str(folder), transform=transforms.Compose(steps))


class Hdf5(Repeated):
    """An HDF5 file that is opened for each sample."""

    line = "h5py.File|f['x'][index|f[\"x\"][index"

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "x.h5")
        with h5py.File(self.path, "w") as file:
            values = np.random.default_rng(0).normal(size=(2000, 1000)).astype(np.float32)
            file.create_dataset("x", data=values, chunks=(250, 1000), compression="gzip")

    def __getitem__(self, index: int) -> Any:
        with h5py.File(self.path, "r") as f:
            return torch.from_numpy(f["x"][index * 37 % 2000])


class Rows(Repeated):
    """Rows of a data frame."""

    line = "self.frame.iloc[index|row.drop"

    def __init__(self, _folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.frame = pd.DataFrame({f"x{number}": rng.normal(size=5000) for number in range(40)})
        self.frame["label"] = rng.integers(0, 10, 5000)

    def __getitem__(self, index: int) -> Any:
        row = self.frame.iloc[index % 5000]
        values = row.drop("label").values.astype(np.float32)  # noqa: PD011 - as in forums
        return torch.from_numpy(values), int(row["label"])


class Archive(Repeated):
    """A compressed archive of arrays that is read for each sample."""

    line = "np.load"

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "x.npz")
        np.savez_compressed(self.path, x=np.random.default_rng(0).normal(size=(500, 400)).astype(np.float32))

    def __getitem__(self, index: int) -> Any:
        x = np.load(self.path)["x"]
        return torch.from_numpy(x[index % 500])


class Lists(Repeated):
    """Numbers that are kept as lists, and become tensors."""

    line = "torch.tensor"

    def __init__(self, _folder: Path) -> None:
        rng = random.Random(0)
        self.rows = [[[rng.random() for _ in range(64)] for _ in range(100)] for _ in range(100)]

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.rows[index % len(self.rows)])


class JsonLines(Repeated):
    """A long JSON text for each sample."""

    line = "json.loads"

    def __init__(self, _folder: Path) -> None:
        rng = random.Random(0)
        record = {
            "id": "x" * 20,
            "text": "word " * 2000,
            "points": [[rng.randint(0, 999) for _ in range(3)] for _ in range(3000)],
        }
        self.lines = [json.dumps(record | {"number": number}) for number in range(50)]

    def __getitem__(self, index: int) -> Any:
        record = json.loads(self.lines[index % len(self.lines)])
        return len(record["text"]), record["points"][0][0]


class Tokens(Repeated):
    """Texts that a tokenizer of transformers encodes one by one."""

    line = "self.tokenizer("

    def __init__(self, _folder: Path) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast

        rng = random.Random(0)
        words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 9))) for _ in range(3000)]
        self.texts = [" ".join(rng.choices(words, k=30)) for _ in range(500)]
        tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.train_from_iterator(
            self.texts, trainers.BpeTrainer(vocab_size=2000, special_tokens=["[UNK]", "[PAD]"])
        )
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")

    def __getitem__(self, index: int) -> Any:
        text = self.texts[index % len(self.texts)]
        encoded = self.tokenizer(text, padding="max_length", truncation=True, max_length=64, return_tensors="pt")
        return encoded["input_ids"].squeeze(0), encoded["attention_mask"].squeeze(0)


class Crops(Repeated):
    """Random crops of large arrays, each of which is read as a whole."""

    line = "np.load"

    def __init__(self, folder: Path) -> None:
        self.files = [str(folder / f"{number}.npy") for number in range(8)]
        for file in self.files:
            np.save(file, np.random.default_rng(0).integers(0, 256, (3000, 3000), dtype=np.uint8))

    def __getitem__(self, index: int) -> Any:
        scan = np.load(self.files[index % len(self.files)])
        y, x = np.random.randint(0, 2700, 2)
        return torch.from_numpy(scan[y : y + 256, x : x + 256].copy())


class Remote(Repeated):
    """Samples of a server that answers after 5 to 100 ms."""

    line = "requests.get"

    def __init__(self, _folder: Path) -> None:
        self.port = 0

    def __getitem__(self, index: int) -> Any:
        import requests

        data = requests.get(f"http://127.0.0.1:{self.port}/{index}").content
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class Server(http.server.BaseHTTPRequestHandler):
    """Answers late, as a distant server does."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(min(0.1, random.lognormvariate(math.log(0.012), 0.7)))
        self.send_response(200)
        self.send_header("Content-Length", "4096")
        self.end_headers()
        self.wfile.write(b"x" * 4096)

    def log_message(self, *_args: Any) -> None:
        pass


class Sequences(Repeated):
    """Sequences of different lengths, which a collate function pads."""

    line = "out[i, j] = value|enumerate(seq)"

    def __init__(self, _folder: Path) -> None:
        rng = random.Random(0)
        self.rows = [[rng.randint(0, 999) for _ in range(rng.randint(50, 400))] for _ in range(500)]

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % len(self.rows)]


def pad(rows: list[Any]) -> Any:
    """Pad sequences value by value."""
    out = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, seq in enumerate(rows):
        for j, value in enumerate(seq):
            out[i, j] = value
    return out


class Locked(Repeated):
    """Records of one file, which a lock protects while they are read and unpacked."""

    line = "with self.lock|zlib.decompress"

    def __init__(self, folder: Path) -> None:
        self.lock = multiprocessing.Lock()
        self.path = str(folder / "records")
        values = (np.arange(200_000) // 7 % 251).astype(np.uint8)
        record = zlib.compress(np.random.default_rng(0).permutation(values).tobytes(), 6)
        self.size = len(record)
        Path(self.path).write_bytes(record * 50)
        self.file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - as datasets do

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            self.file.seek(index % 50 * self.size)
            packed = self.file.read(self.size)
            data = np.frombuffer(zlib.decompress(packed), np.uint8)
            values = np.sort(data.astype(np.float32))
        return torch.from_numpy(values)


class Tiny(Repeated):
    """A small dataset, and an epoch for each few batches: what takes time is to start an epoch, not a line."""

    line = ""

    def __init__(self, _folder: Path) -> None:
        self.rows = torch.zeros(64, 32)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % 64]


MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


class Normalized(Repeated):
    """Small images that are normalized in each worker."""

    line = "/ 255|- MEAN"

    def __init__(self, _folder: Path) -> None:
        self.pictures = np.random.default_rng(0).integers(0, 256, (50, 224, 224, 3), dtype=np.uint8)

    def __getitem__(self, index: int) -> Any:
        img = self.pictures[index % 50]
        img = (img.astype(np.float32) / 255.0 - MEAN) / STD
        return torch.from_numpy(img.transpose(2, 0, 1)), index % 10


class Cleaned(Repeated):
    """Texts from which many words are removed."""

    line = "re.sub"

    def __init__(self, _folder: Path) -> None:
        rng = random.Random(0)
        words = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(800)]
        self.stop, self.texts = words[:600], [" ".join(rng.choices(words, k=40)) for _ in range(100)]

    def __getitem__(self, index: int) -> Any:
        text = self.texts[index % 100]
        for word in self.stop:
            text = re.sub(rf"\b{word}\b", "", text)
        return len(text)


class Listed(Repeated):
    """A folder that is listed for each sample."""

    line = "sorted("

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for number in range(3000):
            np.save(folder / f"{number}.npy", np.zeros(8, np.float32))

    def __getitem__(self, index: int) -> Any:
        path = sorted(self.folder.glob("*.npy"))[index % 3000]
        return torch.from_numpy(np.load(path))


class Packed(Repeated):
    """One line of a compressed file for each sample."""

    line = "gzip.open|file.seek"

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "lines.gz")
        rng = np.random.default_rng(0)
        with gzip.open(self.path, "wb") as file:
            for _ in range(2000):
                file.write(rng.integers(0, 256, 2000, dtype=np.uint8).tobytes())

    def __getitem__(self, index: int) -> Any:
        with gzip.open(self.path, "rb") as file:
            file.seek(index * 37 % 2000 * 2000)
            return torch.frombuffer(bytearray(file.read(2000)), dtype=torch.uint8)


class Pixels(Repeated):
    """Pixels of a picture as Python objects."""

    line = "getdata"

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "a.png")
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)).save(self.path)

    def __getitem__(self, index: int) -> Any:
        img = Image.open(self.path)
        pixels = np.array(list(img.getdata()), dtype=np.uint8).reshape(200, 200, 3)
        return torch.from_numpy(pixels), index % 10


class Copied(Repeated):
    """Annotations that are copied before they are changed."""

    line = "copy.deepcopy"

    def __init__(self, _folder: Path) -> None:
        boxes = [{"box": [number, 2, 3, 4], "label": "thing", "score": 0.5} for number in range(200)]
        self.records = [{"file": f"{number}.jpg", "boxes": boxes} for number in range(50)]

    def __getitem__(self, index: int) -> Any:
        record = copy.deepcopy(self.records[index % 50])
        record["index"] = index
        return torch.as_tensor([box["box"] for box in record["boxes"]])


class Augmented(Photographs):
    """Photographs that are resized and then cropped at random."""

    line = "Image.open|.resize("

    def __getitem__(self, index: int) -> Any:
        img = Image.open(self.files[index % len(self.files)]).convert("RGB")
        img = img.resize((256, 256))
        y, x = random.randint(0, 32), random.randint(0, 32)
        return torch.from_numpy(np.array(img)[y : y + 224, x : x + 224]), index % 10


class Filtered(Repeated):
    """Texts from which the words of a long list are removed."""

    line = "not in self.stop"

    def __init__(self, _folder: Path) -> None:
        rng = random.Random(0)
        words = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(2000)]
        self.stop, self.texts = words[:1000], [" ".join(rng.choices(words, k=100)) for _ in range(100)]

    def __getitem__(self, index: int) -> Any:
        words = self.texts[index % 100].split()
        return len([word for word in words if word not in self.stop])


class Mapped(Repeated):
    """Pixels that a loop maps by a table."""

    line = "out[y, x] ="

    def __init__(self, _folder: Path) -> None:
        self.pictures = np.random.default_rng(0).integers(0, 256, (50, 64, 64), dtype=np.uint8)
        self.table = np.linspace(0, 1, 256) ** 2.2

    def __getitem__(self, index: int) -> Any:
        img = self.pictures[index % 50]
        out = np.zeros(img.shape, np.float32)
        for y in range(img.shape[0]):
            for x in range(img.shape[1]):
                out[y, x] = self.table[img[y, x]] * 2.0 - 1.0
        return torch.from_numpy(out)


class Vignettes(Repeated):
    """Arrays that are multiplied by a mask, which is computed for each of them."""

    line = "np."

    def __init__(self, _folder: Path) -> None:
        self.size = (192, 192)
        self.arrays = np.random.default_rng(0).normal(size=(50, *self.size)).astype(np.float32)

    def __getitem__(self, index: int) -> Any:
        y, x = np.meshgrid(*(np.linspace(-1, 1, side) for side in self.size), indexing="ij")
        mask = np.exp(-(y**2 + x**2)).astype(np.float32)
        return torch.from_numpy(self.arrays[index % 50] * mask + random.random())


class Table(Repeated):
    """One row of a table in a text file for each sample."""

    line = "csv.reader|open("

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "table.csv")
        rows = np.random.default_rng(0).normal(size=(1000, 20)).round(3)
        np.savetxt(self.path, rows, delimiter=",")

    def __getitem__(self, index: int) -> Any:
        with open(self.path, newline="") as file:
            rows = list(csv.reader(file))
        return torch.tensor([float(value) for value in rows[index % 1000]])


@dataclasses.dataclass(frozen=True)
class Loader:
    """A slow loader."""

    name: str
    dataset: Callable[[Path], Any]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    needs: str = ""
    """Package that it needs."""


LOADERS = [
    Loader("large JPEGs", Photographs, {"batch_size": 4}),
    Loader("ImageFolder", image_folder, {"batch_size": 4}, "torchvision"),
    Loader("HDF5 file opened per sample", Hdf5),
    Loader("rows of a data frame", Rows, {"batch_size": 32}),
    Loader("npz per sample", Archive),
    Loader("lists to tensors", Lists),
    Loader("JSON texts", JsonLines, {}, "orjson"),
    Loader("tokenizer per text", Tokens, {"batch_size": 32}, "transformers"),
    Loader("crops of arrays", Crops),
    Loader("remote reads", Remote, {}, "requests"),
    Loader("padding in Python", Sequences, {"collate_fn": pad, "batch_size": 32}),
    Loader("lock around the fetch", Locked),
    Loader("tiny epochs", Tiny),
    Loader("normalized in workers", Normalized),
    Loader("regular expressions", Cleaned),
    Loader("folder listed per sample", Listed),
    Loader("compressed file", Packed),
    Loader("pixels as objects", Pixels),
    Loader("deep copies", Copied),
    Loader("random crops of photographs", Augmented, {"batch_size": 4}),
    Loader("words in a list", Filtered),
    Loader("loop over pixels", Mapped),
    Loader("mask per sample", Vignettes),
    Loader("table read per sample", Table),
]

# ---- reading the screen, and doing what it says ---------------------------------------------------------------------


@dataclasses.dataclass
class Row:
    """A row of the table."""

    name: str
    cause: str = ""
    line: str = ""
    """The slowest line."""
    line_is_right: bool | None = False
    """Whether it is the line that makes the loader slow; None if no line does."""
    remedy: str = ""
    """The remedy or the setting, in words; "" if none gains anything."""
    samples: str = ""
    """Whether the remedy leaves the samples as they were: "equal", "differ", or "" for a setting."""
    difference: str = ""
    """By how much a sample differs."""
    predicted: float | None = None
    measured: float | None = None
    seconds: float = 0.0
    """Time to read the screen."""
    problem: str = ""
    """Why the loader could not be measured; "" if it was."""
    another_run: bool = False
    """Whether it was measured after the other rows."""
    at_least: int = 0
    """The bound that the screen shows instead of a large prediction, as in "over 10x"; 0 if it shows the prediction."""


@dataclasses.dataclass
class Results:
    """The rows of a run, and what is said below the table."""

    rows: list[Row]
    when: str
    """Date, as in 2026-11-28."""
    cores: int
    python: str
    torch: str
    others: float = 0.0
    """Cores that other programs used, on average."""

    @classmethod
    def of_today(cls) -> Results:
        """No rows yet."""
        python, version = ".".join(map(str, sys.version_info[:2])), torch.__version__.partition("+")[0]
        return cls([], datetime.now(timezone.utc).strftime("%Y-%m-%d"), psutil.cpu_count() or 1, python, version)

    @classmethod
    def stored(cls) -> Results:
        """The results of the last run."""
        fields = json.loads(RESULTS.read_text(encoding="utf-8"))
        return cls(**fields | {"rows": [Row(**row) for row in fields["rows"]]})

    def store(self) -> None:
        """Keep the results for `stored`."""
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")

    def replace(self, rows: list[Row]) -> None:
        """Replace rows by those of another run."""
        newer = {row.name: dataclasses.replace(row, another_run=True) for row in rows}
        self.rows = [newer.get(row.name, row) for row in self.rows]


def run(loader: Loader, folder: Path) -> Row:
    """Run a slow loader, read the screen, do what it says, and measure both loops alternately."""
    with contextlib.ExitStack() as stack:
        dataset = loader.dataset(folder)
        if isinstance(dataset, Remote):
            dataset.port = stack.enter_context(serving())
        options = {"batch_size": 16, "num_workers": WORKERS, **loader.options}
        took = measured_sample(dataset, options)
        tiny = isinstance(dataset, Tiny)
        resize(dataset, 64 if tiny else length(SECONDS, took, options))
        row = Row(loader.name)
        with nbloader.DataLoader(dataset, **options) as watched:
            watched.profile_lines()
            for _ in range(EPOCHS if tiny else 1):
                for _batch in watched:
                    pass
            began = time.perf_counter()
            stats = watched.stats()
            found = watched.remedies(30)
            hot = watched.hot_lines()
            row.seconds = time.perf_counter() - began
            row.cause = stats.epoch_verdict.cause
            row.line = hot.lines[0].source or hot.lines[0].function if hot.lines else ""
            right = getattr(dataset, "line", "img.convert|decoder.decode|self.load()|im.resize")
            row.line_is_right = any(part in row.line for part in right.split("|")) if right else None
            print(f"\n== {loader.name}\n{stats.verdict}\n{found!r}", flush=True)
            first = next((one for one in found if one.proposal.code and one.samples), None)  # what rewrites a function
            change = setting(stats)
            if change is None or (first is not None and first.gain > (change.predicted or 1.0)):
                change = None if first is None else applied(first, watched)
            else:
                first = None
            if change is None:
                return row
            if first is not None:
                row.remedy = WORDS.get(first.name) or first.proposal.short
                row.samples = "equal" if first.difference.equal else "differ"
                row.difference = by_how_much(first.difference)
                if first.prediction is not None:
                    row.predicted, row.at_least = first.prediction.speedup, first.prediction.at_least
            else:
                row.remedy = ", ".join(f"{name}={value}" for name, value in change.options.items())
                row.predicted = change.predicted
        resize(dataset, 64 if tiny else length(TURN, took, options))
        row.measured = compare(dataset, options, change, epochs=EPOCHS if tiny else 1)
    return row


def by_how_much(found: Difference) -> str:
    """The difference of samples, as the end of a sentence."""
    if found.equal or found.problem:
        return f": {found.problem}" if found.problem else ""
    return f" by up to {found.largest:.3g} ({found.mean:.3g} on average) in a range of {found.span:.3g}"


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """Run the late server in a process of its own; yields its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
    process.start()
    try:
        yield server.server_port
    finally:
        process.terminate()
        process.join()
        server.server_close()


def measured_sample(dataset: Any, options: dict[str, Any]) -> float:
    """How long a sample takes in this process, seconds."""
    collate = options.get("collate_fn")
    count, begin = 0, time.perf_counter()
    while count < 2 or time.perf_counter() - begin < 0.3:
        samples = [dataset[(count + number) % len(dataset)] for number in range(4)]
        if collate is not None:
            collate(samples)
        count += 4
    return (time.perf_counter() - begin) / count


def resize(dataset: Any, samples: int) -> None:
    """Give a dataset so many samples."""
    if isinstance(dataset, Repeated):
        dataset.length = samples
    else:  # an ImageFolder
        first = dataset.samples[:48]
        dataset.samples = (first * (samples // len(first) + 1))[:samples]


def length(seconds: float, took: float, options: dict[str, Any]) -> int:
    """The number of samples that take about so long."""
    batches = max(BATCHES, round(seconds * WORKERS / took / options["batch_size"]))
    return batches * int(options["batch_size"])


def as_it_is(batch: Any) -> Any:
    """Return the batch."""
    return batch


def nothing() -> Callable[[], None]:
    """Change no code."""
    return lambda: None


@dataclasses.dataclass
class Change:
    """What the screen says to do."""

    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Other options of the loader."""
    predicted: float | None = None
    loop: Callable[[Any], Any] = as_it_is
    """What the loop does with each batch."""
    swap: Callable[[], Callable[[], None]] = nothing
    """Puts the code in place; returns a function that puts the former code back."""
    later: bool = False
    """Whether it gains from the second epoch on."""


def applied(found: RemedyResult, loader: Any) -> Change:
    """Paste the code of a remedy."""
    roots = [loader.dataset, loader.collate_fn]
    site = locate(found.line, roots)
    function: Any = site.function
    proposal = found.proposal
    code = code_of(function, proposal)
    usual = function.__code__
    adds = code.co_name not in (site.tree.name, function.__name__)

    def swap() -> Callable[[], None]:
        if adds:
            names = dict(function.__globals__)
            exec(proposal.code, names)
            setattr(type(site.owner), code.co_name, names[code.co_name])
            return lambda: delattr(type(site.owner), code.co_name)
        function.__code__ = code
        return lambda: setattr(function, "__code__", usual)

    names = {**function.__globals__, "dataset": loader.dataset}

    def loop(batch: Any) -> Any:
        if isinstance(batch, (list, tuple)):
            return [loop(part) if getattr(part, "dtype", None) == torch.uint8 else part for part in batch]
        return eval(proposal.loop, names, {"batch": batch})

    return Change(swap=swap, later=proposal.saves == "later", **({"loop": loop} if proposal.loop else {}))


def setting(stats: Any) -> Change | None:
    """The first setting that is suggested."""
    if stats.epoch_verdict.cause == "startup" and "persistent_workers=True" in stats.verdict:
        return Change({"persistent_workers": True})
    for suggestion in stats.outlook.suggestions:
        changed = {
            name: getattr(suggestion, name)
            for name in ("num_workers", "prefetch_factor")
            if getattr(suggestion, name) is not None
        }
        if changed:
            gain = re.search(r"([\d.]+)x", suggestion.label + stats.outlook.text)
            return Change(changed, None if gain is None else float(gain[1]))
    return None


def compare(dataset: Any, options: dict[str, Any], change: Change, epochs: int) -> float:
    """How many times as fast the loop becomes: the median of turns."""
    ratios = []
    before = rate(dataset, options, as_it_is, epochs, later=False)
    for _ in range(TURNS):
        back = change.swap()
        try:
            after = rate(dataset, options | change.options, change.loop, epochs, later=change.later)
        finally:
            back()
        again = rate(dataset, options, as_it_is, epochs, later=False)
        ratios.append(2 * after / (before + again))
        before = again
    return statistics.median(ratios)


def rate(dataset: Any, options: dict[str, Any], loop: Callable[[Any], Any], epochs: int, *, later: bool) -> float:
    """Batches per second of a loop, without its first ones."""
    with nbloader.DataLoader(dataset, **options) as loader:
        if later:
            for _batch in loader:
                pass
        for batch in itertools.islice(loader, 1) if epochs > 1 else ():
            loop(batch)
        begin, count = time.perf_counter(), 0
        first = 2 * options["num_workers"] if epochs == 1 else 0
        for _ in range(epochs):
            for batch in loader:
                loop(batch)
                count += 1
                if count == first:
                    begin = time.perf_counter()
        return (count - first) / (time.perf_counter() - begin)


# ---- the table ------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """The results as Markdown, with a summary."""
    rows = [row for row in results.rows if not row.problem]
    lines = [
        "| slow loader | measured | predicted | remedy or setting | cause in the verdict |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            row.name,
            _gain(row.measured),
            f"over {row.at_least}x" if row.at_least else _gain(row.predicted),
            CODE.sub(r"`\g<0>`", row.remedy) or "none gains anything",
            f"`{row.cause}`",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    differing = [row for row in rows if row.samples == "differ"]
    differences = [f'With the remedy for "{row.name}", a sample differs{row.difference}.' for row in differing]
    if any(row.samples == "equal" for row in rows):
        differences.append(f"{'The other' if differences else 'These'} remedies leave the samples as they were.")
    for text in filter(None, (" ".join(differences), _summary(rows, results), _machine(results))):
        lines += ["", textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)]
    return "\n".join(lines) + "\n"


def _gain(factor: float | None) -> str:
    """A gain as a cell."""
    return "-" if factor is None else f"{factor:.2f}x"


def _summary(rows: list[Row], results: Results) -> str:
    """How often the screen is right."""
    without = [row.name for row in rows if row.line_is_right is None]
    wrong = [row.name for row in rows if row.line_is_right is False]
    right = len(rows) - len(without) - len(wrong)
    gained = sum(row.measured is not None and row.measured >= GAINED for row in rows)
    both = [(row, row.predicted, row.measured) for row in rows if row.predicted and row.measured]
    close = [abs(predicted / measured - 1) <= CLOSE for row, predicted, measured in both if not row.at_least]
    over = [measured > row.at_least for row, _predicted, measured in both if row.at_least]
    gains = f"the loop is at least {GAINED} times as fast in {gained} of {len(rows)}"
    texts = [
        f"The right line comes first in {right} of {len(rows) - len(without)}, and {gains}.",
        f"Another line comes first in {_quoted(wrong)}." if wrong else "",
        f"There is no slow line in {_quoted(without)}." if without else "",
        f"Of the predictions up to {OVER}x, {sum(close)} of {len(close)} are within {CLOSE:.0%} of what was measured.",
        f"For the others, the bound that is shown was right in {sum(over)} of {len(over)}.",
        *(f'"{row.name}" was not measured: {row.problem}.' for row in results.rows if row.problem),
    ]
    return " ".join(filter(None, texts))


def _machine(results: Results) -> str:
    """What the results were measured on."""
    later = [row.name for row in results.rows if row.another_run and not row.problem]
    software = f"Python {results.python}, torch {results.torch}"
    texts = [
        f"Measured on {results.when}, on {results.cores} cores, {WORKERS} workers, {software}.",
        f"Figures are medians of {TURNS} turns.",
        f"The figures of {_quoted(later)} are of another run." if later else "",
        f"Other programs used {results.others:.2f} cores on average.",
    ]
    return " ".join(filter(None, texts))


def _quoted(names: list[str]) -> str:
    """Names in a sentence."""
    *others, last = (f'"{name}"' for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def write(results: Results) -> None:
    """Write the table into the documentation."""
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(results)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def own_cpu() -> float:
    """CPU time of this process and of its children that have ended, seconds."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def machine_cpu() -> float:
    """CPU time of all programs, seconds."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


def row_of(loader: Loader) -> Row:
    """Run a loader in a folder of its own; an error is the row's problem."""
    if loader.needs:
        try:
            importlib.import_module(loader.needs)
        except Exception:
            return Row(loader.name, problem=f"{loader.needs} could not be imported")
    with tempfile.TemporaryDirectory() as folder:
        try:
            return run(loader, Path(folder))
        except Exception as error:
            traceback.print_exc()
            return Row(loader.name, problem=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(".: "))


def main() -> None:
    """Run the loaders, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of loaders, separated by commas")
    parser.add_argument("--quick", action="store_true", help="short turns, to see whether everything runs")
    parser.add_argument("--render", action="store_true", help="write the stored results into the documentation")
    arguments = parser.parse_args()
    if arguments.render:
        write(Results.stored())
        return
    if arguments.quick:
        globals().update(SECONDS=2.0, TURN=1.0, TURNS=1, EPOCHS=20)
    chosen = tuple(filter(None, arguments.only.split(",")))
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    results = Results.of_today()
    begin, own, machine = time.monotonic(), own_cpu(), machine_cpu()
    for loader in LOADERS:
        if not chosen or loader.name.startswith(chosen):
            results.rows.append(row_of(loader))
            print(results.rows[-1], flush=True)
            if not (chosen or arguments.quick):
                results.store()
    results.others = max(0.0, machine_cpu() - machine - (own_cpu() - own)) / (time.monotonic() - begin)
    print(table(results))
    if arguments.quick:
        return
    if chosen and RESULTS.exists():
        earlier = Results.stored()
        earlier.replace(results.rows)
        earlier.store()
    elif not chosen:
        results.store()
        write(results)


if __name__ == "__main__":
    main()
