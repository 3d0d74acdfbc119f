"""The dataset and the functions of a loader, pickled once for all of its worker processes."""

from __future__ import annotations

from typing import Any

from nbloader._platform import CAN_FORK
from nbloader._util.attributes import attributes_of
from nbloader._util.signals import raised_by_handler
from nbloader.batch.pickling import dump_to
from nbloader.errors import DatasetTransferError
from nbloader.transport.dataset_payload import SharedPickle
from nbloader.transport.mp_objects import FORK_CONTEXT, SharingPickler, Spawning


class PicklingFailure:
    """Why the dataset and the functions cannot be pickled.

    Args:
        error: The exception that pickling them raised.
        dataset: See `ProcessSetup`.
        collate_fn: See `ProcessSetup`.
        worker_init_fn: See `ProcessSetup`.
        on_error: See `ProcessSetup`.
    """

    def __init__(self, error: Exception, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> None:
        functions = {"collate_fn": collate_fn, "worker_init_fn": worker_init_fn, "on_error": on_error}
        self.error = error
        self._unnamed_lock = str(error) == FORK_CONTEXT
        self._culprit = _culprit(error, dataset, functions)

    def to_error(self, *, here: bool = True) -> DatasetTransferError:
        """Return the failure as an exception, for loaders that do not fork.

        Args:
            here: Whether the workers are on this machine.
        """
        advice = (
            ". Open files, databases and connections, generators and compiled functions cannot be pickled: open them "
            'on first use inside __getitem__, or pass multiprocessing_context="fork", with which workers inherit '
            "them from this process, or use num_workers=0."
        )
        if not CAN_FORK:
            advice = (
                ". Open files, databases and connections, generators and compiled functions cannot be pickled: open "
                'them on first use inside __getitem__, or pass workers="thread", or use num_workers=0.'
            )
        if not here:
            advice = (
                ". Open files, databases and connections, generators and compiled functions cannot be sent to other "
                "machines: open them on first use inside __getitem__."
            )
        elif self._unnamed_lock:
            advice = (
                ": create it with multiprocessing.get_context('forkserver'), such as "
                "multiprocessing.get_context('forkserver').Value('i', 0)"
                + (', or pass multiprocessing_context="fork" to the loader.' if CAN_FORK else ".")
            )
        return DatasetTransferError(
            f"{self._culprit} cannot be sent to worker processes: {type(self.error).__name__}: {self.error}{advice}"
        )


def pickle_parts(dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> SharedPickle | PicklingFailure:
    """Pickle the dataset and the functions once for all workers.

    Args:
        dataset: See `ProcessSetup`.
        collate_fn: See `ProcessSetup`.
        worker_init_fn: See `ProcessSetup`.
        on_error: See `ProcessSetup`.

    Raises:
        MemoryError: There is not enough memory for the pickle.
    """
    parts = dataset, collate_fn, worker_init_fn, on_error
    try:
        return SharedPickle(parts)
    except MemoryError:
        raise
    except Exception as error:  # pickling runs the user's code, which may raise anything
        if raised_by_handler(error):
            raise
        return PicklingFailure(error, *parts)


class ProcessSetup:
    """The dataset and the functions, pickled once for all workers.

    Args:
        dataset: The dataset of the loader.
        collate_fn: The user's function, or None for the default.
        worker_init_fn: The user's function, or None.
        on_error: The user's function, or the name of a policy.
        pickled: What `pickle_parts` returned, if it was called.

    Raises:
        DatasetTransferError: The dataset or a function cannot be pickled.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Any,
        worker_init_fn: Any,
        on_error: Any,
        pickled: SharedPickle | PicklingFailure | None = None,
    ) -> None:
        pickled = pickled or pickle_parts(dataset, collate_fn, worker_init_fn, on_error)
        if isinstance(pickled, PicklingFailure):
            raise pickled.to_error() from pickled.error
        self.pickled = pickled
        self.self_contained = self.pickled.self_contained
        """Whether `identity` covers all content. It compares large arrays and shared objects by their location only."""
        self.identity = self.pickled.identity
        """Equal for two setups if workers that have received one do not need the other."""

    @classmethod
    def received(cls, pickled: SharedPickle) -> ProcessSetup:
        """On another machine: create a setup for its workers."""
        return cls(None, None, None, None, pickled)

    def holds(self, *_parts: Any) -> bool:
        """See `WorkerSetup`. Only pickling the objects again shows whether they are unchanged."""
        return False


def _culprit(error: Exception, dataset: Any, functions: dict[str, Any]) -> str:
    """Describe, for a message, the part that cannot be pickled, as precisely as it can be found."""
    for name, function in functions.items():
        if _raises(error, function):
            return name
    what = f"the dataset ({type(dataset).__name__})"
    for name, value in list(attributes_of(dataset).items()):
        if _raises(error, value):
            return f"{what}, with what its attribute {name!r} ({type(value).__name__}) holds,"
    return what


class _Discard:
    """A file-like object that discards what is written to it."""

    def write(self, _data: bytes, /) -> None:
        """Discard the data."""


def _raises(error: Exception, part: Any) -> bool:
    """Whether pickling this part alone raises the same error."""
    try:
        with Spawning():
            dump_to(_Discard(), part, lambda _buffer: None, SharingPickler)
    except Exception as raised:  # as above
        if raised_by_handler(raised):
            raise
        return (type(raised), str(raised)) == (type(error), str(error))
    return False
