"""A batch in the explorer: its samples as they were delivered, and the batch itself, as the loop received it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbloader._util import rng
from nbloader._util.format import clean, megabytes
from nbloader._util.rng import mix
from nbloader.workers.in_process import FailedSample, fetch_samples
from nbloader.workers.seeding import Seeding

TIMES = "\N{MULTIPLICATION SIGN}"
MAX_LISTED = 32
"""Maximum number of dataset indices that a note lists."""
WHOLE = -1
"""Stands for the batch itself, in place of a position."""


class BatchSamples:
    """The samples of one batch, by position. All of them are produced when the first one is requested, and kept.

    Args:
        dataset: The loader's dataset.
        parts: Dataset indices and seed of each part of the batch that has its own seed.
        on_error: What the loader does with a sample that raises.
        batched: Whether samples are collated into batches.
        asynchronous: Whether samples are awaited. Then each of them has its own seed.
        title: Name of the batch.
        whole: Produces the batch from a dataset, on the thread of a worker. Its result has the fields `batch` and
            `difference`, which says how it differs from what was delivered.
        workers: The kind of workers that suits the dataset.
        worker_init_fn: The loader's `worker_init_fn`.
    """

    def __init__(
        self,
        dataset: Any,
        parts: Sequence[tuple[Any, int]],
        *,
        on_error: Any,
        batched: bool,
        asynchronous: bool,
        title: str,
        whole: Callable[[Any], Any],
        workers: str,
        worker_init_fn: Callable[[int], object] | None,
    ) -> None:
        self.dataset = dataset
        """The loader's dataset."""
        self._parts = parts
        self._on_error = on_error
        self._batched = batched
        self._asynchronous = asynchronous
        self.title = title
        """Name of the batch."""
        self.workers = workers
        """The kind of workers that suits the dataset."""
        self.worker_init_fn = worker_init_fn
        """The loader's `worker_init_fn`."""
        self._whole = whole
        indices = self.indices
        more = ", ..." if len(indices) > MAX_LISTED else ""
        listed = ", ".join(clean(index, 40) for index in indices[:MAX_LISTED])
        self.note = f"Numbers are positions in the batch; dataset indices: {listed}{more}."
        """Describes which samples the batch has."""
        self._made: list[Any] | None = None
        self.difference = ""
        """How the batch differs from what was delivered, once it was requested; "" if it does not."""

    @property
    def indices(self) -> list[Any]:
        """The dataset indices of the batch."""
        return [index for indices, _seed in self._parts for index in indices]

    def __len__(self) -> int:
        """Number of samples."""
        return sum(len(indices) for indices, _seed in self._parts)

    def __getitem__(self, position: int) -> Any:
        """Return a sample, or a coroutine if the dataset is asynchronous; for `WHOLE`, return the batch.

        Raises:
            Exception: Whatever the dataset raises.
        """
        if position == WHOLE:
            made = self._whole(self.dataset)
            self.difference = made.difference
            return made.batch
        if self._asynchronous:
            return self._begin(position)
        if self._made is None:
            self._made = [sample for indices, seed in self._parts for sample in self._make(indices, seed)]
        sample = self._made[position]
        if isinstance(sample, FailedSample):
            raise sample.error
        return sample

    def forget(self) -> None:
        """Forget the samples: they are produced again when they are requested."""
        self._made = None

    def _make(self, indices: Any, seed: int) -> Sequence[Any]:
        Seeding(self.dataset, None, self._on_error).after(rng.seed_everything)(seed)
        return fetch_samples(self.dataset, indices, on_error=self._on_error, batched=self._batched, output="numpy")

    def _begin(self, position: int) -> Any:
        for indices, seed in self._parts:
            if position < len(indices):
                rng.seed_everything(mix(seed, position))
                return self.dataset[indices[position]]
            position -= len(indices)
        raise IndexError(position)


def facts(content: Mapping[str, Any]) -> str:
    """Describe what a batch consists of, in one line.

    Args:
        content: What was read of the batch itself (`ReadSample.content`).
    """
    if "error" in content:
        return clean(f"The batch cannot be made: {content['error']}", 600)
    arrays = [field for field in content["fields"] if "shape" in field]
    parts = (
        f"{field['path'] or field['type']} {field['dtype']} {TIMES.join(map(str, field['shape']))}" for field in arrays
    )
    found = clean(f"{megabytes(sum(field['nbytes'] for field in arrays))}: {'; '.join(parts)}.", 600) if arrays else ""
    return " ".join(filter(None, (found, content.get("difference"))))
