"""Starts the fork server before the first loader is created, explicitly or when a notebook looks up `DataLoader`."""

from __future__ import annotations

import os

from nbloader.transport import forkserver
from nbloader.transport.environment import in_kernel

SWITCH = "NBLOADER_EARLY_START"
"""Environment variable: 0 keeps a notebook from starting the fork server before the first loader is created."""


def warm_up() -> None:
    """Start the process that workers are forked from, so that the first loader gets its workers sooner.

    The process imports torch while this one continues. A second process imports the large packages that need torch and
    that this process has already imported. Both end if the first loader does not need torch, or if no loader is created
    within a minute. Without this call, the process starts when a loader with worker processes is created. In a
    notebook's kernel, it starts when `nbloader.DataLoader` is first looked up, unless the environment variable
    `NBLOADER_EARLY_START` is 0.

    This function is a no-op in a worker process and on a machine with one core.
    """
    forkserver.start_early()


def on_lookup() -> None:
    """Warm up in a notebook's kernel, where users pause between import and loop, unless `SWITCH` is set to 0."""
    if os.environ.get(SWITCH) != "0" and in_kernel():
        warm_up()
