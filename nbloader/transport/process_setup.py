"""Pickles the dataset and the functions of a loader, or says which part of them cannot be pickled."""

from __future__ import annotations

from typing import Any

from nbloader._platform import CAN_FORK
from nbloader._util.attributes import attributes_of
from nbloader._util.signals import raised_by_handler
from nbloader.batch.pickling import dump_to
from nbloader.errors import DatasetTransferError
from nbloader.transport.dataset_payload import SharedPickle
from nbloader.transport.mp_objects import FORK_CONTEXT, SharingPickler, Spawning


def pickle_parts(
    dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any, *, here: bool = True
) -> SharedPickle:
    """Pickle the dataset and the functions of a loader once for all workers.

    Args:
        dataset: The dataset of the loader.
        collate_fn: The user's function, or None for the default.
        worker_init_fn: The user's function, or None.
        on_error: The user's function, or the name of a policy.
        here: Whether the workers are on this machine.

    Raises:
        DatasetTransferError: The dataset or a function cannot be pickled.
        MemoryError: There is not enough memory for the pickle.
    """
    try:
        return SharedPickle((dataset, collate_fn, worker_init_fn, on_error))
    except MemoryError:
        raise
    except Exception as error:  # pickling runs the user's code, which may raise anything
        if raised_by_handler(error):
            raise
        functions = {"collate_fn": collate_fn, "worker_init_fn": worker_init_fn, "on_error": on_error}
        culprit = _culprit(error, dataset, functions)
        raise DatasetTransferError(
            f"{culprit} cannot be sent to worker processes: {type(error).__name__}: {error}"
            f"{_advice(unnamed_lock=str(error) == FORK_CONTEXT, here=here)}"
        ) from error


def _advice(*, unnamed_lock: bool, here: bool) -> str:
    if not here:
        return (
            ". Open files, databases and connections, generators and compiled functions cannot be sent to other "
            "machines. Open them on first use inside __getitem__."
        )
    if unnamed_lock:
        return (
            ": create it with multiprocessing.get_context('forkserver'), such as "
            "multiprocessing.get_context('forkserver').Value('i', 0)"
            + (', or pass multiprocessing_context="fork" to the loader.' if CAN_FORK else ".")
        )
    if CAN_FORK:
        return (
            ". Open files, databases and connections, generators and compiled functions cannot be pickled. Open them "
            'on first use inside __getitem__, pass multiprocessing_context="fork", with which workers inherit them '
            "from this process, or use num_workers=0."
        )
    return (
        ". Open files, databases and connections, generators and compiled functions cannot be pickled. Open them on "
        'first use inside __getitem__, pass workers="thread", or use num_workers=0.'
    )


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
