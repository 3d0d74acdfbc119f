"""Monitoring of a loader: event records, the bus that distributes them, gauges and failures.

The event bus and the records are imported on first use, because a worker process needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbloader.events.bus import EventBus, Subscription
    from nbloader.events.records import (
        BatchFailed,
        BatchRecord,
        DatasetReloaded,
        EpochEnded,
        EpochStarted,
        Event,
        LoaderClosed,
        LoaderPaused,
        LoaderResumed,
        LoopStopped,
        Machine,
        NodeTransfer,
        Placed,
        SampleFailed,
        SettingTried,
        SupervisorFailed,
        WorkerDied,
        WorkerLeaving,
        WorkerReady,
        WorkerRestarted,
        WorkersResized,
        WorkerStarted,
    )

__all__ = [
    "BatchFailed",
    "BatchRecord",
    "DatasetReloaded",
    "EpochEnded",
    "EpochStarted",
    "Event",
    "EventBus",
    "LoaderClosed",
    "LoaderPaused",
    "LoaderResumed",
    "LoopStopped",
    "Machine",
    "NodeTransfer",
    "Placed",
    "SampleFailed",
    "SettingTried",
    "Subscription",
    "SupervisorFailed",
    "WorkerDied",
    "WorkerLeaving",
    "WorkerReady",
    "WorkerRestarted",
    "WorkerStarted",
    "WorkersResized",
]

_BUS = ("EventBus", "Subscription")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'nbloader.events' has no attribute {name!r}")
    module = importlib.import_module(f"nbloader.events.{'bus' if name in _BUS else 'records'}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
