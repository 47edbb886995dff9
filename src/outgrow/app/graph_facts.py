"""What `outgrow info` tells of a graph, by names that do not change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outgrow.app.likely_mistakes import find_likely_mistakes
from outgrow.app.target_facts import describe_target_types, join_class_counts
from outgrow.graph.link_leakage import describe_leakage
from outgrow.graph.statistics.components import count_components
from outgrow.graph.statistics.degrees import find_count_quantiles, find_degree_quantiles, split_counts
from outgrow.graph.statistics.edges import EdgeSample, count_edge_kinds, count_sampled_kinds, sample_edges
from outgrow.graph.statistics.features import (
    count_categories,
    count_features,
    count_repeated_rows,
    describe_form,
    find_column_quantiles,
    find_label_columns,
    find_numbering_columns,
    find_target_columns,
    sample_rows,
)
from outgrow.graph.statistics.homophily import count_class_edges, count_sampled_class_edges, measure_homophily
from outgrow.graph.statistics.labels import count_classes, count_labelled, mark_labelled
from outgrow.graph.statistics.times import summarize_times
from outgrow.ops.backend import as_numpy
from outgrow.ops.owned_rows import held_rows

if TYPE_CHECKING:
    from outgrow.graph.graph import Graph

COUNTED_EDGES = 1 << 25
"""Most edges that are all looked at without ``full``: some seconds."""
_SHOWN_IDS = 3
_BLOCK = 1 << 20


def describe_graph(graph: Graph, *, full: bool = False) -> dict[str, Any]:
    """Return facts on a graph, by name.

    Of more than 2^25 edges, and of large features, only keyed samples are looked at, unless ``full`` is set;
    ``sampled_edges`` and ``sampled_features`` name the facts that are estimates, and those that a sample cannot tell
    are None.
    """
    facts = _describe_source(graph)
    facts |= _describe_edges(graph, whole=full or graph.num_edges <= COUNTED_EDGES)
    facts |= _describe_edge_features(graph, full=full)
    facts |= {"edge_times": summarize_times(graph.edge_time), "node_times": summarize_times(graph.node_time)}
    facts |= _describe_features(graph, full=full) | _describe_labels(graph) | _describe_split(graph)
    facts["likely_mistakes"] = [mistake._asdict() for mistake in find_likely_mistakes(facts)]
    return facts


def _describe_source(graph: Graph) -> dict[str, Any]:
    kind = "numbers" if graph.ids is None else "texts" if graph.ids.are_text else "integers"
    shown = range(min(_SHOWN_IDS, graph.num_nodes))
    return {
        "name": graph.name,
        "read": _join_places(graph),
        "not_read": list(graph.origin.unread),
        "nodes": graph.num_nodes,
        **_describe_part(graph),
        "node_types": {kind.name: kind.last - kind.first for kind in graph.node_types},
        "ids_are": kind,
        "first_ids": [node if graph.ids is None else graph.ids[node] for node in shown],
    }


def _describe_part(graph: Graph) -> dict[str, Any]:
    part = graph.part
    if part is None:
        return {}
    own = int((part.node_part == part.number).sum())
    return {"part": f"{part.number} of {part.num_parts}, by {part.method}", "nodes_with_features": own}


def _join_places(graph: Graph) -> dict[str, str]:
    """Return where each part was read, several places one after the other."""
    places: dict[str, list[str]] = {}
    for what, where in graph.origin.read:
        places.setdefault(what, []).append(where)
    return {what: "; ".join(dict.fromkeys(each)) for what, each in places.items()}


def _describe_labels(graph: Graph) -> dict[str, Any]:
    types = describe_target_types(graph)
    own = types if graph.type_labels else []
    labelled = sum(each["labelled_nodes"] for each in own) if own else count_labelled(graph)
    split = graph.split
    parts = {"train": split.train, "val": split.val, "test": split.test}
    nodes: dict[str, NDArray[np.int64] | slice] = {name: as_numpy(part) for name, part in parts.items()}
    counts = count_classes(graph, {"nodes": slice(None), **nodes})
    names = graph.class_names or tuple(str(number) for number in range(graph.num_classes))
    rows = zip(names, *(count.tolist() for count in counts.values()), strict=True) if counts else ()
    return {
        "classes": graph.num_classes,
        "labels_per_node": _join_words(own, "labels_per_node")
        or ("several" if graph.labels is not None and graph.labels.dim() == 2 else "one"),
        "labels_are": _join_words(own, "labels_are")
        or ("none" if graph.labels is None else "numbers" if graph.has_targets else "classes"),
        "labelled_nodes": labelled,
        "label_rate": _share(labelled, graph.num_nodes),
        "class_counts": join_class_counts(own) or [dict(zip(("class", *counts), row, strict=True)) for row in rows],
        "target_types": types,
    }


def _join_words(types: list[dict[str, Any]], fact: str) -> str:
    """Return the different words of a fact on several types; empty if there are none."""
    return " and ".join(dict.fromkeys(each[fact] for each in types))


def _describe_features(graph: Graph, *, full: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"features": graph.num_features, "features_are": "none"}
    if graph.features is None or not graph.num_features:
        return facts
    features = held_rows(graph.features)
    num_rows = len(features)
    dtype = str(features.dtype).removeprefix("torch.")
    found = count_features(features, full=full)
    sampled = found.num_rows < num_rows
    facts |= {
        "features_are": f"{describe_form(features)} {dtype}",
        "feature_range": [found.smallest, found.largest],
        "constant_feature_columns": list(found.constant),
        "zero_feature_rows": _share(found.zero_rows, found.num_rows),
        "feature_rows_looked_at": found.num_rows,
    }
    if sampled:
        facts["sampled_features"] = ["feature_range", "constant_feature_columns", "zero_feature_rows"]
    if graph.part is not None:
        # What compares rows with nodes and labels needs all of them.
        return facts
    facts["columns_that_number_nodes"] = find_numbering_columns(features)
    train, test = as_numpy(graph.split.train), as_numpy(graph.split.test)
    if graph.labels is not None:
        again = count_repeated_rows(features, as_numpy(graph.labels), train, test)
        facts["test_rows_in_train"] = _share(again.in_train, again.looked_at)
        facts["train_rows_repeated"] = _share(again.within_train, again.train_looked_at)
        if graph.labels.dim() == 1:
            find = find_target_columns if graph.has_targets else find_label_columns
            facts["columns_that_tell_label"] = find(features, as_numpy(graph.labels))
    return facts


def _describe_edge_features(graph: Graph, *, full: bool) -> dict[str, Any]:
    features, sizes = graph.edge_features, list(graph.topology.feature_sizes)
    facts: dict[str, Any] = {
        "edge_features": 0 if features is None else features.shape[1],
        "edge_features_are": "none",
    }
    if features is None or not graph.num_edges:
        return facts
    dtype = str(features.dtype).removeprefix("torch.")
    found = count_features(features, full=full)
    facts |= {
        "edge_features_are": f"{dtype} {'codes of categories' if sizes else 'numbers'}",
        "constant_edge_feature_columns": list(found.constant),
        "edge_features_looked_at": found.num_rows,
    }
    if sizes:
        facts |= {"edge_categories": sizes, "edge_category_counts": count_categories(features, sizes)}
    else:
        facts |= {
            "edge_feature_range": [found.smallest, found.largest],
            "edge_feature_quantiles": find_column_quantiles(features),
            "zero_edge_feature_rows": _share(found.zero_rows, found.num_rows),
        }
    if found.num_rows < graph.num_edges:
        names = ("constant_edge_feature_columns", "edge_feature_range", "zero_edge_feature_rows")
        facts["sampled_edge_features"] = [name for name in names if name in facts]
    if len(sample_rows(features)) < graph.num_edges:
        facts.setdefault("sampled_edge_features", []).append(
            "edge_category_counts" if sizes else "edge_feature_quantiles"
        )
    return facts


def _describe_edges(graph: Graph, *, whole: bool) -> dict[str, Any]:
    topology = graph.topology
    indptr = as_numpy(topology.indptr)
    in_degrees = find_degree_quantiles(indptr)
    sample = sample_edges(topology)
    counts = count_edge_kinds(topology) if whole else count_sampled_kinds(topology, sample)
    components = count_components(topology) if whole else None
    out_degree = counts.out_degree
    no_in = _count_nodes(indptr, None)
    facts: dict[str, Any] = {
        "edges": graph.num_edges,
        "relations": list(graph.relation_names),
        "weighted": topology.weight is not None,
        "weight_range": _find_weight_range(graph, None if whole else sample),
        "mean_degree": round(graph.num_edges / max(1, graph.num_nodes), 3),
        "largest_in_degree": in_degrees.get("100", 0),
        "in_degree_quantiles": in_degrees,
        "out_degree_quantiles": None if out_degree is None else find_count_quantiles(split_counts(out_degree)),
        "nodes_without_in_edges": no_in,
        "isolated_nodes": None if out_degree is None else _count_nodes(indptr, out_degree),
        "first_node_is_isolated": None if out_degree is None else bool(indptr[1] == 0 and out_degree[0] == 0),
        "components": None if components is None else components.number,
        "largest_component": None if components is None else _share(components.largest, graph.num_nodes),
        "self_loops": _estimate(counts.self_loops, counts.num_edges, graph.num_edges),
        "duplicate_edges": _estimate(counts.duplicates, counts.num_edges, graph.num_edges),
        "reciprocal_edges": _share(counts.reciprocal or 0, counts.num_edges - counts.self_loops),
        "homophily": _describe_homophily(graph, None if whole else sample),
        "edges_looked_at": counts.num_edges,
    }
    if not whole:
        facts["sampled_edges"] = ["weight_range", "self_loops", "duplicate_edges", "reciprocal_edges", "homophily"]
    return facts


def _describe_homophily(graph: Graph, sample: EdgeSample | None) -> dict[str, float | None] | None:
    if graph.labels is None or graph.has_targets or graph.multi_label or not graph.num_edges:
        return None
    labels = as_numpy(graph.labels)
    sizes = count_classes(graph, {"nodes": slice(None)})["nodes"]

    def measure(some: EdgeSample | None) -> dict[str, float | None] | None:
        number = graph.num_classes
        counts = (
            count_class_edges(graph.topology, labels, number)
            if some is None
            else count_sampled_class_edges(some, labels, number)
        )
        found = measure_homophily(counts, sizes)
        # JSON has no NaN.
        return (
            None
            if found is None
            else {name: None if math.isnan(value) else round(value, 4) for name, value in found._asdict().items()}
        )

    found = measure(sample)
    # With ids that are off by one, edges fit the labels of the nodes beside those that they name.
    moved = [measure(sample_edges(graph.topology).move_ends(step, graph.num_nodes)) for step in (1, -1)]
    if found is not None:
        found["if_moved_by_one"] = max((each["edge"] or 0.0 for each in moved if each is not None), default=0.0)
    return found


def _describe_split(graph: Graph) -> dict[str, Any]:
    split = graph.split
    train = as_numpy(split.train)
    indptr = as_numpy(graph.topology.indptr)
    links = graph.held_out_links
    return {
        "train_nodes": len(split.train),
        "val_nodes": len(split.val),
        "test_nodes": len(split.test),
        "splits": max(1, len(graph.splits)),
        "train_nodes_without_in_edges": int((indptr[train + 1] == indptr[train]).sum()),
        "train_nodes_without_label": _count_unlabelled(graph, train),
        "held_out_links": None if links is None else {"val": len(links.val), "test": len(links.test)},
        "link_leakage": describe_leakage(graph),
    }


def _count_unlabelled(graph: Graph, nodes: NDArray[np.int64]) -> int:
    """Return how many of some nodes have no label."""
    if graph.labels is not None:
        return int((~mark_labelled(graph, nodes)).sum())
    if not graph.type_labels:
        return 0
    chosen = [graph.select_targets(each.name) for each in graph.type_labels]
    return len(nodes) - sum(int(mark_labelled(each, as_numpy(each.split.train)).sum()) for each in chosen)


def _find_weight_range(graph: Graph, sample: EdgeSample | None) -> list[float] | None:
    weight = graph.topology.weight
    if weight is None or not len(weight):
        return None
    values = as_numpy(weight)
    blocks: Iterator[NDArray[Any]] = (
        iter([values[sample.number]])
        if sample is not None
        else (values[first : first + _BLOCK] for first in range(0, len(values), _BLOCK))
    )
    ends = [(float(block.min()), float(block.max())) for block in blocks]
    return [min(low for low, _ in ends), max(high for _, high in ends)]


def _count_nodes(indptr: NDArray[np.int64], out_degree: NDArray[np.int64] | None) -> int:
    """Return the number of nodes without in-edges and, if their out-degrees are given, without out-edges."""
    total = 0
    for first in range(0, len(indptr) - 1, _BLOCK):
        none = np.diff(indptr[first : first + _BLOCK + 1]) == 0
        total += int((none if out_degree is None else none & (out_degree[first : first + _BLOCK] == 0)).sum())
    return total


def _estimate(found: int, looked_at: int, total: int) -> int:
    return found if looked_at == total else round(found / max(1, looked_at) * total)


def _share(part: int, total: int) -> float:
    return round(part / total, 4) if total else 0.0
