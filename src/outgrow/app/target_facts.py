"""What `outgrow info` tells of the labels and the split of each node type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.statistics.labels import count_classes, mark_labelled
from outgrow.ops.backend import as_numpy

if TYPE_CHECKING:
    from outgrow.graph.graph import Graph

_PARTS = ("train", "val", "test")


def describe_target_types(graph: Graph) -> list[dict[str, Any]]:
    """Return facts on each node type that has labels, by name; empty if nodes have no types."""
    return [_describe_type(graph, name) for name in graph.target_types]


def join_class_counts(types: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the class counts of several types, each class with the name of its type before its own."""
    return [{**row, "class": f"{each['type']}/{row['class']}"} for each in types for row in each["class_counts"]]


def _describe_type(graph: Graph, name: str) -> dict[str, Any]:
    chosen = graph.select_targets(name)
    [kind] = [each for each in graph.node_types if each.name == name]
    nodes = slice(kind.first, kind.last)
    split = chosen.split
    parts: dict[str, NDArray[np.int64]] = {part: as_numpy(ids) for part, ids in vars(split).items()}
    counts = count_classes(chosen, {"nodes": nodes, **parts})
    names = chosen.class_names or tuple(str(number) for number in range(chosen.num_classes))
    rows = zip(names, *(count.tolist() for count in counts.values()), strict=True) if counts else ()
    return {
        "type": name,
        "labels_are": "numbers" if chosen.has_targets else "classes",
        "labels_per_node": "several" if chosen.multi_label else "one",
        "classes": chosen.num_classes,
        "labelled_nodes": int(mark_labelled(chosen, nodes).sum()),
        **{f"{part}_nodes": len(parts[part]) for part in _PARTS},
        "class_counts": [dict(zip(("class", *counts), row, strict=True)) for row in rows],
    }
