"""A Ray cluster of simulated nodes on this machine, in a process of its own: `python ray_nodes.py NODES`.

It prints the address of the cluster. Each line that it reads is a command: "add" adds a node, "kill ID" kills the
raylet of a node; it prints the id of that node when Ray knows. The cluster ends with the standard input.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

STORE_BYTES = 100 << 20
"""Size of the object store of a node."""
ATTEMPTS = 3
"""On a very busy machine a node may not start in the 30 s that Ray gives it."""
AGENT_TIMEOUT = 90_000
"""Milliseconds that its agents, which are Python programs, may take to start: otherwise it ends itself sooner."""


class Nodes:
    """The cluster, as the process that uses it sees it."""

    def __init__(self, count: int) -> None:
        for _attempt in range(ATTEMPTS):
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self.address = self._process.stdout.readline().strip()
            if self.address:
                return
            self.close()
        raise TimeoutError(f"this machine is too busy: a Ray cluster did not start in {ATTEMPTS} attempts")

    def command(self, line: str) -> str:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def add(cluster, node):
    for _attempt in range(ATTEMPTS - 1):
        with contextlib.suppress(Exception):  # Ray raises no other type
            return cluster.add_node(**node)
    return cluster.add_node(**node)


def main(count: int) -> None:
    os.environ.setdefault("RAY_agent_register_timeout_ms", str(AGENT_TIMEOUT))
    from ray.cluster_utils import Cluster

    reply = sys.stdout
    sys.stdout = sys.stderr
    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_log_monitor": False, "no_monitor": True}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(count - 1):
        cluster.add_node(**node, wait=False)
    cluster.wait_for_nodes(timeout=100)
    print(cluster.address, file=reply, flush=True)
    for line in sys.stdin:
        command, _, node_id = line.strip().partition(" ")
        if command == "add":
            print(add(cluster, node).node_id, file=reply, flush=True)
        else:
            cluster.remove_node(
                next(node for node in cluster.worker_nodes if node.node_id == node_id), allow_graceful=False
            )
            print(node_id, file=reply, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
