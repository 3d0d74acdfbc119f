"""Notices about skipped samples. Their number stays small even if many samples are skipped in many epochs."""

from __future__ import annotations

from nbloader._util.format import clean
from nbloader.events.failures import abbreviated
from nbloader.events.records import Event, SampleFailed


class SkippedSamples:
    """Counts the samples that each iteration skips, and decides when to print a notice.

    A notice is printed for the first skipped sample, and at the end of an epoch that has skipped more than one sample
    and more than any earlier epoch. Other epochs print none, because broken files fail again in each epoch.
    """

    def __init__(self) -> None:
        self._noticed = False
        self._most = 1
        self._counts: dict[int, int] = {}  # skipped samples of each open iteration

    def add(self, event: Event) -> str:
        """Count a sample whose batch is delivered, if it was skipped.

        Args:
            event: What failed in the batch.

        Returns:
            The notice for the cell; "" if there is none.
        """
        if not isinstance(event, SampleFailed) or event.done != "skipped":
            return ""
        self._counts[event.epoch] = self._counts.get(event.epoch, 0) + 1
        if self._noticed:
            return ""
        self._noticed = True
        error = clean(" ".join(event.error.split()))
        return (
            f"nbloader: sample {abbreviated(event.sample)} of batch {event.index} was skipped (on_error='skip'): "
            f"{error.rstrip('.')}. Later ones are only counted, in loader.stats().skipped.\n"
        )

    def exhausted(self, epoch: int) -> str:
        """Record that an iteration is exhausted. Returns the notice for the cell; "" if there is none."""
        count = self._counts.get(epoch, 0)
        if count <= self._most:
            return ""
        self._most = count
        return (
            f"nbloader: {count:,} samples of this epoch were skipped. loader.stats().failed_samples has the last ones "
            "with their tracebacks. Later epochs are mentioned only if they skip more.\n"
        )

    def closed(self, epoch: int) -> None:
        """Forget an iteration."""
        self._counts.pop(epoch, None)
