"""The exceptions that nbloader raises. The docstrings name the likely causes."""

from __future__ import annotations


class NbloaderError(Exception):
    """Base class of nbloader's own errors. Errors raised by the dataset keep their type."""


class LoaderClosedError(NbloaderError, RuntimeError):
    """The loader was used after `close()`. Create a new one."""


class WorkerStartError(NbloaderError, RuntimeError):
    """Workers could not be started.

    If a worker ended repeatedly before it was ready, the likely cause is the dataset, which may crash the worker while
    it is rebuilt there. The message includes the worker's last output. Otherwise the system did not provide a process,
    a thread or a pipe, or no node of a cluster could run a worker. The message says why.
    """


class WorkerDiedError(NbloaderError, RuntimeError):
    """A batch killed every worker that tried to produce it, or more than `max_restarts` workers died.

    The likely cause is the dataset or a lack of memory. The message says how the last worker ended and includes the
    last lines of its standard error. If a single batch is the cause, the message also includes its sample indices.
    """


class LoaderTimeoutError(NbloaderError, RuntimeError, TimeoutError):
    """A batch did not arrive within `timeout` seconds. The likely cause is the dataset.

    It is a RuntimeError because torch raises one.
    """


class DatasetTransferError(NbloaderError, TypeError):
    """The dataset, a function passed to the loader, or the indices of a batch cannot be sent to the workers.

    Usually the object cannot be pickled, and the loader is not allowed to fork workers, which would inherit it.
    """


class ReplayError(NbloaderError, LookupError):
    """`DataLoader.replay` cannot reproduce a batch. The message says why."""


class RecordingError(NbloaderError, ValueError):
    """A file cannot be played. It is not a recording, is damaged or incomplete, or has another version of the format.

    The message says which of these applies.
    """


class WorkerTraceback(NbloaderError):  # noqa: N818 - it is a traceback, shown as the cause of an error
    """The traceback of an error in a worker, as text: the `__cause__` of the error raised in the notebook."""
