"""Decide which node gets a worker. The functions are pure."""

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
    """Number of CPUs that Ray may use on the node."""
    store_bytes: int
    """Size of the node's object store in bytes."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """All resources that Ray manages on the node, whether reserved or not: "CPU", "GPU", and user-defined ones."""

    @property
    def name(self) -> str:
        """The name of the node in messages: its address (which may not be unique) and the beginning of its id."""
        return f"{self.address} ({self.node_id[:8]})"


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """A node, and the number of workers of this loader on it."""

    info: NodeInfo
    workers: int
    suspect: bool = False
    """Whether a link to the node was lost recently: the node may be dead although Ray does not know yet."""

    def share(self, more: int = 0) -> float:
        """Return the number of workers per CPU after adding `more` workers."""
        return (self.workers + more) / max(self.info.cpus, 1.0)


LISTED = 4
"""Maximum number of nodes that a message lists."""


def usable(nodes: Sequence[NodeInfo], options: RayOptions) -> list[NodeInfo]:
    """Return the nodes that the options allow and that have the resources for an actor."""
    return [node for node in _allowed(nodes, options) if not lacking(node, options)]


def _allowed(nodes: Sequence[NodeInfo], options: RayOptions) -> list[NodeInfo]:
    if options.nodes is None:
        return list(nodes)
    return [node for node in nodes if {node.node_id, node.address} & {*options.nodes}]


def lacking(node: NodeInfo, options: RayOptions) -> list[str]:
    """Return the names of the resources of which a node has less than its actor would reserve."""
    wanted = options.resources or {}
    return [name for name, amount in wanted.items() if node.resources.get(name, 0.0) < amount]


def why_unusable(nodes: Sequence[NodeInfo], options: RayOptions) -> str:
    """Explain why no node is usable.

    Args:
        nodes: The nodes that are alive.
        options: The options that none of the nodes satisfies.
    """
    allowed = _allowed(nodes, options)
    if not nodes:
        return "no node is alive"
    if not allowed:
        return f"none of nodes={list(options.nodes or ())} is alive. Nodes alive: {_listed([n.name for n in nodes])}"
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
    """Choose the node for the next worker. Return None if all nodes are full."""
    limit = options.workers_per_node
    free = [load for load in loads if limit is None or load.workers < limit]
    free = [load for load in free if not load.suspect] or free
    if options.placement == "pack":
        filling = [load for load in free if load.workers + 1 <= load.info.cpus]
        if filling:
            return max(filling, key=lambda load: load.workers)
    return min(free, key=lambda load: load.share(1), default=None)


def surplus(loads: Sequence[NodeLoad], options: RayOptions) -> list[str]:
    """Return the ids of nodes from which workers should move to a node that has joined: one entry for each worker."""
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
