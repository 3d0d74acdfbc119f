"""What a loader reports about itself: event records and the bus that carries them, gauges, failures."""

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
    Placed,
    SampleFailed,
    SupervisorFailed,
    WorkerDied,
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
    "Placed",
    "SampleFailed",
    "Subscription",
    "SupervisorFailed",
    "WorkerDied",
    "WorkerReady",
    "WorkerRestarted",
    "WorkerStarted",
    "WorkersResized",
]
