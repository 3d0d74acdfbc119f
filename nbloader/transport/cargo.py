"""What worker processes are given when they start."""

from __future__ import annotations

from typing import Any

from nbloader.batch.pickles import dump
from nbloader.errors import DatasetTransferError
from nbloader.transport import fingerprint, preload
from nbloader.transport.dataset_payload import SharedPickle
from nbloader.transport.inherit import OF_FORK


class Cargo:
    """The dataset and the functions, pickled once for all workers.

    Args:
        dataset: As of the loader; so are the functions.
        transport: With "pickle" it is torch that makes the batches, where nothing else does.

    Raises:
        DatasetTransferError: They cannot be pickled.
    """

    def __init__(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any, transport: str) -> None:
        parts = dataset, collate_fn, worker_init_fn, on_error
        try:
            self.pickled = SharedPickle(parts)
        except Exception as error:  # pickling runs the user's code, which may raise anything
            advice = (
                "Open files, connections to other machines, locks of threads and generators cannot be pickled: open "
                "them on first use inside __getitem__, or use num_workers=0."
            )
            functions = {"collate_fn": collate_fn, "worker_init_fn": worker_init_fn, "on_error": on_error}
            raise DatasetTransferError(
                f"{_culprit(error, dataset, functions)} cannot be sent to worker processes: {type(error).__name__}: "
                f"{error}. {'' if str(error) == OF_FORK else advice}"
            ) from error
        worthwhile = self.pickled.alone and fingerprint.worthwhile(self.pickled.data)
        self._likeness = _likeness(parts) if worthwhile else None
        self.preload = preload.needed(
            self.pickled.data, dataset, collate_fn, worker_init_fn, on_error,
            by_torch=transport == "pickle" and collate_fn is None,
        )  # fmt: skip
        self.identity = self.pickled.identity
        """Equal where workers that have the one need not be given the other."""

    def holds(self, *parts: Any) -> bool:
        """Whether these are what they were then. False also where only another cargo can tell.

        Args:
            parts: As this was made of.
        """
        return self._likeness is not None and _likeness(parts) == self._likeness


def _likeness(parts: Any) -> Any:
    try:
        return fingerprint.likeness(parts)
    except Exception:  # noqa: BLE001 - pickling runs the user's code; what is wrong is said where a cargo is made of it
        return None


def _culprit(error: Exception, dataset: Any, functions: dict[str, Any]) -> str:
    """What cannot be pickled, for a message: as closely as it can be told."""
    for name, function in functions.items():
        if _raises(error, function):
            return name
    what = f"the dataset ({type(dataset).__name__})"
    for name, value in getattr(dataset, "__dict__", {}).items():
        if _raises(error, value):
            return f"{what}, with what its attribute {name!r} ({type(value).__name__}) holds,"
    return what


def _raises(error: Exception, part: Any) -> bool:
    """Whether the same error comes of pickling this alone."""
    try:
        dump(part, lambda _buffer: None)
    except Exception as raised:  # noqa: BLE001 - pickling runs the user's code, which may raise anything
        return (type(raised), str(raised)) == (type(error), str(error))
    return False
