"""Checks of unit 8: streams, shards and ranks."""

from __future__ import annotations

import collections
import contextlib
import json
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from nbloader import DataLoader, get_worker_info

from . import Hint, Unit, attempt, choices

unit = Unit()
progress = unit.progress

LIMIT = 60.0
"""Seconds for code that starts workers."""
TIMEOUT = 20
"""Seconds that a loader waits for a batch."""
SEEDS = 2000
"""Orders of a shuffle buffer that a check looks at."""


@contextlib.contextmanager
def text_files(*lengths: int) -> Iterator[list[Path]]:
    """Write one text file for each length, and remove them afterwards.

    The lines of the first file are a0, a1, ..., those of the second b0, b1, ... No file ends with a newline.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            Path(folder) / f"{letter}.txt" for letter in "abcdefgh"[: len(lengths)]
        ]
        for path, length in zip(paths, lengths, strict=True):
            path.write_text(
                "\n".join(f"{path.stem}{i}" for i in range(length)), encoding="ascii"
            )
        yield paths


class WholeFiles(IterableDataset):  # type: ignore[type-arg]
    """The lines of files. Worker w of n reads the files w, w + n, w + 2 n, ..."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[str]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for path in self.paths[first::step]:
            yield from path.read_text(encoding="ascii").splitlines()


@unit.task("8.1 A stream of lines")
def lines(cls: Callable[[Any], Any]) -> str:
    """`Lines(paths)` yields the lines of some files, one after the other."""
    with text_files(3, 0, 2) as paths:
        paths[0].write_text("a0\n\ta1 \na2", encoding="ascii")
        dataset = attempt(cls, paths)
        if not isinstance(dataset, IterableDataset):
            raise Hint(
                "the class must inherit from `IterableDataset`: so a loader knows that it is a stream."
            )
        expected = ["a0", "\ta1 ", "a2", "c0", "c1"]
        made = attempt(lambda: list(dataset))
        if made != expected:
            said = f"three files hold the lines {expected}, and you yield {made}"
            if [str(line).rstrip("\n") for line in made] == expected:
                raise Hint(
                    f"{said}. A line that is read from a file ends with a newline: remove it."
                )
            if [str(line).strip() for line in made] == [
                line.strip() for line in expected
            ]:
                raise Hint(
                    f"{said}. Only the newline goes: blanks and tabs belong to the line."
                )
            if len(made) == len(expected):
                raise Hint(
                    f"{said}. The last line of a file has no newline: what does your code remove there?"
                )
            raise Hint(f"{said}.")
        again = attempt(lambda: list(dataset))
        if again != expected:
            raise Hint(
                f"the first epoch has {len(made)} lines, and the second {len(again)}. Each epoch calls `__iter__`, "
                "which must start at the beginning. What was made in `__init__` and is used up?"
            )
        first = [paths[0], paths[0].with_name("missing.txt")]
        try:
            attempt(lambda: next(iter(cls(first))))
        except Hint as hint:
            if "FileNotFoundError" in str(hint):
                raise Hint(
                    "the second of two files is missing, and even the first line does not come. Open a file when its "
                    "turn comes: a stream may be longer than the memory, and the next file may not be there yet."
                ) from None
            raise
    return "A stream has an order and no indices: the first line comes before the last file is opened."


