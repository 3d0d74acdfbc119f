"""What worker processes are given when they start."""

from __future__ import annotations

from typing import Any

from nbloader import preload
from nbloader.errors import DatasetTransferError
from nbloader.shm import SharedPickle


class Cargo:
    """The dataset and the functions, pickled once for all workers.

    Raises:
        DatasetTransferError: They cannot be pickled.
    """

    def __init__(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> None:
        try:
            self.pickled = SharedPickle((dataset, collate_fn, worker_init_fn, on_error))
        except Exception as error:  # pickling runs the user's code, which may raise anything
            raise DatasetTransferError(
                f"the dataset ({type(dataset).__name__}), collate_fn, worker_init_fn or on_error cannot be sent to "
                f"worker processes: {type(error).__name__}: {error}. Open files, connections, locks and generators "
                "cannot be pickled: open them on first use inside __getitem__, or use num_workers=0."
            ) from error
        self.preload = preload.needed(self.pickled.data, dataset)
        self.identity = self.pickled.identity
        """Equal where workers that have the one need not be given the other."""
