"""The remedies that were found, as a table: what each line costs now, and what it costs as it is written instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import overload

from nbloader._util.format import clean, duration, percent, plural
from nbloader.diagnose.what_if import Prediction
from nbloader.metrics.hot_lines import HotLine
from nbloader.remedies.difference import EQUAL, Difference, largest
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.trial import Cost, Measured

CLOSE = 0.025
"""Values are close if they differ, on average, by at most this share of their range."""
_SOURCE = 70
NOTHING = Cost(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class RemedyResult:
    """A line, what to write instead, and what that has gained on some samples."""

    line: HotLine
    """The slow line."""
    name: str
    """Name of the remedy, such as "full-size-jpeg"."""
    proposal: Proposal
    samples: int = 0
    """Number of samples on which it was tried; 0 if it was not."""
    before: Cost = NOTHING
    """What a sample takes now."""
    after: Cost = NOTHING
    """What a sample takes with the rewritten code."""
    difference: Difference = EQUAL
    """How much the samples differ."""
    problem: str = ""
    """Why it could not be tried; "" if it was."""
    prediction: Prediction | None = None
    """What the loop's rate would be; None if it was not predicted."""

    @property
    def gain(self) -> float:
        """How many times as fast a sample is produced; 0 if that was not measured."""
        return self.before.seconds / self.after.seconds if self.samples and self.after.seconds else 0.0

    @property
    def keeps_values(self) -> bool:
        """Whether the samples are equal or close."""
        found = self.difference
        return not found.problem and found.mean <= CLOSE * found.span if not found.equal else True

    @property
    def code(self) -> str:
        """The code to paste: what goes before the class or function, and the function."""
        return "\n\n".join(part.strip("\n") for part in (self.proposal.helper, self.proposal.code) if part)

    def __str__(self) -> str:
        """The remedy with its measurement and the code."""
        lines = [
            f"{percent(self.line.share)} of the workers' time: {clean(self.line.source, _SOURCE)} ({self.line.place})",
            f"  {self.proposal.why} {self.proposal.instead}",
            f"  {self.measurement()}",
        ]
        lines += [f"    {line}" for line in self.code.splitlines()]
        return "\n".join(lines)

    def measurement(self) -> str:
        """What was measured, as a sentence."""
        if not self.samples:
            return f"Not tried: {self.problem}." if self.problem else "Not tried."
        text = (
            f"Tried on {plural(self.samples, 'sample')}: {duration(self.before.seconds)} now, "
            f"{duration(self.after.seconds)} instead ({self.gain:.1f} x); the samples are "
            f"{'equal' if self.difference.equal else 'not equal: ' + str(self.difference)}."
        )
        if self.prediction is not None and self.prediction.speedup is not None:
            p = self.prediction
            text += f" The loop would be {p.speedup:.2f} x as fast ({p.low:.2f} to {p.high:.2f})."
        return text


class Remedies(Sequence[RemedyResult]):
    """What could be written instead of the slowest lines, best first; `print` it, or leave it as a cell's last line.

    Args:
        results: The remedies.
        note: What to say if there are none.
    """

    def __init__(self, results: Sequence[RemedyResult], note: str = "") -> None:
        self._results = tuple(results)
        self._note = note

    def __len__(self) -> int:
        """Return the number of remedies."""
        return len(self._results)

    @overload
    def __getitem__(self, position: int) -> RemedyResult: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[RemedyResult]: ...
    def __getitem__(self, position: int | slice) -> RemedyResult | Sequence[RemedyResult]:
        """Return a remedy; the one at 0 gains most."""
        return self._results[position]

    def __iter__(self) -> Iterator[RemedyResult]:
        """Iterate over the remedies, best first."""
        return iter(self._results)

    def __repr__(self) -> str:
        """All remedies as text."""
        return "\n\n".join(map(str, self._results)) or self._note

    def _repr_html_(self) -> str:
        """Return a table, with the code of each remedy to unfold."""
        if not self._results:
            return f"<p>{escape(self._note)}</p>"
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in _COLUMNS)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, self._results))}</tbody></table>"


_COLUMNS = ("Line", "Why, and what instead", "Now", "Instead", "Gain", "Samples", "Loop")


def _row(found: RemedyResult) -> str:
    line = found.line
    why = escape(f"{found.proposal.why} {found.proposal.instead}")
    cells = [
        f"{percent(line.share)} <code>{escape(clean(line.source, _SOURCE))}</code><br>{escape(line.place)}",
        f"{why}<details><summary>Code</summary><pre>{escape(found.code)}</pre></details>",
    ]
    if found.samples:
        p = found.prediction
        cells += [
            duration(found.before.seconds), duration(found.after.seconds), f"{found.gain:.1f} x",
            escape(str(found.difference)), f"{p.speedup:.2f} x" if p is not None and p.speedup is not None else "",
        ]  # fmt: skip
        body = "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells)
    else:
        body = "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells)
        body += f'<td colspan="5" style="text-align:left">{escape(found.measurement())}</td>'
    return f"<tr>{body}</tr>"


def summed(line: HotLine, name: str, proposal: Proposal, measured: Sequence[Measured]) -> RemedyResult:
    """Sum up the measurements of a trial."""
    problem = next((one.problem for one in measured if one.problem), "" if measured else "no sample could be read")
    if problem:
        return RemedyResult(line, name, proposal, problem=problem)
    samples = sum(one.samples for one in measured)
    apart = EQUAL
    for one in measured:
        apart = largest(apart, one.difference)
    before, after = (
        Cost(sum(cost.computing for cost in costs) / samples, sum(cost.waiting for cost in costs) / samples)
        for costs in ([one.before for one in measured], [one.after for one in measured])
    )
    return RemedyResult(line, name, proposal, samples, before, after, apart)


def best_of(results: Sequence[RemedyResult]) -> RemedyResult:
    """Return the result to show of several proposals for one line: the fastest one that keeps the values."""
    return max(results, key=lambda one: (bool(one.samples), one.keeps_values, one.gain))
