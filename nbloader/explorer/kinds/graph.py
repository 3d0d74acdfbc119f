"""Graphs: nodes and the edges between them, as in PyTorch Geometric and OGB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import clean, plural
from nbloader.explorer.field import SUMMARY
from nbloader.explorer.kinds.base import Cover, Kind, Value
from nbloader.explorer.texts import joined
from nbloader.explorer.values import as_array

EDGES = "edge_index"
"""The name of the edges: two lines, the nodes where edges begin and those where they end."""
FEATURES = ("x", "node_feat", "z", "pos")
"""Names of arrays with one line for each node."""
MAX_PARTS = 40
"""Maximum number of parts that are described one by one."""
MAX_NODES, MAX_EDGES = 150, 600
"""Maximum number of nodes and edges that are drawn."""
STEPS = 60
"""Number of steps in which nodes find their places."""


class Graph(Kind):
    """A drawing of nodes and edges, and its arrays as fields."""

    name = "graph"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value has edges, as numbers of nodes."""
        return value.expandable and _edges(value.content) is not None

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Return the arrays of the graph."""
        mapping = _mapping(self.value.content)
        return iter([(clean(name, SUMMARY), mapping[name]) for name in list(mapping)[:MAX_PARTS]])

    def describe(self) -> None:
        """Place the nodes."""
        edges, field, mapping = _edges(self.value.content), self.field, _mapping(self.value.content)
        if edges is None:
            return
        count = _number_of_nodes(self.value.content, mapping, edges)
        both = _is_symmetric(edges)
        field.summary = f"{plural(count, 'node')}, {plural(edges.shape[1] // (1 + both), 'edge')}"
        field.facts |= {"nodes": count, "edges": edges.shape[1]}
        if self.context.view.scan or not count:
            return
        drawn = edges[:, (edges < MAX_NODES).all(axis=0) & (edges[0] != edges[1])][:, :MAX_EDGES]
        if both:
            drawn = drawn[:, drawn[0] < drawn[1]]
        nodes = min(count, MAX_NODES)
        field.data |= {
            "places": np.round(_places(mapping, nodes, drawn), 3).tolist(),
            "edges": drawn.T.tolist(),
            "classes": _classes(mapping, count)[:nodes],
        }
        field.drawn = True
        directed = "" if both else "each edge goes one way"
        field.note = joined(directed, f"the first {MAX_NODES} nodes are drawn" if count > nodes else "")

    def cover(self) -> Cover:
        """Return that a drawing represents the sample as well as a picture."""
        return Cover.PICTURE if self.field.drawn else Cover.OTHER


def _mapping(content: Any) -> Mapping[str, Any]:
    if isinstance(content, Mapping):
        return content
    convert = getattr(content, "to_dict", None)
    found = convert() if callable(convert) else vars(content)
    return found if isinstance(found, Mapping) else {}


def _edges(content: Any) -> NDArray[np.int64] | None:
    """Return the edges of a graph as two lines; None if the value is none."""
    try:
        given = content.get(EDGES) if isinstance(content, Mapping) else getattr(content, EDGES, None)
        edges = None if given is None or isinstance(content, type) else as_array(given)
    except Exception:  # noqa: BLE001 - the object of another library may raise anything for an attribute
        return None
    if edges is None or edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        return None
    return edges.astype(np.int64) if not edges.size or edges.min() >= 0 else None


def _number_of_nodes(content: Any, mapping: Mapping[str, Any], edges: NDArray[np.int64]) -> int:
    stated = mapping.get("num_nodes", getattr(content, "num_nodes", None))
    if isinstance(stated, int):
        return stated
    arrays = (as_array(mapping[name]) for name in FEATURES if name in mapping)
    known = [len(array) for array in arrays if array is not None and array.ndim]
    return max([*known, int(edges.max()) + 1 if edges.size else 0])


def _is_symmetric(edges: NDArray[np.int64]) -> bool:
    """Whether each edge is listed in both directions."""
    there = {tuple(pair) for pair in edges.T[: 4 * MAX_EDGES].tolist()}
    return bool(there) and edges.shape[1] <= 4 * MAX_EDGES and all((end, start) in there for start, end in there)


def _classes(mapping: Mapping[str, Any], count: int) -> list[int]:
    """Return a whole number for each node, for its color: its label, or its first or only whole feature."""
    for name in ("y", "z", *FEATURES[:2]):
        array = as_array(mapping[name]) if name in mapping else None
        if array is None or array.ndim not in (1, 2) or len(array) != count or not array.size:
            continue
        if array.ndim == 2 and array.shape[1] > 1 and _is_one_hot(array):
            return [int(number) for number in array.argmax(axis=1)]
        first = array.reshape(count, -1)[:, 0]
        if first.dtype.kind in "iu":
            return [int(number) for number in first]
    return [0] * count


def _is_one_hot(array: NDArray[Any]) -> bool:
    return bool(np.isin(array, (0, 1)).all() and (array.sum(axis=1) == 1).all())


def _places(mapping: Mapping[str, Any], count: int, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return where each node is drawn, from 0 to 1: at its position, or where forces between nodes are balanced."""
    stated = as_array(mapping["pos"]) if "pos" in mapping else None
    if stated is not None and stated.ndim == 2 and len(stated) >= count and stated.shape[1] >= 2:
        places = np.nan_to_num(stated[:count, :2].astype(np.float64)) * (1, -1)
    else:
        places = _balanced(count, edges)
    low, high = places.min(axis=0), places.max(axis=0)
    shown: NDArray[np.float64] = (places - (low + high) / 2) / (float((high - low).max()) or 1.0) + 0.5
    return shown


def _balanced(count: int, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return places at which connected nodes are near each other (Fruchterman and Reingold)."""
    angle = np.arange(count) * (np.pi * (3 - 5**0.5))
    places: NDArray[np.float64] = np.sqrt((np.arange(count) + 0.5) / count)[:, None] * np.stack(
        [np.cos(angle), np.sin(angle)], axis=1
    )
    near = 1.5 / max(1, count) ** 0.5
    for step in range(STEPS):
        apart = places[:, None] - places[None]
        far = np.maximum(np.sqrt((apart**2).sum(axis=2)), near / 100)
        force = (apart * (near**2 / far**2)[:, :, None]).sum(axis=1)
        along = places[edges[0]] - places[edges[1]]
        pull = along * (np.sqrt((along**2).sum(axis=1)) / near)[:, None]
        np.add.at(force, edges[0], -pull)
        np.add.at(force, edges[1], pull)
        force -= places * near  # parts that are not connected stay together
        size = np.maximum(np.sqrt((force**2).sum(axis=1, keepdims=True)), 1e-9)
        places += force / size * np.minimum(size, 0.15 * (1 - step / STEPS))
    return places