@unit.task("8.2 How many samples")
def copies(
    delivered: Any,
    distinct: Any,
    with_nbloader: Any,
    *,
    measured: Mapping[str, tuple[int, int]],
) -> str:
    """`delivered` and `distinct` predict the samples of torch's loader. `measured` has both for each loader."""
    torch = {
        name.removeprefix("torch, "): counts
        for name, counts in measured.items()
        if name.startswith("torch")
    }
    why = {
        "0 workers": "the notebook itself calls `__iter__`, once.",
        "1 worker": "there is one copy of the dataset, in the worker.",
        "2 workers": "who calls `__iter__`, on which copy, and what does it yield?",
        "3 workers": "it is the same with two workers: who calls `__iter__`, and what does it yield?",
    }
    choices(delivered, {name: counts[0] for name, counts in torch.items()}, why)
    choices(
        distinct,
        {name: counts[1] for name, counts in torch.items()},
        dict.fromkeys(
            why,
            "how many different numbers are in the stream, however often they come?",
        ),
    )
    ways = ("the same number", "each sample once", "an error")
    if with_nbloader not in ways:
        raise Hint(f"`with_nbloader` is one of {', '.join(map(repr, ways))}.")
    if with_nbloader != "the same number":
        raise Hint(
            f"not {with_nbloader!r}. Compare the lines of both loaders, and read the notice."
        )
    return "Each worker has a copy of the dataset and iterates over all of it. Only nbloader says so."


@unit.task("8.3 Split the stream")
def split(cls: Callable[[Any], Any]) -> str:
    """`Split(paths)` yields each line once, whatever the number of workers."""
    with text_files(9, 4, 4, 3) as paths:
        expected = WholeFiles(paths)
        for workers in range(4):
            try:
                made, producers = attempt(_delivered, cls, paths, workers, limit=LIMIT)
            except Hint as hint:
                if workers == 0 and "NoneType" in str(hint):
                    raise Hint(
                        "without workers, get_worker_info() returns None. Which lines are yours then?"
                    ) from None
                raise
            when, question = (
                f"with {_count(workers, 'worker')}",
                " Which worker should yield it, and no other one?",
            )
            _each_once(when, collections.Counter(made), list(expected), question)
            if len(producers) < workers:
                raise Hint(
                    f"with {workers} workers each line comes once, but {len(producers)} of them made all batches. Each "
                    "worker needs lines of its own."
                )
    return "Each worker knows its number and how many there are. Together they yield each line once."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _delivered(
    cls: Callable[[Any], Any], paths: Sequence[Path], workers: int
) -> tuple[list[str], set[int]]:
    """The lines of an epoch, and which workers made its batches."""
    with DataLoader(
        cls(paths), batch_size=2, num_workers=workers, timeout=TIMEOUT if workers else 0
    ) as loader:
        made = [line for batch in loader for line in batch]
        return made, {record.worker for record in loader.events.batches()}


def _each_once(
    when: str,
    made: collections.Counter[Any],
    expected: Sequence[Any],
    question: str = "",
) -> None:
    """Raise a hint if something is missing, comes twice, or is unknown."""
    unknown = [one for one in made if one not in expected]
    missing = [one for one in expected if one not in made]
    twice = [one for one in expected if made[one] > 1]
    if unknown:
        raise Hint(
            f"{when}, {unknown[0]!r} comes, which is none of the {len(expected)} samples."
        )
    for wrong, how in ((missing, "never come"), (twice, "come more than once")):
        if wrong:
            said = f"{when}, {len(wrong)} of {len(expected)} samples {how}, for example {wrong[0]!r}."
            raise Hint(said + question)


@unit.task("8.4 Uneven shards")
def uneven(shards: Any, *, measured: Mapping[str, int]) -> str:
    """`shards` predicts the batches of two workers whose files differ in length."""
    choices(
        shards,
        measured,
        {
            "the worker that ends first": "worker 0 has files 0 and 2, worker 1 has files 1 and 3. Add up their lines.",
            "batches": "each worker makes batches of its own lines only. Round up for each worker, and then add.",
            "batches with fewer than 4 lines": "each of the two workers has fewer than 4 lines left at its end.",
            "lines lost with drop_last": "the last batch of each worker is dropped, if it is not full.",
            "lines lost with drop_last, without workers": "there is one shard, of 20 lines.",
        },
    )
    return "Each worker batches its own shard, so each may end with a smaller batch."


