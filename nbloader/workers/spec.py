"""The specification of workers, which their pool and the workers themselves are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from nbloader._platform import START_METHODS

if TYPE_CHECKING:  # not needed by most worker processes, which import this module
    from nbloader.sampling.shard_plan import IterableOptions
    from nbloader.workers.ray_options import RayOptions


class Parts(NamedTuple):
    """What workers are given when they start: the dataset and the functions."""

    dataset: Any
    collate_fn: Any
    worker_init_fn: Any
    on_error: Any

    @property
    def identity(self) -> tuple[int, ...]:
        """See `WorkerSetup`."""
        return tuple(map(id, self))


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """The configuration of workers, apart from the dataset and functions."""

    kind: str
    """The name of the kind of workers, as in the registry."""
    batched: bool
    """Whether samples are collated into batches."""
    output: str = "torch"
    """"torch" or "numpy": what the arrays of a batch become."""
    iterable: IterableOptions | None = None
    """How an iterable dataset is read; None for a map-style dataset."""
    num_workers: int = 1
    seed: int = 0
    """The base seed of the epoch in which the worker starts. The worker's seed is the base seed plus the worker id."""
    start_method: str = START_METHODS[0]
    """"fork", "forkserver" or "spawn". Only for worker processes."""
    may_heal: bool = False
    """Whether workers may be clean ones instead of forks of this process, if forked ones hang: no start method was
    requested."""
    concurrency: int = 1
    """Maximum number of samples of an asynchronous dataset that a worker has in flight."""
    seeders: bytes = b""
    """The functions that seed objects for each batch (`seeders.dump_seeders`). The pool adds them for workers that
    inherit nothing from this process."""
    ray: RayOptions | None = None
    """How a Ray cluster is used. Only for Ray workers."""
