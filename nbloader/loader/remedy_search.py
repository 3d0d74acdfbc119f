"""Find remedies for the slowest lines, and try them in a spare worker."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nbloader.diagnose.what_if import Prediction
from nbloader.diagnose.without_line import LineTime
from nbloader.errors import NbloaderError
from nbloader.metrics.hot_lines import HotLine, HotLines
from nbloader.remedies.kinds import REMEDIES
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.results import Remedies, RemedyResult, best_of, summed
from nbloader.remedies.site import locate
from nbloader.remedies.trial import Trial
from nbloader.workers.in_process import private_generators

MIN_SHARE = 0.05
"""Lines with a smaller share of the workers' time are not looked at."""
LINES = 5
"""Maximum number of lines that are looked at."""
GROUP = 5
"""Number of samples that are measured together."""
MIN_GAIN = 1.1
"""A remedy that gains less, or loses, is not shown."""
PICTURE_CHANNELS = (1, 3, 4)
TRIAL_TIMEOUT = 60.0
"""Seconds that one measurement may take."""

RunTrial = Callable[[Trial], "list[Any]"]
"""Runs a trial in a spare worker, and returns its measurements."""
Predict = Callable[[LineTime, str], Prediction]
"""Predicts the rate of the loop from the shares of the workers' time that are saved, and the name of the change."""


class Samples(NamedTuple):
    """The samples of a loader, and how it produces them."""

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None
    """None if samples are not collated."""
    indices: Sequence[Any]
    """The dataset indices on which to try."""
    iterable: bool
    """Whether the dataset is iterable: then only the number of indices counts."""
    batch_size: int = 1
    """Number of samples in a batch."""