@unit.task("8.5 A shuffle buffer")
def buffer(function: Callable[..., Iterable[int]], moves: Any) -> str:
    """`shuffled(stream, size, rng)` is a shuffle buffer, and `moves` predicts how far an item can move."""
    earlier, later = attempt(_buffer, function, limit=LIMIT)
    choices(
        moves,
        {
            "positions earlier, at most": 3,
            "positions later, at most": 19,
            "positions, with a buffer of 1": 0,
        },
        {
            "positions earlier, at most": "the last item of a full buffer may be drawn first. How many are before it?",
            "positions later, at most": "an item may be unlucky each time. What ends its wait?",
            "positions, with a buffer of 1": "among how many items is drawn each time?",
        },
    )
    return f"In {SEEDS:,} orders an item came at most {earlier} positions earlier, and at most {later} later."


def _buffer(function: Callable[..., Iterable[int]]) -> tuple[int, int]:
    for length, size in ((20, 4), (50, 1), (3, 10), (0, 3), (30, 30)):
        orders = [_order(function, length, size, seed) for seed in range(20)]
        if length > 1 < size and all(order == list(range(length)) for order in orders):
            if length <= size:
                raise Hint(
                    f"the order of {length} items never changes with a buffer of {size}. Shuffle the rest, too."
                )
            raise Hint("the order never changes. Which item of the buffer do you draw?")
    if any(
        _order(function, 20, 4, seed) != _order(function, 20, 4, seed)
        for seed in range(20)
    ):
        raise Hint("with the same seed, two orders differ. Draw from `rng` only.")
    orders = [_order(function, 20, 4, seed) for seed in range(SEEDS)]
    if not any(max(order[:4]) > 3 for order in orders):
        raise Hint(
            f"in {SEEDS:,} orders, the first 4 items of the stream always come before all others. You shuffle blocks. "
            "When an item leaves the buffer, the next one of the stream takes its place."
        )
    earlier = max(item - at for order in orders for at, item in enumerate(order))
    later = max(at - item for order in orders for at, item in enumerate(order))
    if earlier > 3:
        raise Hint(
            f"with a buffer of 4, an item came {earlier} positions earlier. So you draw among {earlier + 1} items. How "
            "many does your buffer hold when you draw?"
        )
    firsts = collections.Counter(order[0] for order in orders)
    never = set(range(4)) - set(firsts)
    if never:
        raise Hint(
            f"in {SEEDS:,} orders, item {min(never)} never came first, although the buffer holds 4 items."
        )
    if min(firsts.values()) < SEEDS // 8:
        raise Hint(
            f"in {SEEDS:,} orders, the first 4 items came first {', '.join(str(firsts[i]) for i in range(4))} times. "
            "Draw each item of the buffer with the same chance."
        )
    return earlier, later


def _order(
    function: Callable[..., Iterable[int]], length: int, size: int, seed: int
) -> list[int]:
    """The order in which a stream of 0, 1, 2, ... comes. Looks how far the function reads ahead."""
    read = 0

    def stream() -> Iterator[int]:
        nonlocal read
        for item in range(length):
            read += 1
            yield item

    order: list[int] = []
    for item in function(stream(), size, random.Random(seed)):
        order.append(item)
        if read > len(order) + size:
            raise Hint(
                f"with a buffer of {size}, {read} items were read when number {len(order)} came: more than the buffer "
                "holds. A stream may be longer than the memory. Yield an item as soon as the buffer is full."
            )
    _each_once(
        f"with {length} items and a buffer of {size}",
        collections.Counter(order),
        range(length),
    )
    return order


