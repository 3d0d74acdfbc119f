"""The dataset and the functions of a loader, pickled once for all of its worker processes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from nbloader._util.signals import raised_by_handler
from nbloader.batch.pickling import DeviceTensorError, dump_to
from nbloader.errors import DatasetTransferError
from nbloader.transport import fingerprint, forkserver, preload, template
from nbloader.transport.dataset_payload import SharedPickle
from nbloader.transport.mp_objects import FORK_CONTEXT, SharingPickler, Spawning
from nbloader.transport.template import Template

log = logging.getLogger(__name__)


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
        self.fork_helps = not (isinstance(error, DeviceTensorError) or isinstance(dataset, Iterator))
        """Whether workers that are forked from this process, without a pickle, would work. They could not use tensors
        on an accelerator that this process uses, and each of them would read an iterator from beginning to end."""

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
        if not here:
            advice = (
                ". Open files, databases and connections, generators and compiled functions cannot be sent to other "
                "machines: open them on first use inside __getitem__."
            )
        elif self._unnamed_lock:
            advice = (
                ": create it with multiprocessing.get_context('forkserver'), such as "
                "multiprocessing.get_context('forkserver').Value('i', 0), or pass multiprocessing_context=\"fork\" to "
                "the loader."
            )
        return DatasetTransferError(
            f"{self._culprit} cannot be sent to worker processes: {type(self.error).__name__}: {self.error}{advice}"
        )

    def to_warning(self) -> str:
        """Return the failure as a warning, for loaders that fork instead."""
        return (
            f"{self._culprit} cannot be pickled ({type(self.error).__name__}: {self.error}): workers are forked from "
            "this process instead, as torch's are. They start anew for each epoch, unless persistent_workers=True, "
            "share the positions of open files, and can hang on a lock that another thread of this process holds at "
            'that moment. Pass multiprocessing_context="fork" to turn this warning off, or "forkserver" for an error.'
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
        parts = dataset, collate_fn, worker_init_fn, on_error
        pickled = pickled or pickle_parts(*parts)
        if isinstance(pickled, PicklingFailure):
            raise pickled.to_error() from pickled.error
        self.pickled = pickled
        self.self_contained = self.pickled.self_contained
        """Whether `identity` covers all content. It compares large arrays and shared objects by their location only."""
        worthwhile = self.self_contained and fingerprint.worthwhile(self.pickled.data)
        self._fingerprint = _fingerprint_of(parts) if worthwhile else None
        self.packages = preload.packages(self.pickled.spawning.modules)
        """Modules of large packages that workers need."""
        self.preload = preload.needed(
            self.pickled.code, dataset, collate_fn, worker_init_fn, on_error,
            by_torch=preload.need_torch(self.packages),
        )  # fmt: skip
        if "torch" not in self.preload and preload.draws_from_numpy(self.pickled.code, self.pickled.spawning.named):
            self.preload.append("numpy.random")  # which torch imports, too
        self.identity = self.pickled.identity
        """Equal for two setups if workers that have received one do not need the other."""
        self._template: Template | None = None

    @classmethod
    def received(cls, pickled: SharedPickle, preload: list[str], packages: frozenset[str]) -> ProcessSetup:
        """On another machine: create a setup for its workers. The arguments are the attributes of the same names."""
        setup = cls.__new__(cls)
        setup.pickled, setup.preload, setup.packages = pickled, preload, packages
        setup.self_contained, setup.identity = pickled.self_contained, pickled.identity
        setup._fingerprint = setup._template = None
        return setup

    def fork(self, sock: int, stdout: int, stderr: int, lifeline: int, *, by_template: bool) -> Template | None:
        """Start a worker, like `forkserver.fork`.

        Args:
            sock: See `forkserver.fork`.
            stdout: See `forkserver.fork`.
            stderr: See `forkserver.fork`.
            lifeline: See `forkserver.fork`.
            by_template: Whether a template may be started, which takes longer for the first worker.

        Returns:
            The template, which must be kept as long as the worker runs; None if the fork server forks the worker.

        Raises:
            OSError: The system provides no process, pipe or memory.
        """
        if self._template is None and not (by_template and template.worthwhile(self.pickled)):
            forkserver.fork(sock, stdout, stderr, lifeline, self.preload, packages=self.packages)
            return None
        if self._template is not None and self._template.usable():
            with contextlib.suppress(OSError):  # it has ended just now
                self._template.fork(sock, stdout, stderr, lifeline)
                return self._template
        self._template = Template(self.pickled, stdout, stderr, self.preload, self.packages)
        self._template.fork(sock, stdout, stderr, lifeline)
        return self._template

    def holds(self, *parts: Any) -> bool:
        """Whether these are the objects from which it was created, unchanged.

        Also returns False if only pickling them again would show that they are unchanged.

        Args:
            parts: The dataset and the functions, in the order of the constructor's arguments.
        """
        return self._fingerprint is not None and _fingerprint_of(parts) == self._fingerprint


def _fingerprint_of(parts: Any) -> Any:
    try:
        return fingerprint.fingerprint(parts)
    except (
        Exception
    ) as error:  # pickling runs the user's code, which may raise anything; `ProcessSetup` raises it again
        if raised_by_handler(error):
            raise
        log.debug("no fingerprint of the dataset", exc_info=True)
        return None


def _culprit(error: Exception, dataset: Any, functions: dict[str, Any]) -> str:
    """Describe, for a message, the part that cannot be pickled, as precisely as it can be found."""
    for name, function in functions.items():
        if _raises(error, function):
            return name
    what = f"the dataset ({type(dataset).__name__})"
    for name, value in preload.attributes_of(dataset).items():
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
