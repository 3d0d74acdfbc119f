"""Predict the gain of other settings, and suggest those that are worth a click. Pure.

verdict, settings -> changes that may help -> predictions (what_if) -> those that agree with the sentence shown
-> a line of text, and suggestions
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nbloader._util.format import factor, plural
from nbloader.diagnose.causes import BY_NAME, CAUSES
from nbloader.diagnose.causes.slow_worker import SLOW_WORKER
from nbloader.diagnose.tune import MAX_PREFETCH
from nbloader.metrics.snapshot import NO_VERDICT, Outlook, Suggestion

if TYPE_CHECKING:
    from nbloader.diagnose.what_if import Prediction
    from nbloader.metrics.snapshot import Snapshot, Verdict

WORTH = 1.05
"""A change is suggested if its predicted speedup is at least this."""
MUCH = 1.1
"""Doubling the workers a second time is worth it only if it is faster by at least this factor."""
PRECISE = 1.5
"""Speedups below this are shown with two decimals."""
NOT_BY_SETTINGS = frozenset(cause.name for cause in CAUSES if cause.unmodeled or not cause.by_settings)
"""Names of causes that no number of workers and no prefetch window removes, or whose removal cannot be predicted."""


class Present(NamedTuple):
    """The present settings of a loader."""

    num_workers: int
    ahead: int
    """Batches per worker that are requested ahead at present."""
    max_workers: int
    """Largest number of workers to suggest; the present number if it must not change."""


class Change(NamedTuple):
    """The predicted gain of a change."""

    speedup: float
    text: str
    suggestion: Suggestion
    low: float
    """The lower end of the interval of `speedup`."""

    def agrees(self, shown: Verdict) -> bool:
        """Whether a verdict does not contradict this prediction."""
        claim = shown.larger_window if self.suggestion.num_workers is None else shown.more_workers
        return claim is None or claim == (self.speedup >= WORTH)

    @property
    def worth(self) -> bool:
        """Whether the loop would be faster, also at the lower end of the interval."""
        return self.speedup >= WORTH and self.low > 1.0


def by_settings(s: Snapshot) -> bool:
    """Whether other settings may help, so that predictions can stand beside the headline of a snapshot.

    They cannot beside a state ("paused", "starting"), a worker to restart, a loop that waits for a batch that hangs, or
    a cause that no setting removes.
    """
    limits = BY_NAME.keys() - NOT_BY_SETTINGS - {SLOW_WORKER.name}
    return s.cause in limits and not s.restart and s.stalled is None


def outlook(changes: Sequence[Change], shown: Verdict = NO_VERDICT) -> Outlook:
    """Describe predictions next to a verdict, without those that its sentence contradicts.

    Args:
        changes: The predictions.
        shown: The verdict that is shown with them.
    """
    found = [change for change in changes if change.agrees(shown)]
    worth = tuple(change.suggestion for change in found if change.worth)
    return Outlook("; ".join(change.text for change in found), worth)


def changes(cause: str, present: Present, predict: Callable[[dict[str, int]], Prediction]) -> tuple[Change, ...]:
    """Predict the gain of the changes that may help, the largest gain first.

    Args:
        cause: What limited the loop.
        present: The present settings.
        predict: Predicts the rate for other arguments of the loader.
    """
    if cause not in BY_NAME or cause in NOT_BY_SETTINGS:
        return ()
    found = []
    workers = _workers(present, predict)
    if workers is not None:
        count, prediction = workers
        name = plural(count, "worker")
        suggestion = Suggestion(f"Use {name}", f"loader.num_workers = {count}", num_workers=count)
        found.append(_change(name, suggestion, prediction))
    ahead = 2 * max(1, present.ahead)
    if present.num_workers and ahead <= MAX_PREFETCH:
        prediction = predict({"prefetch_factor": ahead})
        if prediction.speedup is not None:
            suggestion = Suggestion(
                f"Use prefetch_factor={ahead}", f"loader.prefetch_factor = {ahead}", prefetch_factor=ahead
            )
            found.append(_change("a larger window", suggestion, prediction))
    found.sort(key=lambda change: -change.speedup)
    return tuple(found)


def _workers(present: Present, predict: Callable[[dict[str, int]], Prediction]) -> tuple[int, Prediction] | None:
    """The number of workers to suggest: twice as many as now, or four times as many if that is worth it."""
    first = max(2, 2 * present.num_workers)
    best = None
    for count in (first, 2 * first):
        if not present.num_workers < count <= present.max_workers:
            break
        prediction = predict({"num_workers": count})
        if prediction.speedup is None or (
            best is not None and best[1].speedup is not None and prediction.speedup < MUCH * best[1].speedup
        ):
            break
        best = count, prediction
    return best


def _change(what: str, suggestion: Suggestion, prediction: Prediction) -> Change:
    speedup = prediction.speedup or 0.0
    if speedup >= WORTH:
        form = ".2f" if speedup < PRECISE else ".1f"
        interval = f"{prediction.low:{form}} to {prediction.high:{form}}"
        exact = prediction.gain() if prediction.at_least else f"{factor(speedup, form)} ({interval})"
        gain = exact if prediction.low > 1.0 else f"unclear ({interval}x)"
    else:
        gain = "no gain" if speedup > 1 / WORTH else "slower"
    return Change(speedup, f"{what}: {gain}", suggestion, prediction.low)


def restart(workers: Sequence[int]) -> Suggestion:
    """Suggest restarting workers."""
    ids = ", ".join(map(str, workers))
    return Suggestion(
        f"Restart {'worker' if len(workers) == 1 else 'workers'} {ids}",
        f"loader.restart_workers([{ids}])",
        restart=tuple(workers),
    )
