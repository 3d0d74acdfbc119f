"""The exceptions that nbloader raises. Each says in its docstring whose fault it is."""

from __future__ import annotations


class NbloaderError(Exception):
    """Base of all errors that nbloader raises about itself (errors of your dataset keep their own type)."""


class LoaderClosedError(NbloaderError, RuntimeError):
    """The loader was used after `close()`. The caller's fault: make a new loader."""


class WorkerStartError(NbloaderError, RuntimeError):
    """Workers could not be started: the dataset cannot be sent to them or cannot be rebuilt there.

    The dataset's fault in most cases; the message holds what the worker said.
    """


class WorkerDiedError(NbloaderError, RuntimeError):
    """A batch killed every worker that tried to make it.

    The dataset's fault, or the machine's (memory). The message holds the sample indices, the exit signals and the
    tail of the workers' standard error.
    """


class LoaderTimeoutError(NbloaderError, RuntimeError, TimeoutError):
    """A batch did not come within `timeout` seconds (a RuntimeError, as torch's). The dataset's fault in most cases."""


class DatasetTransferError(NbloaderError, TypeError):
    """The dataset, or a function given to the loader, cannot be pickled. The dataset's fault."""


class WorkerTraceback(NbloaderError):  # noqa: N818 - it is a traceback, shown as the cause of an error
    """The traceback of an error in a worker, as text: the `__cause__` of the error raised in the notebook."""
