"""The options of workers on a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from nbloader._util.validate import natural, one_of

Placement = Literal["spread", "pack"]


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """How `DataLoader(..., workers="ray")` uses a Ray cluster.

    Args:
        nodes: Node ids or addresses of the nodes to use; None for all nodes that are alive, including those that join
            later.
        placement: "spread" distributes workers over nodes in proportion to their CPUs; "pack" fills one node after the
            other with one worker per CPU.
        workers_per_node: Maximum number of workers on a node; None for no limit.
        resources: Resources that the actor on each node reserves, as in Ray: `{"CPU": 4}`. By default it reserves
            nothing, so that the workers share the node with other tasks.
        window_bytes: Maximum number of bytes of batches in Ray's object stores at a time; None for a quarter of the
            smallest store, but at most 1 GB. Batches of any size are sent in pieces smaller than that.
        runtime_env: Ray's runtime environment for the actors and their workers, such as `{"working_dir": "."}` if the
            nodes share no file system with the notebook.

    Raises:
        ValueError: An option has an invalid value.
        TypeError: An option has an invalid type.
    """

    nodes: Sequence[str] | None = None
    placement: Placement = "spread"
    workers_per_node: int | None = None
    resources: Mapping[str, float] | None = None
    window_bytes: int | None = None
    runtime_env: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.nodes, str) or (self.nodes is not None and not self.nodes):
            raise ValueError(f"nodes must be a list of node ids or addresses, not {self.nodes!r}; None uses all nodes")
        one_of("placement", self.placement, get_args(Placement))
        for name, value in (("workers_per_node", self.workers_per_node), ("window_bytes", self.window_bytes)):
            if value is not None and not natural(name, value, "None sets no limit of your own"):
                raise ValueError(f"{name} must be at least 1, not 0; None sets no limit of your own")
