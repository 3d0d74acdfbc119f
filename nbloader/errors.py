"""The exceptions that nbloader raises. Each docstring says what the likely cause is."""

from __future__ import annotations


class NbloaderError(Exception):
    """Base class of nbloader's own errors. Errors raised by the dataset keep their type."""


class LoaderClosedError(NbloaderError, RuntimeError):
    """The loader was used after `close()`. Create a new one."""


class WorkerStartError(NbloaderError, RuntimeError):
    """Workers could not be started: the dataset cannot be sent to them, or cannot be rebuilt there.

    The likely cause is the dataset. The message includes the workers' last output.
    """


class WorkerDiedError(NbloaderError, RuntimeError):
    """A batch killed every worker that tried to produce it.

    The likely cause is the dataset, or a lack of memory. The message includes the sample indices, the exit signals and
    the last lines of the workers' standard error.
    """


class LoaderTimeoutError(NbloaderError, RuntimeError, TimeoutError):
    """A batch did not arrive within `timeout` seconds. The likely cause is the dataset.

    It is a RuntimeError because torch raises one.
    """


class DatasetTransferError(NbloaderError, TypeError):
    """The dataset, or a function passed to the loader, cannot be pickled, and workers are not forked instead."""


class ReplayError(NbloaderError, LookupError):
    """A batch cannot be made again: `DataLoader.replay`. The message says why."""


class RecordingError(NbloaderError, ValueError):
    """A file cannot be played: it is not a recording, is damaged, or is of another version. The message says which."""


class WorkerTraceback(NbloaderError):  # noqa: N818 - it is a traceback, shown as the cause of an error
    """The traceback of an error in a worker, as text: the `__cause__` of the error raised in the notebook."""
