"""Checks of unit 10: storage formats."""

from __future__ import annotations

import collections
import io
import itertools
import math
import random
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import Hint, Unit, attempt, choices, counts
from .disk import Disk, File

unit = Unit()
progress = unit.progress

ORDERS = 200
"""Orders of chunks that a check looks at."""


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that cannot be compressed."""
    return random.Random(seed).randbytes(size)


def samples_of(count: int, size: int = 1000) -> list[bytes]:
    """Samples of equal size that can be compressed to about a third."""
    return [bytes(value % 7 for value in noise(size, seed)) for seed in range(count)]


class Chunks:
    """Samples of equal size in compressed chunks, read with a memory for some decompressed chunks.

    Args:
        disk: Where to write and read the file.
        samples: What to write.
        per_chunk: How many samples a chunk holds.
        kept: How many chunks stay in memory after an access: those that were used last.
    """

    def __init__(
        self, disk: Disk, samples: Sequence[bytes], per_chunk: int, kept: int
    ) -> None:
        self.size, self.per_chunk, self.kept = len(samples[0]), per_chunk, kept
        self.decompressed = 0
        """Samples that were decompressed so far."""
        chunks = [zlib.compress(b"".join(part)) for part in _parts(samples, per_chunk)]
        self.offsets = [0, *itertools.accumulate(map(len, chunks))]
        disk.write("chunks", b"".join(chunks))
        self._file = disk.open("chunks")
        self._memory: dict[int, bytes] = {}

    def __getitem__(self, i: int) -> bytes:
        which, at = divmod(i, self.per_chunk)
        chunk = self._memory.pop(which, None)
        if chunk is None:
            start, end = self.offsets[which : which + 2]
            self._file.seek(start)
            chunk = zlib.decompress(self._file.read(end - start))
            self.decompressed += len(chunk) // self.size
        self._memory[which] = chunk
        while len(self._memory) > self.kept:
            del self._memory[next(iter(self._memory))]
        return chunk[at * self.size : (at + 1) * self.size]


def _parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


@unit.task("10.1 Many small files")
def small_files(answer: Any, *, measured: Mapping[str, int]) -> str:
    """`answer` predicts opens, pages and jumps of an epoch, from many files and from one."""
    counts(
        answer,
        measured,
        {
            "opens, many files": "each sample is a file.",
            "opens, one file": "the file stays open.",
            "pages, many files": "a disk reads whole pages, and a page belongs to one file. How many pages does a file "
            "of 1128 bytes take?",
            "pages, one file": "the file has 128 + 200 x 1000 bytes. Divide by 4096, and round up. A page that two "
            "samples share is read once, since it is in the page cache then.",
            "jumps, one file in order": "only the first page does not follow the page before it.",
        },
        "opens, pages or jumps",
    )
    return "The samples are the same. Many small files cost an open, a jump and the rest of a page for each of them."


@unit.task("10.2 One row of a .npy file")
def rows(cls: Callable[[Any], Any]) -> str:
    """`Rows(file)` reads single rows of the array in a .npy file."""
    arrays = {
        "300 rows of 5 float32": np.arange(1500, dtype=np.float32).reshape(300, 5),
        "40 images of 8 x 6 uint8": np.arange(1920).astype(np.uint8).reshape(40, 8, 6),
        "70 float64, with no other axis": np.linspace(0, 1, 70),
        "90 records with a name and a number": np.array(
            [(f"sample {n}", n) for n in range(90)],
            dtype=[("a long name of a field", "U12"), ("another one", ">i8")],
        ),
    }
    for what, array in arrays.items():
        disk, file = _file(_npy(array))
        data = attempt(cls, file)
        header = len(_npy(array)) - array.nbytes
        size = array.nbytes // len(array)
        if disk.counts.asked > header + 64:
            raise Hint(
                f"an array with {what}: when it is opened, your class reads {disk.counts.asked} bytes, and the header "
                f"has {header}. Read the header only, and a row when somebody asks for it."
            )
        if attempt(len, data) != len(array):
            raise Hint(
                f"an array with {what}: its length is {attempt(len, data)}. Which axis counts the rows?"
            )
        for i in (0, 7, len(array) - 1, 3):
            disk.reset()
            row = attempt(lambda data=data, i=i: np.asarray(data[i]))
            said = f"an array with {what}: row {i}"
            if row.shape != array[i].shape:
                raise Hint(
                    f"{said} has the shape {row.shape}, and should have {array[i].shape}."
                )
            if row.dtype != array.dtype:
                raise Hint(
                    f"{said} is of type {row.dtype}, and should be {array.dtype}. The header says so."
                )
            if not np.array_equal(row, array[i]):
                raise Hint(
                    f"{said} has other values than the array. It begins at byte {header + i * size} of the file: "
                    f"after a header of {header} bytes and {i} rows of {size} bytes."
                )
            if disk.counts.asked > size:
                raise Hint(
                    f"{said} has {size} bytes, and your class reads {disk.counts.asked}. Remember what the header "
                    "says, and read nothing else."
                )
    return "The header is read once, and then a row costs its own bytes. A memory map does the same with pages."


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _file(data: bytes) -> tuple[Disk, File]:
    """A disk with one file, which is open, and nothing counted yet."""
    disk = Disk()
    disk.write("file", data)
    file = disk.open("file")
    disk.reset()
    return disk, file


@unit.task("10.3 What the page cache hides")
def cache(answer: Any, *, measured: Mapping[str, int]) -> str:
    """`answer` predicts the pages that come from the disk."""
    counts(
        answer,
        measured,
        {
            "cache of 200 pages, epoch 1": "nothing is in the cache yet.",
            "cache of 200 pages, epoch 2": "the file has 100 pages. What is left to read?",
            "cache of 200 pages, epoch 2, dropped before": "the cache is empty again.",
            "cache of 50 pages, epoch 2": "at the end of epoch 1, pages 50 to 99 are in the cache. Epoch 2 begins with "
            "page 0. Which page has to leave for it, and when is that page needed?",
            "cache of 50 pages, epoch 2 backward": "at the end of epoch 1, pages 50 to 99 are in the cache. Epoch 2 "
            "begins with page 99.",
        },
        "pages",
    )
    return (
        "A second epoch over a small file measures the memory. "
        "Read in order, a file that is too large gains nothing."
    )


@unit.task("10.4 One sample out of an archive")
def archives(answer: Any, *, measured: Mapping[str, int]) -> str:
    """`answer` predicts how many samples are decompressed."""
    counts(
        answer,
        measured,
        {
            "one array for all, one sample": "`archive['all']` is the whole array, and `[i]` comes after that.",
            "one array for all, an epoch": "each `archive['all']` decompresses again. Nothing is remembered.",
            "one array for all, taken out once, an epoch": "the variable holds the array. How often is it made?",
            "one array for each sample, one sample": "each array of the archive is compressed alone.",
            "one array for all, mmap_mode='r', one sample": "compressed bytes are not the array, so they cannot be "
            "mapped. `np.load` ignores the argument here.",
        },
        "samples",
    )
    return "What is compressed together must be decompressed together."


@unit.task("10.5 An index of a tar file")
def tar(index: Callable[[Any], Any], read: Callable[[Any, Any, str], Any]) -> str:
    """`tar_index(file)` finds all members once, so that `read_member(file, index, name)` reads one of them only."""
    members = {f"photos/{n:02}.jpg": noise(900 + 57 * n, n) for n in range(30)} | {
        "empty.txt": b"",
        "last.txt": b"end",
    }
    data = _tar(members)
    disk, file = _file(data)
    made = attempt(index, file)
    if disk.counts.asked > len(data) // 2:
        raise Hint(
            f"for the index your code reads {disk.counts.asked:,} bytes of a file of {len(data):,}. The headers are "
            "enough: `tarfile` skips the content of a member with `seek`."
        )
    if not isinstance(made, Mapping):
        raise Hint(
            f"tar_index returned {type(made).__name__}: a dict is needed, by the names of the members."
        )
    missing = [name for name in members if name not in made]
    if missing:
        raise Hint(
            f"{missing[0]!r} is not in the index. A member is found by its whole name."
        )
    for name in (
        "photos/17.jpg",
        "empty.txt",
        "photos/00.jpg",
        "last.txt",
        "photos/29.jpg",
    ):
        disk.reset()
        content = attempt(read, file, made, name)
        expected = members[name]
        if content != expected:
            raise Hint(_wrong_content(name, content, expected))
        if disk.counts.asked > len(expected):
            raise Hint(
                f"{name} has {len(expected)} bytes, and your code reads {disk.counts.asked} in "
                f"{disk.counts.reads} reads. The index should say where the content is, so that nothing is searched."
            )
    return f"{len(members)} members, one read each. The index is made once, and can be stored beside the file."


def _tar(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _wrong_content(name: str, content: Any, expected: bytes) -> str:
    if not isinstance(content, bytes):
        return f"read_member returned {type(content).__name__} for {name}: bytes are needed."
    if content.startswith(name.encode()):
        return (
            f"what you read of {name} begins with its name: this is the header. A member has an `offset` and an "
            "`offset_data`."
        )
    if content.startswith(expected) and len(content) > len(expected):
        return f"{name} has {len(expected)} bytes, and you return {len(content)}. tar fills up to blocks of 512 bytes."
    return f"the content of {name} is another one. Where does it begin, and how many bytes has it?"


@unit.task("10.6 Records of different lengths")
def records(pack: Callable[[list[bytes]], Any], cls: Callable[[Any], Any]) -> str:
    """`pack(records)` makes the bytes of a file, from which `Records(file)` reads single records."""
    various = [noise(size, size) for size in (3, 0, 700, 40, 1, 0, 5000, 12)]
    special = [b"\n", b"", b"a\nb", b"\0\0", b",", b"\n\n"]
    many = [noise(20 + n % 50, n) for n in range(400)]
    long = [noise(70_000, 1), b"short", noise(70_000, 2)]
    for what, expected in (
        ("8 records", various),
        ("records with special bytes", special),
        ("400 records", many),
    ):
        _records(pack, cls, what, expected)
    data = _records(pack, cls, "3 records, two of them long", long)
    if len(data) > 150_000:
        raise Hint(
            f"3 records of 140,005 bytes make a file of {len(data):,} bytes. Do not fill them up to one length."
        )
    _records(pack, cls, "no records", [])
    return "The index has one number for each record, so each record is found with one jump."


def _records(
    pack: Callable[[list[bytes]], Any],
    cls: Callable[[Any], Any],
    what: str,
    expected: list[bytes],
) -> bytes:
    data = attempt(pack, list(expected))
    if not isinstance(data, (bytes, bytearray)):
        raise Hint(f"pack returned {type(data).__name__}: bytes are needed.")
    disk, file = _file(bytes(data))
    opened = attempt(cls, file)
    total = sum(map(len, expected))
    allowed = 16 * len(expected) + 64
    if disk.counts.asked > allowed:
        raise Hint(
            f"{what}: when the file is opened, your class reads {disk.counts.asked:,} bytes, and the records have "
            f"{total:,}. For {len(expected)} records an index of {8 * (len(expected) + 1)} bytes is enough. Where is "
            "yours, and how do you find it without reading the records?"
        )
    length = attempt(len, opened)
    if length != len(expected):
        raise Hint(
            f"{what}: the length is {length}. Are there bytes in a record that you take for a separator?"
        )
    for i in [*range(min(len(expected), 8)), *range(len(expected) - 1, 0, -97)]:
        disk.reset()
        made = attempt(lambda i=i: opened[i])
        said = f"{what}: record {i}"
        if made != expected[i]:
            if (
                isinstance(made, (bytes, bytearray))
                and len(made) > len(expected[i])
                and made.startswith(expected[i])
            ):
                raise Hint(
                    f"{said} has {len(expected[i])} bytes, and you return {len(made)}. Where does it end?"
                )
            if (
                isinstance(made, (bytes, bytearray))
                and made
                and expected[i].startswith(made)
            ):
                raise Hint(
                    f"{said} has {len(expected[i])} bytes, and you return the first {len(made)} of them. Which is the "
                    "largest number that your index can hold?"
                )
            if isinstance(made, (bytes, bytearray)):
                raise Hint(
                    f"{said} begins with {expected[i][:8]!r}, and yours with {bytes(made[:8])!r}. From where do your "
                    "offsets count: from the beginning of the file, or from the first record?"
                )
            raise Hint(f"{said} is {type(made).__name__}: bytes are needed.")
        if disk.counts.asked > len(expected[i]) + 64:
            raise Hint(
                f"{said} has {len(expected[i])} bytes, and your class reads {disk.counts.asked:,} for it. Look up "
                "where it begins and where it ends, and go there."
            )
    return bytes(data)


@unit.task("10.7 Compressed chunks")
def chunks(
    write: Callable[..., Any],
    read: Callable[..., Any],
    amplification: Any,
    *,
    measured: Mapping[str, int],
) -> str:
    """`write_chunks` and `read_sample` are a format, and `amplification` predicts what it costs."""
    for count, per_chunk in ((64, 8), (100, 32), (10, 1), (5, 20)):
        _chunks(write, read, count, per_chunk)
    counts(
        amplification,
        measured,
        {
            "in order, nothing kept": "each access decompresses a chunk of 64 samples, and there are 640 accesses.",
            "in order, one chunk kept": "the next 63 samples are in the chunk that is in memory.",
            "every 64th sample, one chunk kept": "there are 10 accesses, each in a chunk of its own.",
            "random order, all chunks kept": "each of the 10 chunks is decompressed when it is needed first.",
            "one chunk of 640, every 64th sample, nothing kept": "10 accesses, and each decompresses the only chunk.",
        },
        "samples",
    )
    return "A chunk is the unit of reading: what an access costs depends on the accesses before it."


def _chunks(
    write: Callable[..., Any], read: Callable[..., Any], count: int, per_chunk: int
) -> None:
    samples = samples_of(count, 200)
    said = f"{count} samples in chunks of {per_chunk}"
    made = attempt(write, list(samples), per_chunk)
    if (
        not isinstance(made, tuple)
        or len(made) != 2
        or not isinstance(made[0], (bytes, bytearray))
    ):
        raise Hint(
            f"write_chunks returned {type(made).__name__}: a pair is needed, of bytes and a list of offsets."
        )
    data, offsets = made
    number_of_chunks = -(-count // per_chunk)
    if len(offsets) not in (number_of_chunks, number_of_chunks + 1):
        raise Hint(
            f"{said}: there are {number_of_chunks} chunks, and you return {len(offsets)} offsets."
        )
    if len(data) > 0.9 * count * 200:
        raise Hint(
            f"{said}: the file has {len(data):,} bytes, and the samples {count * 200:,}. Is it compressed?"
        )
    if len(offsets) == number_of_chunks and offsets[-1] == len(data):
        raise Hint(
            f"{said}: your last offset is the end of the file, and there should be {number_of_chunks} chunks. Is the "
            "last one left out?"
        )
    disk, file = _file(bytes(data))
    sizes = [
        len(zlib.compress(b"".join(part), 1)) for part in _parts(samples, per_chunk)
    ]
    for i in sorted(
        {0, 1, count // 2, count - 2, count - 1, per_chunk - 1, per_chunk}
        & set(range(count))
    ):
        disk.reset()
        sample = attempt(read, file, offsets, per_chunk, 200, i)
        if not isinstance(sample, (bytes, bytearray)):
            raise Hint(
                f"read_sample returned {type(sample).__name__}: bytes are needed."
            )
        if sample != samples[i]:
            if len(sample) != 200:
                raise Hint(
                    f"{said}: sample {i} has {len(sample)} bytes, and should have 200."
                )
            where = samples.index(bytes(sample)) if sample in samples else None
            got = "something else" if where is None else f"sample {where}"
            raise Hint(
                f"{said}: instead of sample {i} you return {got}. In which chunk is it, and where in there?"
            )
        if disk.counts.asked > 1.3 * sizes[i // per_chunk] + 20:
            raise Hint(
                f"{said}: for sample {i} you read {disk.counts.asked:,} bytes, and its chunk has about "
                f"{sizes[i // per_chunk]:,}. Read one chunk only: where does it end?"
            )


@unit.task("10.8 Shuffle chunks")
def order(function: Callable[..., Any]) -> str:
    """`chunk_order(length, per_chunk, pool, rng)` is a random order that opens each chunk once."""
    for length, per_chunk, pool in (
        (64, 8, 1),
        (64, 8, 2),
        (60, 8, 3),
        (30, 16, 5),
        (6, 1, 2),
    ):
        orders = [
            attempt(_order, function, length, per_chunk, pool, seed)
            for seed in range(20)
        ]
        if orders != [
            attempt(_order, function, length, per_chunk, pool, seed)
            for seed in range(20)
        ]:
            raise Hint("with the same seed, two orders differ. Draw from `rng` only.")
    orders = [attempt(_order, function, 64, 8, 2, seed) for seed in range(ORDERS)]
    first = {made[0] // 8 for made in orders}
    if len(first) < 8:
        raise Hint(
            f"in {ORDERS} orders of 8 chunks, the first sample is always from chunk "
            f"{' or '.join(map(str, sorted(first)))}. Shuffle the chunks."
        )
    if all(
        [i for i in made if i // 8 == 3] == sorted(i for i in made if i // 8 == 3)
        for made in orders
    ):
        raise Hint(
            f"in {ORDERS} orders, samples 24 to 31 always come in this order. Shuffle in a chunk, too."
        )
    mixed = sum(
        sum(a // 8 != b // 8 for a, b in itertools.pairwise(made)) for made in orders
    ) / len(orders)
    if mixed < 16:
        raise Hint(
            f"two chunks fit into the memory, and the order goes to another chunk {mixed:.0f} times in 64 samples. "
            "Mix the samples of the chunks that are open at the same time."
        )
    together = {frozenset(i // 8 for i in made[:8]) for made in orders}
    if len(together) < 12:
        raise Hint(
            f"in {ORDERS} orders the same chunks are always open together. Which ones do you combine?"
        )
    return f"With a memory of two chunks, the order goes to the other chunk {mixed:.0f} times in 64 samples."


def _order(
    function: Callable[..., Any], length: int, per_chunk: int, pool: int, seed: int
) -> list[int]:
    """An order of samples. Looks whether each comes once, and how many chunks are open at the same time."""
    made = [int(i) for i in function(length, per_chunk, pool, random.Random(seed))]
    said = f"{length} samples in chunks of {per_chunk}, with a memory of {pool}"
    count = collections.Counter(made)
    unknown = sorted(set(made) - set(range(length)))
    if unknown:
        raise Hint(
            f"{said}: {unknown[0]} comes, and there is no such sample. How long is the last chunk?"
        )
    missing = sorted(set(range(length)) - set(made))
    if missing:
        raise Hint(
            f"{said}: {len(missing)} samples never come, for example {missing[0]}."
        )
    twice = [i for i in count if count[i] > 1]
    if twice:
        raise Hint(f"{said}: sample {twice[0]} comes {count[twice[0]]} times.")
    left = collections.Counter(i // per_chunk for i in made)
    is_open: set[int] = set()
    for at, i in enumerate(made):
        chunk = i // per_chunk
        is_open.add(chunk)
        if len(is_open) > pool:
            raise Hint(
                f"{said}: at position {at}, {len(is_open)} chunks are needed that are not used up. So a chunk must be "
                "decompressed again, or the memory holds too much. Use up the chunks that are open first."
            )
        left[chunk] -= 1
        if not left[chunk]:
            is_open.remove(chunk)
    return made


@unit.task("10.9 Where decoding runs")
def decoding(answer: Any, *, measured: Mapping[str, Any]) -> str:
    """`answer` predicts who decodes, how often, and how much the worker sends."""
    choices(
        answer,
        measured,
        {
            "__getitem__ runs in": "who asks the dataset for a sample, if there are workers?",
            "collate_fn runs in": "the worker combines the samples, so that one batch is sent instead of many samples.",
            "images decoded in 3 epochs, in __getitem__": "each epoch asks for each of the 32 images. Does anything "
            "remember them?",
            "images decoded in 3 epochs, if the writer has decoded them": "the file holds the decoded images.",
            "bytes of a batch, as uint8": "8 images of 32 x 32 pixels and 3 channels, with one byte each.",
            "bytes of a batch, as float32": "8 images of 32 x 32 pixels and 3 channels, with four bytes each.",
        },
    )
    return "Decode in the workers, send small types, and let the device convert them. Or decode once, and store more."


FORMATS = ("many files", "one .npy", "records", "chunks", "tar in order")
"""What `choose` compares."""
SAMPLES, PER_CHUNK, BLOCK = 256, 32, 131_072
"""Samples of a use, samples of a chunk, and bytes that are read at once from a tar file."""
GOOD = 1.5
"""A format is a right answer if it costs at most that many times what the best one costs."""


class Use(NamedTuple):
    """What somebody wants to do with samples, and what reading costs there."""

    what: str
    """The samples, and how they are read."""
    samples: list[bytes]
    shuffled: bool
    """Whether any sample may come next. Otherwise they are read in order, and shuffled in a buffer."""
    request: float
    """Milliseconds for a request."""
    bandwidth: float
    """Bytes that are read or written in a millisecond."""
    remote: bool = False
    """Whether each read of the program is a request, as in object storage. Otherwise opens and jumps are."""
    edited: bool = False
    """Whether it is not read, but one sample is replaced by a longer one."""

    def milliseconds(self, kind: str) -> float:
        """What an epoch costs with one of `FORMATS`, or replacing a sample. Infinite, if it cannot do that."""
        disk = Disk()
        decompressed = _epoch(kind, disk, self.samples, shuffled=self.shuffled)
        if self.edited:
            written = len(self.samples[0]) if kind == "many files" else disk.written
            return self.request + written / self.bandwidth
        if self.shuffled and kind == "tar in order":
            return math.inf
        counts = disk.counts
        requests = counts.opens + (counts.reads if self.remote else counts.jumps)
        return (
            self.request * requests
            + counts.bytes / self.bandwidth
            + decompressed / DECOMPRESSED
        )


DECOMPRESSED = 300_000
"""Bytes that a core decompresses in a millisecond."""


def _epoch(kind: str, disk: Disk, samples: Sequence[bytes], *, shuffled: bool) -> int:
    """Write samples in a format and read them all. Returns how many bytes were decompressed."""
    order = (
        random.Random(0).sample(range(len(samples)), len(samples))
        if shuffled
        else range(len(samples))
    )
    longest = max(map(len, samples))
    filled = [sample.ljust(longest, b"\0") for sample in samples]
    if kind == "many files":
        for i, sample in enumerate(samples):
            disk.write(str(i), sample)
        for i in order:
            disk.open(str(i)).read()
    elif kind == "chunks":
        chunked = Chunks(disk, filled, PER_CHUNK, kept=1)
        for i in order:
            chunked[i]
        return chunked.decompressed * longest
    elif kind == "tar in order":
        disk.write(kind, _tar({str(i): sample for i, sample in enumerate(samples)}))
        file = disk.open(kind)
        while file.read(BLOCK):
            pass
    else:
        parts = filled if kind == "one .npy" else samples
        index = bytes(128 if kind == "one .npy" else 8 * len(samples) + 8)
        offsets = [0, *itertools.accumulate(map(len, parts))]
        disk.write(kind, index + b"".join(parts))
        file = disk.open(kind)
        file.read(len(index))
        for i in order:
            file.seek(len(index) + offsets[i])
            file.read(len(parts[i]))
    return 0


def uses() -> dict[str, Use]:
    """What to choose a format for, by letter."""
    tokens = [noise(1000, seed) for seed in range(SAMPLES)]
    photos = [noise(1000 + 977 * seed % 3000, seed) for seed in range(SAMPLES - 1)] + [
        noise(60_000)
    ]
    sensors = [
        bytes(int(value > 250) for value in noise(4000, seed))
        for seed in range(SAMPLES)
    ]
    local = {"request": 0.1, "bandwidth": 100_000}
    return {
        "A": Use(
            "tokens, 1000 bytes each, in any order", tokens, shuffled=True, **local
        ),
        "B": Use(
            "photos of 1 to 4 kB and one of 60 kB, in any order",
            photos,
            shuffled=True,
            **local,
        ),
        "C": Use(
            "the same photos, in object storage, in order",
            photos,
            False,
            50,
            100_000,
            remote=True,
        ),
        "D": Use(
            "sensors, 4000 bytes that compress well, in order, slow network",
            sensors,
            False,
            1,
            1_000,
        ),
        "E": Use(
            "the same photos, people replace one by a longer one",
            photos,
            False,
            edited=True,
            **local,
        ),
    }


def costs() -> dict[str, dict[str, float]]:
    """The milliseconds of each use with each format."""
    return {
        name: {kind: use.milliseconds(kind) for kind in FORMATS}
        for name, use in uses().items()
    }


@unit.task("10.10 Choose a format")
def choose(answer: Any, *, measured: Mapping[str, Mapping[str, float]]) -> str:
    """`answer` names a format for each use."""
    if isinstance(answer, dict):
        for value in answer.values():
            if value is not ... and value not in FORMATS:
                raise Hint(f"{value!r} is none of {', '.join(map(repr, FORMATS))}.")
    why = {
        "A": "All samples have the same size, and they do not compress. What needs no open and no decompression?",
        "B": "The photos differ in length, and any of them may come next. What is read for a photo of 1000 bytes?",
        "C": "A request costs 50 ms, however little it reads. Which format is read in large blocks?",
        "D": "The bytes are what is scarce, and neighbors are read together. Which format has few bytes?",
        "E": "What must be written again in one large file if a sample in it becomes longer?",
    }
    right = {
        name: min(kinds, key=lambda kind: kinds[kind])
        for name, kinds in measured.items()
    }
    if isinstance(answer, dict) and set(answer) == set(right):
        for name, kinds in measured.items():
            given, best = answer[name], right[name]
            if given is ...:
                continue
            if kinds[given] <= GOOD * kinds[best]:
                right[name] = given
            elif math.isinf(kinds[given]):
                why[name] = f"this format is read in order only. {why[name]}"
            else:
                why[name] = (
                    f"this costs {kinds[given]:,.1f} ms, and the best {kinds[best]:,.1f} ms. {why[name]}"
                )
    choices(answer, right, why)
    return "There is no best format. Ask for the order, the sizes, the cost of a request, and who changes the data."