@unit.task("8.6 One shard for each rank")
def shard(function: Callable[..., Any]) -> str:
    """`shard(indices, rank, ranks)` has the same length on all ranks."""
    for length, ranks in ((12, 3), (10, 3), (10, 4), (2, 5), (7, 1)):
        indices = list(range(length))
        random.Random(length).shuffle(indices)
        parts = [
            attempt(_part, function, list(indices), rank, ranks)
            for rank in range(ranks)
        ]
        said = f"{length} indices on {_count(ranks, 'rank')}"
        lengths = [len(part) for part in parts]
        made = {index for part in parts for index in part}
        if made - set(indices):
            raise Hint(f"{said}: {min(made - set(indices))!r} is none of the indices.")
        if len(set(lengths)) > 1:
            raise Hint(
                f"{said}: the ranks get {lengths} of them. A step waits for all ranks. Who waits in vain?"
            )
        missing = set(indices) - made
        if missing:
            raise Hint(
                f"{said}: no rank gets {min(missing)}. Repeat indices instead of leaving some out."
            )
        needed = -(-length // ranks)
        if lengths[0] > needed:
            raise Hint(
                f"{said}: each rank gets {lengths[0]}, and {needed} would be enough."
            )
    return (
        "All ranks take equally many steps. The price is a few samples that come twice."
    )


def _part(
    function: Callable[..., Iterable[Any]], indices: list[int], rank: int, ranks: int
) -> list[int]:
    return [int(index) for index in function(indices, rank, ranks)]


@unit.task("8.7 The same order again")
def epochs(orders: Any, *, measured: Mapping[str, Any]) -> str:
    """`orders` predicts what `set_epoch` changes."""
    choices(
        orders,
        measured,
        {
            "different orders without set_epoch": "the order depends on a seed and the number of the epoch.",
            "different samples without set_epoch": "rank 0 gets 6 of 12 samples. Which ones in the next epoch?",
            "different orders with set_epoch": "the order depends on a seed and the number of the epoch.",
            "each sample once if only rank 0 calls set_epoch": "each rank takes every second index of *its* order. "
            "What if the ranks have different orders?",
        },
    )
    return "All ranks draw the same order and take different parts of it. So all must know the epoch."


@unit.task("8.8 Ranks and workers")
def part(function: Callable[..., Any]) -> str:
    """`part(rank, ranks, worker, workers)` returns where a worker of a rank begins in the stream, and its step."""
    for ranks, workers in ((1, 1), (1, 3), (4, 1), (2, 2), (3, 2), (2, 3), (4, 3)):
        readers: dict[int, list[str]] = {number: [] for number in range(60)}
        for rank in range(ranks):
            for worker in range(workers):
                made = attempt(function, rank, ranks, worker, workers)
                call = f"part({rank}, {ranks}, {worker}, {workers})"
                if (
                    not isinstance(made, (tuple, list))
                    or len(made) != 2
                    or not all(isinstance(n, int) for n in made)
                ):
                    raise Hint(f"{call} returned {made!r}: a pair of ints is needed.")
                first, step = made
                if first < 0 or step < 1:
                    raise Hint(
                        f"{call} returned {made!r}. Can a stream be read like that?"
                    )
                for number in range(first, 60, step):
                    readers[number].append(f"worker {worker} of rank {rank}")
        said = f"{_count(ranks, 'rank')} with {_count(workers, 'worker')} each"
        for number, who in readers.items():
            if len(who) > 1:
                raise Hint(
                    f"{said}: sample {number} is read by {who[0]} and by {who[1]}."
                )
        for number, who in readers.items():
            if not who:
                raise Hint(
                    f"{said}: nobody reads sample {number}. How many readers are there in all?"
                )
        shares = collections.Counter(who for (who,) in readers.values())
        if (
            len(shares) < ranks * workers
            or max(shares.values()) > min(shares.values()) + 1
        ):
            raise Hint(
                f"{said}: each sample is read once, but some workers read many more samples than others."
            )
    return "There are ranks x workers readers, and each has a number of its own."


@unit.task("8.9 What remains")
def remains(rest: Any, *, measured: Mapping[str, int]) -> str:
    """`rest` predicts what comes after a loader has resumed."""
    choices(
        rest,
        measured,
        {
            "the first batch of the new loader": "the loop has processed the batches 0 to 4. What the workers had "
            "made in advance was never delivered.",
            "its batches until the epoch ends": "an epoch has 10 batches. How many are not delivered yet?",
            "samples that come twice": "a batch is delivered or not. The state says which ones are.",
            "samples that never come": "batches that were made in advance are made again.",
            "batches in its next epoch": "the next epoch is a whole one.",
            "samples that come twice with a plain loader": "it knows nothing of the first half. Which samples does its "
            "epoch have?",
        },
    )
    return "The state counts what the loop got, and not what the workers had read."


@unit.task("8.10 Save and resume")
def resume(first_part: Callable[..., Any], second_part: Callable[..., Any]) -> str:
    """`first_part(loader, count)` returns batches and a text, with which `second_part(loader, saved)` goes on."""
    samples = [str(number) for number in range(40)]
    _resume(
        first_part,
        second_part,
        "40 samples, shuffled",
        samples,
        lambda: samples,
        (0, 0),
        shuffle=True,
    )
    _resume(
        first_part,
        second_part,
        "workers",
        samples,
        lambda: samples,
        (2, 3),
        shuffle=True,
    )
    with text_files(9, 4, 4, 3) as paths:
        _resume(
            first_part,
            second_part,
            "a stream",
            list(WholeFiles(paths)),
            lambda: WholeFiles(paths),
            (2, 1),
        )
    return "Each sample came once, from two loaders: with and without workers, and from a stream."


def _resume(
    first_part: Callable[..., Any],
    second_part: Callable[..., Any],
    what: str,
    expected: Sequence[str],
    dataset: Callable[[], Any],
    workers: tuple[int, int],
    **arguments: Any,
) -> None:
    def make(count: int) -> DataLoader[Any]:
        timeout = TIMEOUT if count else 0
        return DataLoader(
            dataset(), batch_size=4, num_workers=count, timeout=timeout, **arguments
        )

    with make(workers[0]) as loader:
        made = attempt(first_part, loader, 3, limit=LIMIT)
    if not isinstance(made, tuple) or len(made) != 2:
        raise Hint(
            f"first_part returned {type(made).__name__}: a pair is needed, of the batches and a text."
        )
    batches, saved = made
    if not isinstance(saved, str):
        raise Hint(
            f"first_part saves a {type(saved).__name__}: a text is needed. What does json.dumps return?"
        )
    if not _is_state(saved):
        raise Hint(
            f"the text that first_part saves is not that of a state: {saved[:40]!r}."
        )
    if len(batches) != 3:
        raise Hint(f"first_part should process 3 batches, and returns {len(batches)}.")
    with make(workers[1]) as loader:
        rest = attempt(lambda: list(second_part(loader, saved)), limit=LIMIT)
    count = collections.Counter(
        sample for batch in [*batches, *rest] for sample in batch
    )
    seen = {sample for batch in batches for sample in batch}
    again = [sample for sample in seen if count[sample] > 1]
    missing = [sample for sample in expected if not count[sample]]
    if again and len(again) == len(seen):
        raise Hint(
            f"{what}: all {len(again)} samples of the first part come again. When is the state saved, and does the "
            "second loader know it when it begins to iterate?"
        )
    if missing:
        raise Hint(
            f"{what}: {len(missing)} of {len(expected)} samples never come. Had your loop taken a batch that it did "
            "not process when the state was saved?"
        )
    _each_once(what, count, expected)
    with make(workers[1]) as loader:
        try:
            loader.load_state_dict(json.loads(saved))
        except ValueError:
            # The text has more than the state, or the state in another form.
            return
        right = [list(batch) for batch in loader]
    made = [list(batch) for batch in rest]
    if made != right:
        how = (
            "in another order" if sorted(made) == sorted(right) else "in other batches"
        )
        raise Hint(
            f"{what}: each sample came once, but {how} than the first loader would have delivered them."
        )


def _is_state(saved: str) -> bool:
    try:
        return isinstance(json.loads(saved), dict)
    except ValueError:
        return False
