"""What a worker process receives when it starts: the dataset, the notebook's environment, and its specification."""

from __future__ import annotations

from typing import NamedTuple

from nbloader.transport.dataset_payload import Files
from nbloader.transport.environment import Environment
from nbloader.transport.mp_objects import InheritedState
from nbloader.workers.spec import WorkerSpec


class WorkerStart(NamedTuple):
    """Which worker a process is."""

    worker: int
    """Worker id."""
    spec: WorkerSpec


class InitMessage(NamedTuple):
    """The body of the `INIT` frame, pickled. A forked worker needs none: it inherits the objects."""

    start: WorkerStart
    environment: Environment
    inherited: InheritedState
    files: Files
    """The files of the pickled `Parts`; the descriptors are sent along."""
