"""Which node gets a worker. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    resources: Mapping[str, float] = field(default_factory=dict)
    """All that Ray may hand out there, whoever has reserved it now: "CPU", "GPU", and those of the user."""

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


LISTED = 4
"""Nodes that a message lists."""


def usable(nodes: Sequence[NodeInfo], options: RayOptions) -> list[NodeInfo]:
    """Those nodes that the options allow, and that have the resources of an actor."""
    return [node for node in _allowed(nodes, options) if not lacking(node, options)]


def _allowed(nodes: Sequence[NodeInfo], options: RayOptions) -> list[NodeInfo]:
    if options.nodes is None:
        return list(nodes)
    return [node for node in nodes if {node.node_id, node.address} & {*options.nodes}]


def lacking(node: NodeInfo, options: RayOptions) -> list[str]:
    """The resources of which a node has less than its actor would reserve."""
    wanted = options.resources or {}
    return [name for name, amount in wanted.items() if node.resources.get(name, 0.0) < amount]


def why_unusable(nodes: Sequence[NodeInfo], options: RayOptions) -> str:
    """Why no node is usable.

    Args:
        nodes: Those that are alive.
        options: Of which they satisfy none.
    """
    allowed = _allowed(nodes, options)
    if not nodes:
        return "no node is alive"
    if not allowed:
        return f"none of nodes={list(options.nodes or ())} is alive. Alive are {_listed([n.name for n in nodes])}"
    names = sorted({name for node in allowed for name in lacking(node, options)})
    have = _listed(
        [
            f"{node.name} has {', '.join(f'{node.resources.get(name, 0.0):g} {name}' for name in names)}"
            for node in allowed
        ]
    )
    return (
        f"no node has resources={dict(options.resources or {})}, which the actor of each node reserves: {have}. "
        "Reserve less in RayOptions(resources=...), or add a node that has them (ray start --resources=...)"
    )


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - LISTED
    return "; ".join(texts[:LISTED]) + (f"; and {more} more" if more > 0 else "")


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
