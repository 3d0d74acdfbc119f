"""Checks of unit 7: seeds and randomness in workers."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any

import numpy as np
import torch

from nbloader import DataLoader

from . import Hint, Unanswered, Unit, attempt, choices, counts

unit = Unit()
progress = unit.progress

LIMIT = 60.0
"""Seconds that an epoch may take on a busy machine."""
LENGTH, BATCH_SIZE = 48, 4
"""Samples of an epoch and of a batch."""


@unit.task("7.1 A generator has a state")
def same_state(function: Callable[[Any, Any], Any]) -> str:
    """`same_state(a, b)` compares two generators of NumPy, and changes neither."""

    def made(seed: int, draws: int) -> np.random.Generator:
        generator = np.random.default_rng(seed)
        generator.random(draws)
        return generator

    moved = made(8, 0)
    moved.bit_generator.state = made(5, 3).bit_generator.state
    cases = (
        (
            "two generators with the same seed, which have drawn nothing",
            made(5, 0),
            made(5, 0),
            True,
        ),
        ("two generators with different seeds", made(5, 0), made(6, 0), False),
        (
            "two generators with the same seed, and one of them has drawn a number",
            made(5, 1),
            made(5, 0),
            False,
        ),
        (
            "two generators with the same seed, which have drawn three numbers each",
            made(5, 3),
            made(5, 3),
            True,
        ),
        (
            "two generators with the same seed, which have drawn two and three numbers",
            made(5, 2),
            made(5, 3),
            False,
        ),
        (
            "two generators with different seeds, and the state of one was copied to the other",
            made(5, 3),
            moved,
            True,
        ),
    )
    for what, a, b, expected in cases:
        before = copy.deepcopy((a.bit_generator.state, b.bit_generator.state))
        answer = attempt(function, a, b)
        if (a.bit_generator.state, b.bit_generator.state) != before:
            raise Hint(
                "your function has changed the generators: who draws from them afterwards gets other numbers. Look at "
                "the states, or draw from copies (`copy.deepcopy`)."
            )
        if not isinstance(answer, (bool, np.bool_)):
            raise Hint(f"the function returns True or False, not {answer!r}.")
        if answer != expected:
            raise Hint(
                f"{what}: from now on they draw {'the same' if expected else 'different'} numbers, and you return "
                f"{answer}."
            )
    return "The seed is only the beginning. What counts is the state."


@unit.task("7.2 Whose state")
def changes(answer: Any, *, measured: Mapping[str, str]) -> str:
    """`answer` says which global generator each line changes."""
    choices(
        answer,
        measured,
        {
            "random.shuffle([1, 2, 3])": "shuffling needs random numbers. Which module does it?",
            "np.random.permutation(3)": "which module does it? The three know nothing of each other.",
            "np.random.default_rng(0).random()": "what does `default_rng` make, and who else uses it?",
            "torch.rand(2, generator=torch.Generator())": "the generator is given. Is it the global one?",
            "torch.manual_seed(0)": "seeding changes a state, too. Does torch know the generators of the others?",
            "list(DataLoader([1, 2, 3]))": "at the beginning of an epoch the loader draws a number, even if it does "
            "not shuffle. Run the experiment: whose number is it?",
        },
    )
    return "Each epoch begins with a draw from torch's generator."


@unit.task("7.3 The classic bug")
def forked(answer: Any, *, measured: Mapping[str, int]) -> str:
    """`answer` predicts how many numbers are different if two forked processes draw five each."""
    copied = (
        "each process has a copy of the state. Is it changed before the process draws?"
    )
    counts(
        answer,
        measured,
        {
            "np.random.random()": copied,
            "torch.rand(1)": copied,
            "rng.random()": "a copy of `rng` is a generator in the same state.",
            "np.random.default_rng().random()": "this generator is made after the fork, and without a seed. Where does "
            "its state come from?",
            "random.random()": "run the experiment. Python does something for its own module when a process is forked, "
            "and for no other generator.",
        },
        "different numbers",
    )
    return "Python seeds `random` after a fork. Nobody does it for NumPy, torch, and generators of your own."


@unit.task("7.4 What torch's loader repairs")
def held(answer: Any, *, measured: Mapping[str, int]) -> str:
    """`answer` predicts how many of 96 numbers are different."""
    copies = "all copies of the generator begin in the same state. How many numbers does one copy draw in an epoch?"
    counts(
        answer,
        measured,
        {
            "no workers": "there is one generator, that of the notebook, and it never begins again.",
            "1 worker": "the worker of the second epoch is a new process. It has a copy of the notebook's generator, "
            "which has drawn nothing.",
            "2 workers": copies,
            "3 workers": copies,
            "2 workers that stay": "in the second epoch the same two copies go on. But both still draw the same "
            "numbers.",
        },
        "different numbers",
    )
    return f"With 3 workers, {measured['3 workers']} numbers were all there was. And a test without workers shows 96."


@unit.task("7.5 Seeds for each worker, or for each batch")
def workers(answer: Any, *, measured: Mapping[str, int]) -> str:
    """`answer` predicts how many batches are equal with two numbers of workers."""
    torchs = "a batch is equal if the worker with the same number makes it, after as many batches. Which are these?"
    ours = "the numbers of a batch depend on the base seed of the epoch and on the batch. Is one of these another one?"
    counts(
        answer,
        measured,
        {
            "torch, 1 or 2 workers": torchs,
            "torch, 2 or 3 workers": torchs,
            "nbloader, 1 or 2 workers": ours,
            "nbloader, 2 or 3 workers": ours,
        },
        "equal batches",
    )
    return "In torch's loader only the first batch of each worker that both epochs have is the same."


@unit.task("7.6 The seed of a batch")
def seed_of(function: Callable[[int, int, int], Any]) -> str:
    """`seed_of(base_seed, epoch, batch)` is a seed for `np.random.default_rng`."""
    bases, epochs = (7, 8, 9, 2**62 + 12_345), (0, 1, 2, 10, 11, 100, 101, 999)
    # NumPy joins the numbers of a tuple. Each group has the same seed, if a number before the last one is too long.
    joined = [
        (7, 3, 5),
        (7 + 3 * 2**32, 5, 0),  # as (base, epoch, batch)
        (7 + 30_000_005 * 2**32, 0, 0),  # as (base, epoch * 10**7 + batch)
        (
            (7003 + 5 * 2**32) // 1000,
            (7003 + 5 * 2**32) % 1000,
            0,
        ),  # as (base * 1000 + epoch, batch)
        (7, 500, 0),
        (
            1 + 7 * 2**32,
            70,
            5_032_704,
        ),  # as (epoch * 10**7 + batch, base): the first number is 2**32 less
    ]
    batches = (
        *range(120),
        *(10**power + more for power in (3, 4, 5, 6) for more in (-1, 0, 1)),
        9_999_999,
    )
    attempt(
        lambda: _seeds(function, [*joined, *itertools.product(bases, epochs, batches)]),
        limit=LIMIT,
    )
    return (
        "nbloader draws another base seed for each epoch. It mixes this one with the number of the batch, and seeds "
        "the global generators with the result."
    )


def _seeds(function: Callable[[int, int, int], Any], numbers: Any) -> None:
    drawn: dict[tuple[int, ...], tuple[int, int, int]] = {}
    for numbered in numbers:
        call = f"seed_of{numbered}"
        seed, again = function(*numbered), function(*numbered)
        if seed is ...:
            raise Unanswered("your function still returns the dots: replace them.")
        if seed is None:
            raise Hint(
                f"{call} is None: then NumPy takes a seed from the operating system, which nobody can repeat."
            )
        try:
            draws = tuple(np.random.default_rng(seed).integers(2**63, size=2).tolist())
            repeated = tuple(
                np.random.default_rng(again).integers(2**63, size=2).tolist()
            )
        except (TypeError, ValueError) as error:
            raise Hint(
                f"{call} is {seed!r}, and `np.random.default_rng` does not take it: {error}."
            ) from error
        if draws != repeated:
            raise Hint(
                f"{call} was called twice, and the seeds differ. No batch could be made a second time."
            )
        other = drawn.setdefault(draws, numbered)
        if other != numbered:
            seeds = [
                made
                for made in (seed, function(*other))
                if isinstance(made, (tuple, list))
            ]
            long = any(
                isinstance(part, Integral) and part >= 2**32
                for made in seeds
                for part in made
            )
            raise Hint(
                f"{call} and seed_of{other} give the same seed, so these two batches would have the same augmentations."
                + (
                    " Which number of your tuple needs more than 32 bits?"
                    if long
                    else ""
                )
            )


def _epochs(
    cls: Callable[[int, int], Any], seed: int, num_workers: int
) -> list[list[float]]:
    """The samples of two epochs of the student's dataset."""

    def run() -> list[list[float]]:
        torch.manual_seed(seed)
        dataset = cls(LENGTH, seed)
        made = []
        with DataLoader(
            dataset, batch_size=BATCH_SIZE, num_workers=num_workers, collate_fn=list
        ) as loader:
            for epoch in range(2):
                dataset.epoch = epoch
                made.append([_sample(sample) for batch in loader for sample in batch])
        return made

    made: list[list[float]] = attempt(run, limit=LIMIT)
    return made


