"""The exceptions that nbloader raises. The docstrings name the likely causes and what to do."""

from __future__ import annotations


class NbloaderError(Exception):
    """Base class of nbloader's own errors. Errors raised by the dataset keep their type."""


class LoaderClosedError(NbloaderError, RuntimeError):
    """The loader was closed, or Ctrl-C has ended the iterator. The message says which, and what to do."""


class WorkerStartError(NbloaderError, RuntimeError):
    """Workers could not be started.

    If a worker ended repeatedly before it was ready, the likely cause is the dataset, which may crash the worker while
    it is rebuilt there. The message includes the worker's last output. Otherwise the system did not provide a process,
    a thread or a pipe, or no node of a cluster could run a worker. The message says why.

    Load a sample in this process, as in `dataset[0]`, to see an error of the dataset itself.
    """


class WorkerDiedError(NbloaderError, RuntimeError):
    """A batch killed every worker that tried to produce it, or more than `max_restarts` workers died.

    The likely cause is a crash in native code that the dataset calls, or a lack of memory. The message says how the
    last worker ended, and includes the end of its standard error. If a single batch is the cause, it also includes the
    sample indices: load these samples one by one with `num_workers=1`. If memory ran out, use fewer workers.
    """


class LoaderTimeoutError(NbloaderError, RuntimeError, TimeoutError):
    """A batch did not arrive within `timeout` seconds.

    The likely cause is a slow sample, or a call in the dataset that hangs. The message names the sample, and shows
    where the worker waits. Restart the worker with `loader.restart_workers()`, increase `timeout`, or pass
    `on_timeout="restart"`. The error is a RuntimeError, because torch raises one.
    """


class DatasetTransferError(NbloaderError, TypeError):
    """The dataset, a function passed to the loader, or the indices of a batch cannot be sent to the workers.

    Usually the object cannot be pickled. Create it on first use in `__getitem__`, or let the loader fork its workers,
    which inherit it: this is the default on Linux.
    """


class ReplayError(NbloaderError, LookupError):
    """`DataLoader.replay` cannot reproduce a batch. The message says why, and what would make it possible."""


class RecordingError(NbloaderError, ValueError):
    """A file cannot be played. It is not a recording, is damaged or incomplete, or has another version of the format.

    The message says which of these applies. Record the run again, or play it with the version that recorded it.
    """


class WorkerTraceback(NbloaderError):  # noqa: N818 - it is a traceback, shown as the cause of an error
    """The traceback of an error in a worker, as text: the `__cause__` of the error raised in the notebook."""
