"""Find what slow samples have in common: indices, labels, file names, sizes. Pure.

A property is named only if nine of ten slow samples have it, if at most half of the usual samples have it, and if this
is unlikely to be chance: a probability below 1/1000, corrected for all properties that were examined.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nbloader._util.format import clean, megabytes, number
from nbloader.metrics.evidence import FILE_SIZE, OF_FILES

if TYPE_CHECKING:
    from nbloader.metrics.evidence import SampleFacts

CHANCE = 1e-3
"""Largest accepted probability of finding a property if samples are slow at random."""
MOST = 0.9
"""Share of the slow samples that must have a property."""
SPECIAL = 0.5
"""Share of the usual samples that may have it."""
AS_SPECIAL, NEGLIGIBLE = 1.5, 0.02
"""Properties count as equally special if the share of usual samples that have them is at most `AS_SPECIAL` times the
smallest such share, or at most `NEGLIGIBLE`. Of these, the most likely reason is named."""


class _Property(NamedTuple):
    """A property that slow samples may have in common."""

    text: str
    slow: int
    """Slow samples that have it."""
    of: int
    """Slow samples for which it is known."""
    usual: int
    """Usual samples that have it."""
    of_usual: int
    """Usual samples for which it is known."""
    looked_at: int
    """Number of properties of this kind from which it was chosen."""
    ends: int = 0
    """Slow samples that define the property, and therefore have it."""

    @property
    def usual_share(self) -> float:
        """Share of the usual samples that have it."""
        return self.usual / self.of_usual if self.of_usual else 1.0

    @property
    def chance(self) -> float:
        """Upper bound of the probability of finding such a property of this kind if samples are slow at random."""
        slow, of = self.slow - self.ends, self.of - self.ends
        return self.looked_at * _at_random(slow, of, self.usual, self.of_usual)


def in_common(slow: Sequence[Any], usual: Sequence[Any], facts: Mapping[Any, SampleFacts] | None = None) -> str:
    """Describe what slow samples have in common, such as "indices 400 to 799", "targets == 7" or "suffix .tif".

    Args:
        slow: Dataset indices of the slow samples, slowest first.
        usual: Dataset indices of samples that are not slow.
        facts: What is known about the samples, by index.

    Returns:
        The property; "" if none is found.
    """
    slow, usual = _distinct(slow), _distinct(usual)
    kinds = [*_facts(slow, usual, facts or {}), _steps(slow, usual), _ranges(slow, usual)]
    found = [
        p
        for p in itertools.chain.from_iterable(kinds)
        if p.slow >= MOST * p.of and p.usual_share <= SPECIAL and p.chance * len(kinds) < CHANCE
    ]
    limit = max(AS_SPECIAL * min((p.usual_share for p in found), default=0.0), NEGLIGIBLE)
    return next((p.text for p in found if p.usual_share <= limit), "")


def _distinct(indices: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(i for i in indices if isinstance(i, int | str)))  # other types may not be hashable


def _at_random(slow: int, of_slow: int, usual: int, of_usual: int) -> float:
    """Probability that at least `slow` slow samples have a property if they are drawn at random (Fisher's test)."""
    having, everyone = slow + usual, of_slow + of_usual
    ways = sum(math.comb(having, i) * math.comb(everyone - having, of_slow - i) for i in range(slow, of_slow + 1))
    return ways / math.comb(everyone, of_slow)


def _facts(slow: Sequence[Any], usual: Sequence[Any], facts: Mapping[Any, SampleFacts]) -> list[list[_Property]]:
    """Properties from what is known about the samples, grouped by kind; the likeliest reasons first."""
    of_slow, of_usual = [facts[i] for i in slow if i in facts], [facts[i] for i in usual if i in facts]
    sizes = dict.fromkeys(name for known in of_slow for name in known.sizes)
    values = dict.fromkeys(name for known in of_slow for name in known.values)
    return [
        *(
            _values(
                name, [k.values[name] for k in of_slow if name in k.values],
                [k.values[name] for k in of_usual if name in k.values],
            )
            for name in values
        ),
        *(
            _sizes(
                name, [k.sizes[name] for k in of_slow if name in k.sizes],
                [k.sizes[name] for k in of_usual if name in k.sizes],
            )
            for name in sizes
        ),
    ]  # fmt: skip


def _values(name: str, slow: Sequence[Hashable], usual: Sequence[Hashable]) -> list[_Property]:
    """The most frequent value of a label."""
    value, count = collections.Counter(slow).most_common(1)[0]
    there = {*slow, *usual}
    text = f"{name} {clean(value, 60)}" if name in OF_FILES else f"{name} == {clean(repr(value), 60)}"
    return [_Property(text, count, len(slow), usual.count(value), len(usual), len(there))]


def _sizes(name: str, slow: Sequence[float], usual: Sequence[float]) -> list[_Property]:
    """The largest size that almost all slow samples reach."""
    ordered = sorted(slow)
    least = ordered[len(slow) - math.ceil(MOST * len(slow))]
    reach = sum(size >= least for size in slow)
    text = f"{name} of at least {megabytes(least)}" if name == FILE_SIZE else f"{name} >= {number(least)}"
    return [_Property(text, reach, len(slow), sum(size >= least for size in usual), len(usual), 1)]


def _steps(slow: Sequence[Any], usual: Sequence[Any]) -> list[_Property]:
    """Every n-th index. The steps are common divisors of the differences between three slow samples."""
    numbers, others = [i for i in slow if type(i) is int], [i for i in usual if type(i) is int]
    steps = {math.gcd(b - a, c - b) for a, b, c in zip(numbers, numbers[1:], numbers[2:], strict=False)}
    found = []
    for step in sorted(steps, reverse=True):
        if step > 1:
            rest, count = collections.Counter(i % step for i in numbers).most_common(1)[0]
            usually = sum(i % step == rest for i in others)
            text = f"index % {step} == {rest}"
            found.append(_Property(text, count, len(numbers), usually, len(others), step * step))
    return found


def _ranges(slow: Sequence[Any], usual: Sequence[Any]) -> list[_Property]:
    """The shortest range of indices that contains almost all slow samples."""
    numbers, others = sorted(i for i in slow if type(i) is int), [i for i in usual if type(i) is int]
    inside = math.ceil(MOST * len(numbers))
    if inside < 2:  # noqa: PLR2004 - a range has two ends
        return []
    first, last = min(zip(numbers, numbers[inside - 1 :], strict=False), key=lambda ends: ends[1] - ends[0])
    count = sum(first <= i <= last for i in numbers)
    usually = sum(first <= i <= last for i in others)
    text = f"indices {first} to {last}"
    return [_Property(text, count, len(numbers), usually, len(others), math.comb(len(numbers), 2), ends=2)]