def _sample(sample: Any) -> float:
    if sample is ...:
        raise Unanswered("a sample is still the dots: replace them.")
    try:
        value = float(np.asarray(sample).item())
    except (TypeError, ValueError):
        raise Hint(
            f"a sample is a random number from 0 to 1, not {sample!r}."
        ) from None
    if not 0 <= value <= 1:
        raise Hint(f"a sample is a random number from 0 to 1, not {value}.")
    return value


@unit.task("7.7 Repair it")
def repair(cls: Callable[[int, int], Any]) -> str:
    """The samples of `Augmented(length, seed)` are different, and belong to the seed."""
    alone = _epochs(cls, 1, num_workers=0)
    if len(alone[0]) != LENGTH:
        raise Hint(f"an epoch has {len(alone[0])} samples, and the length is {LENGTH}.")
    with warnings.catch_warnings():
        # The hints say the same.
        warnings.filterwarnings("ignore", "The random generator")
        shared = _epochs(cls, 1, num_workers=2)
    for who, epochs in (("without workers", alone), ("with two workers", shared)):
        found = len(set(epochs[0]))
        if found < LENGTH:
            raise Hint(
                f"{who}, the number of different samples in an epoch of {LENGTH} is {found}. "
                + (
                    "Each worker has a copy of something that draws. What is it?"
                    if epochs is shared
                    else "What tells the generators of two samples apart?"
                )
            )
    for who, epochs in (("without workers", alone), ("with two workers", shared)):
        found = len(set(epochs[0]) & set(epochs[1]))
        if found:
            raise Hint(
                f"{who}, {found} numbers of epoch 0 come again in epoch 1. Which samples of the two epochs have the "
                "same seed?"
            )
    if _epochs(cls, 1, num_workers=0) != alone:
        raise Hint(
            "a second run with the same seed has other samples. What seeds your generator?"
        )
    if shared != alone:
        raise Hint(
            "with two workers the samples are other ones than without workers. So they depend on the worker, or on "
            "what it has made before. What does the loader seed for each batch, and what else belongs to one sample "
            "only?"
        )
    if set(_epochs(cls, 2, num_workers=0)[0]) & set(alone[0]):
        raise Hint(
            "a run with seed 2 has numbers of the run with seed 1. What became of the seed?"
        )
    return "Different samples, and the same again tomorrow."


