"""What the consumer's thread does to start workers: it packs the dataset, and forked workers inherit from it."""

from __future__ import annotations

from types import GeneratorType
from typing import Any

from nbloader._platform.descriptors import TOO_MANY_FILES
from nbloader._util.signals import raised_by_handler
from nbloader.engine.loop import Loop
from nbloader.engine.worker_group import Inherited, WorkerGroup
from nbloader.errors import DatasetTransferError, WorkerStartError
from nbloader.events.failures import start_message
from nbloader.transport.zygote import ZygoteHungError
from nbloader.workers.api import WorkerKind, WorkerSetup


def pack(
    kind: WorkerKind, num_workers: int, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any
) -> WorkerSetup:
    """Pack the dataset and functions for new workers. User code runs.

    Args:
        kind: The kind of the workers.
        num_workers: How many get them.
        dataset: See `WorkerKind.pack`.
        collate_fn: See `WorkerKind.pack`.
        worker_init_fn: See `WorkerKind.pack`.
        on_error: See `WorkerKind.pack`.

    Raises:
        DatasetTransferError: The dataset or a function cannot be sent to workers; or the dataset is a generator, of
            which each forked worker would yield everything.
    """
    setup = kind.pack(dataset, collate_fn, worker_init_fn, on_error)
    if isinstance(dataset, GeneratorType) and num_workers > 1 and kind.inherits(setup):
        raise DatasetTransferError(
            f"dataset (generator) cannot be given to {num_workers} worker processes: each of them would yield all of "
            "its samples. Pass an object whose __iter__ yields a part of the samples, for example "
            "itertools.islice(samples, info.id, None, info.num_workers) with info = "
            "torch.utils.data.get_worker_info(), or use num_workers=1 or 0"
        )
    return setup


def start_workers(loop: Loop, group: WorkerGroup) -> None:
    """Start the workers that are missing, and let them inherit what they must from the calling thread.

    Args:
        loop: The thread that owns the workers.
        group: The workers.

    Raises:
        WorkerStartError: The system does not provide what they need.
    """
    inherited: Inherited | None = None
    while (request := loop.ask(group.start, inherited)) is not None:
        inherited = None
        try:
            inherited = Inherited(request.pool, request.take())
        except ZygoteHungError as error:
            setup = group.clean_setup()
            if setup is None:
                raise _failed(loop, group, error) from error
            loop.ask(group.start_clean, setup)
        except OSError as error:
            if raised_by_handler(error):
                raise
            if error.errno not in TOO_MANY_FILES or not loop.ask(group.end_leaving):
                raise _failed(loop, group, error) from error


def _failed(loop: Loop, group: WorkerGroup, error: OSError) -> WorkerStartError:
    loop.ask(group.retire, 0)
    return WorkerStartError(start_message(0, group.num_workers, error))
