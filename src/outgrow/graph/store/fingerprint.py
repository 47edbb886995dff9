"""Fingerprint of a graph's contents: by it a run knows whether it goes on with the data that it began with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from outgrow.graph.graph import Graph
from outgrow.graph.store.arrays import graph_arrays
from outgrow.graph.store.manifest import TYPE_FEATURES, TYPE_LABELS, read_manifest
from outgrow.graph.store.reader import array_checksum, matches_store

_LINKS = ("val_links", "test_links", "val_heads", "val_tails", "test_heads", "test_tails")
PARTS: Mapping[str, tuple[str, ...]] = {
    "topology": ("indptr", "indices", "relation", "weight", "edge_features", "edge_time", "node_time"),
    "features": ("features", "feature_indptr", "feature_indices", "feature_values"),
    "labels": ("labels",),
    "split": ("train", "val", "test", *_LINKS),
}
"""What training reads."""
IDS = "ids"
"""A part of graphs with ids. They do not matter to training, but to whose answers these are."""
_ID_ARRAYS = ("ids", "id_offsets", "id_data")
# Left out where a graph has none, so that fingerprints of other graphs are those of versions without them.
_OPTIONAL = ("edge_features", "edge_time", "node_time", *_LINKS)


def fingerprint_graph(graph: Graph) -> dict[str, str]:
    """Return a SHA-256 of topology, features, labels and split each, names included; and of the ids, if there are any.

    It is the same for a graph in memory and for its store, whose checksums are taken as they are. Arrays in memory
    are read once.
    """
    if graph.store is not None and matches_store(graph):
        checksums = {name: entry.sha256 for name, entry in read_manifest(graph.store).arrays.items()}
    else:
        checksums = {name: array_checksum(values) for name, values in graph_arrays(graph).items()}
    if graph.part is not None:
        # All parts, and the whole graph, are the same data.
        checksums = {name: graph.part.checksums.get(known, known) for name, known in checksums.items()}
    names: dict[str, list[object]] = {
        "topology": [list(graph.relation_names), [[kind.name, kind.first, kind.last] for kind in graph.node_types]],
        "features": [graph.num_features],
        "labels": [list(graph.class_names), graph.num_classes, *_describe_type_labels(graph)],
        "split": [],
    }
    if graph.topology.feature_sizes:
        names["topology"].append(list(graph.topology.feature_sizes))
    if graph.topology.feature_columns:
        names["topology"].append(list(graph.topology.feature_columns))
    parts = dict(PARTS)
    # Arrays by type stand in place of the others; fingerprints of other graphs stay as they were.
    parts["features"] += tuple(name for name in checksums if name.startswith(TYPE_FEATURES))
    parts["labels"] += tuple(f"{TYPE_LABELS}{number}" for number in range(len(graph.type_labels)))
    if graph.ids is not None:
        names[IDS], parts[IDS] = [], _ID_ARRAYS
    return {
        part: hashlib.sha256(
            json.dumps(
                [
                    names[part],
                    {array: checksums.get(array) for array in arrays if array in checksums or array not in _OPTIONAL},
                ]
            ).encode()
        ).hexdigest()
        for part, arrays in parts.items()
    }


def _describe_type_labels(graph: Graph) -> list[object]:
    return [[each.name, each.num_classes, list(each.class_names)] for each in graph.type_labels]


def changed_parts(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return which of `PARTS` differ between two fingerprints, and `IDS` if both have some that differ."""
    changed = [part for part in PARTS if before.get(part) != now.get(part)]
    return [*changed, IDS] if before.get(IDS, now.get(IDS)) != now.get(IDS, before.get(IDS)) else changed
