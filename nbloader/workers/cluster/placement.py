"""Which node gets a worker. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbloader.workers.ray_options import RayOptions


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of the cluster that is alive."""

    node_id: str
    address: str
    cpus: float
    """CPUs that Ray may use there."""
    store_bytes: int
    """Size of its object store."""

    @property
    def name(self) -> str:
        """How messages call it: its address, and the beginning of its id, since addresses need not be unique."""
        return f"{self.address} ({self.node_id[:8]})"


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """A node, and what this loader has there."""

    info: NodeInfo
    workers: int
    suspect: bool = False
    """Whether a link to it was lost a moment ago: it may be dead though Ray does not know yet."""

    def share(self, more: int = 0) -> float:
        """Workers per CPU, with so many more."""
        return (self.workers + more) / max(self.info.cpus, 1.0)


def usable(nodes: Sequence[NodeInfo], options: RayOptions) -> list[NodeInfo]:
    """Those nodes that the options allow."""
    if options.nodes is None:
        return list(nodes)
    return [node for node in nodes if {node.node_id, node.address} & {*options.nodes}]


def choose(loads: Sequence[NodeLoad], options: RayOptions) -> NodeLoad | None:
    """The node for the next worker; None if none has room."""
    limit = options.workers_per_node
    free = [load for load in loads if limit is None or load.workers < limit]
    free = [load for load in free if not load.suspect] or free
    if options.placement == "pack":
        filling = [load for load in free if load.workers + 1 <= load.info.cpus]
        if filling:
            return max(filling, key=lambda load: load.workers)
    return min(free, key=lambda load: load.share(1), default=None)


def surplus(loads: Sequence[NodeLoad], options: RayOptions) -> list[str]:
    """The nodes from which a worker should move to another one, since a node has joined; an id for each worker."""
    if options.placement == "pack":
        return []
    counts = {load.info.node_id: load.workers for load in loads}
    moves: list[str] = []
    while True:
        now = [NodeLoad(load.info, counts[load.info.node_id], load.suspect) for load in loads]
        to = choose(now, options)
        fullest = max(now, key=lambda load: load.share(), default=None)
        if to is None or to.suspect or fullest is None or fullest.share() <= to.share(1):
            return moves
        counts[fullest.info.node_id] -= 1
        counts[to.info.node_id] += 1
        moves.append(fullest.info.node_id)