@unit.task("7.8 Which program is reproducible")
def programs(answer: Any, *, measured: Mapping[str, str]) -> str:
    """`answer` says what five programs have in common with their second runs."""
    words = ("everything", "not the order", "only the indices", "nothing")
    if isinstance(answer, dict):
        for value in answer.values():
            if value is not ... and value not in words:
                raise Hint(
                    f"the answers are {', '.join(map(repr, words))}. {value!r} is none of them."
                )
    choices(
        answer,
        measured,
        {
            "a": "which generator determines the shuffled order and the base seed? Is it seeded?",
            "b": "the base seed is the same. Does the number of workers matter to nbloader? Look at 7.5.",
            "c": "`torch.manual_seed` determines the order. What determines the state of a generator without a seed?",
            "d": "`generator=` is drawn from in place of torch's global one: for the order, and for the base seed.",
            "e": "a batch has its seed, whenever it is made. But which batch is delivered last today, and tomorrow?",
        },
    )
    return "Seed torch, draw from what the loader seeds, and keep the order."


@unit.task("7.9 The same batch again")
def replay(function: Callable[[Any, Any], Any], cls: Callable[[], Any]) -> str:
    """`changed_batches(loader, kept)` finds the batches that were changed after they were delivered."""
    torch.manual_seed(3)
    with DataLoader(
        cls(), batch_size=BATCH_SIZE, num_workers=2, shuffle=True
    ) as loader:
        kept = [
            (epoch, n, batch.clone())
            for epoch in range(2)
            for n, batch in enumerate(loader)
        ]
        missing = {(epoch, n) for epoch, n, batch in kept if batch.isnan().any()}
        others = [one for one in kept if one[:2] not in missing]
        tiny, large = others[2], others[-3]
        tiny[2][1, 2] = torch.nextafter(
            tiny[2][1, 2], torch.tensor(2.0, dtype=torch.float64)
        )
        large[2][:] -= large[2].mean()
        found = attempt(lambda: _pairs(function(loader, list(kept))), limit=LIMIT)
    expected = {tiny[:2], large[:2]}
    if extra := found & missing:
        raise Hint(
            f"batch {min(extra)} was not changed, but a number is missing in it. nan is not equal to itself. "
            "Compare the bytes, not the numbers."
        )
    if extra := found - expected:
        raise Hint(f"you return a batch that was not changed: {min(extra)}.")
    if large[:2] not in found:
        raise Hint(
            f"all numbers of batch {large[:2]} were changed in place, and you do not return it."
        )
    if tiny[:2] not in found:
        raise Hint(
            f"one number of batch {tiny[:2]} was changed in its last bit, and you do not return it. Are you asking "
            "whether numbers are close, or whether all bytes are equal?"
        )
    return "The loop has changed them, not the loader. A seed for each batch makes this test possible."


def _pairs(answer: Any) -> set[tuple[int, int]]:
    if answer is ...:
        raise Unanswered("your function still returns the dots: replace them.")
    if not isinstance(answer, Iterable) or isinstance(answer, (str, bytes)):
        raise Hint(
            f"the function returns a list of pairs (epoch, number), not {type(answer).__name__}."
        )
    pairs = [tuple(pair) if isinstance(pair, Iterable) else (pair,) for pair in answer]
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(n, (int, np.integer)) for n in pair):
            raise Hint(
                f"the list should have pairs (epoch, number) and nothing else, but {pair!r} is in it."
            )
    return {(int(epoch), int(n)) for epoch, n in pairs}