class Produce:
    """Makes a batch from dataset indices, or from the first samples of an iterable dataset, as a worker would."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __call__(self, indices: Sequence[Any]) -> Any:
        """Return the samples, collated if the loader does that."""
        dataset, collate_fn, _indices, iterable, _size = self._samples
        if iterable:
            fetched = list(itertools.islice(iter(dataset), len(indices)))
        elif hasattr(dataset, "__getitems__"):
            fetched = dataset.__getitems__(list(indices))
        else:
            fetched = [dataset[index] for index in indices]
        return fetched if collate_fn is None else collate_fn(fetched)


def search(hot: HotLines, samples: Samples, run: RunTrial, predict: Predict) -> Remedies:
    """Return the remedies for the slowest lines, best first.

    Args:
        hot: The lines.
        samples: The samples on which to try; their number is 0 if nothing is tried.
        run: See `RunTrial`.
        predict: See `Predict`.
    """
    lines = [line for line in hot if line.line and line.share >= MIN_SHARE][:LINES]
    if not lines:
        return Remedies((), str(hot) if not hot.lines else f"No line of your code takes {MIN_SHARE:.0%} of the time.")
    roots = [part for part in (samples.dataset, samples.collate_fn) if part is not None]
    picture = _picture(samples)
    found: list[RemedyResult] = []
    seen: set[str] = set()  # two lines of a function may lead to the same code
    for line in lines:
        site = locate(line, roots, picture)
        if site is None:
            continue
        for remedy in REMEDIES:
            proposals = [proposal for proposal in remedy.propose(site) if proposal.code not in seen]
            seen.update(proposal.code for proposal in proposals)
            if proposals:
                found.append(_tried(line, remedy.name, proposals, samples, run))
    shown = [
        _predicted(one, hot, predict)
        for one in found
        if not one.samples or (one.gain >= MIN_GAIN and not one.difference.problem)
    ]
    note = f"No remedy is known for {lines[0].place}: {lines[0].source}" if not found else _no_gain(found)
    return Remedies(sorted(shown, key=lambda one: -one.gain), note)


def _predicted(found: RemedyResult, hot: HotLines, predict: Predict) -> RemedyResult:
    """Add the prediction of the loop's rate: the samples take less of the workers' time, in this proportion."""
    if not found.samples or not found.before.seconds:
        return found
    whole = found.before.seconds
    computing = (found.before.computing - found.after.computing) / whole
    waiting = (found.before.waiting - found.after.waiting) / whole
    saved = LineTime(max(0.0, computing), max(0.0, waiting), hot.samples)
    return replace(found, prediction=predict(saved, found.name))


def _no_gain(found: Sequence[RemedyResult]) -> str:
    tried = ", ".join(f"{one.name} ({one.gain:.2f} x, {one.difference})" for one in found)
    return f"What is known for these lines gains nothing here: {tried}."


def _tried(line: HotLine, name: str, proposals: Sequence[Proposal], samples: Samples, run: RunTrial) -> RemedyResult:
    if not samples.indices:
        return RemedyResult(line, name, proposals[0])
    roots = [part for part in (samples.dataset, samples.collate_fn) if part is not None]
    groups = _groups(line, samples)
    results = []
    for proposal in proposals:
        try:
            measured = run(Trial(Produce(samples), roots, groups, line, proposal))
        except Exception as error:  # noqa: BLE001 - of the present code, too, or a worker that died
            kind = type(error).__name__
            results.append(RemedyResult(line, name, proposal, problem=f"{kind}: {error}"))
            if isinstance(error, NbloaderError):
                break
            continue
        results.append(summed(line, name, proposal, measured))
    return best_of(results)


def _groups(line: HotLine, samples: Samples) -> list[Sequence[Any]]:
    """Return the indices that are measured together: a few, or a whole batch for a line that collates."""
    if samples.iterable:
        return [samples.indices, samples.indices]
    collates = samples.batch_size > GROUP and locate(line, [samples.dataset]) is None
    size = samples.batch_size if collates else min(GROUP, samples.batch_size)
    indices = samples.indices
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def _picture(samples: Samples) -> tuple[int, int] | None:
    """Read one sample, and return the width and height of its largest picture; None if it has none."""
    if samples.iterable or not samples.indices:
        return None
    try:
        with private_generators():
            sample = Produce(samples._replace(collate_fn=None))(samples.indices[:1])[0]
    except Exception:  # noqa: BLE001 - the sample is broken, which its epoch has said
        return None
    found = [size for part in _parts(sample) if (size := _size(part)) is not None]
    return max(found, key=lambda size: size[0] * size[1], default=None)


def _parts(sample: Any) -> list[Any]:
    if isinstance(sample, dict):
        return list(sample.values())
    return list(sample) if isinstance(sample, (list, tuple)) else [sample]


def _size(part: Any) -> tuple[int, int] | None:
    if hasattr(part, "getbands"):  # a picture of PIL
        return part.size  # type: ignore[no-any-return]
    shape = tuple(getattr(part, "shape", ()))
    if len(shape) != 3 or (not isinstance(part, np.ndarray) and not hasattr(part, "detach")):  # noqa: PLR2004
        return None
    if shape[0] in PICTURE_CHANNELS:
        return shape[2], shape[1]
    return (shape[1], shape[0]) if shape[2] in PICTURE_CHANNELS else None


def indices_of(dataset: Any, sampler: Any, count: int, batch_size: int) -> list[Any]:
    """Return dataset indices on which to try: spread over the dataset, or the first ones that its sampler yields.

    Args:
        dataset: The dataset.
        sampler: What yields its indices.
        count: Number of samples on which to try; 0 for none. There are at least two batches more, for what is done once
            per process.
        batch_size: Number of samples in a batch.
    """
    count = count and max(count + GROUP, 3 * batch_size)
    try:
        length = len(dataset)
        drawn = random.Random(0).sample(range(length), min(count, length))  # noqa: S311 - not the global generator
    except TypeError:  # it has no length
        with private_generators():
            taken: list[Any] = []
            for indices in itertools.islice(iter(sampler), count):
                taken += indices if isinstance(indices, (list, tuple)) else [indices]
        return taken[:count]
    return sorted(drawn)
