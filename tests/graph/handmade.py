"""Small sources and graphs for the tests of this folder, and what they must become."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import random_array

from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.graph import Graph, NodeType
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.ops.sparse import SparseRows


class Edge(NamedTuple):
    src: int
    dst: int
    relation: int = 0
    weight: float = 1.0


class Listed(GraphSource):
    """Edges of a list, some at a time."""

    def __init__(self, edges, tables=None, *, typed=False, weighted=False, at_once=7, features=None):
        self.listed, self.given, self.features = edges, tables or NodeTableSource(), features
        self.typed, self.weighted, self.at_once = typed, weighted, at_once

    @property
    def name(self):
        return "listed"

    def read_tables(self):
        return self.given

    def read_edges(self):
        for first in range(0, len(self.listed), self.at_once):
            src, dst, relation, weight = zip(*self.listed[first : first + self.at_once], strict=True)
            yield EdgeChunk(
                np.array(src, dtype=np.int64),
                np.array(dst, dtype=np.int64),
                np.array(relation, dtype=np.int8) if self.typed else None,
                np.array(weight, dtype=np.float32) if self.weighted else None,
                None if self.features is None else self.features[first : first + self.at_once],
            )


def expected(edges, *, undirected, num_relations):
    """The edges of the graph in order, from the definition. Edges without types have no relations, and are all of 0."""
    edges = [edge if num_relations else edge._replace(relation=0) for edge in edges]
    if undirected:
        first = {}
        for edge in edges:
            first.setdefault(edge[:3], edge)
        pairs = {edge[:2] for edge in first.values()}
        missing = [edge for edge in first.values() if (edge.dst, edge.src) not in pairs]
        back = {}
        for edge in missing:
            back[edge.dst, edge.src, edge.relation] = Edge(
                edge.dst, edge.src, edge.relation + num_relations, edge.weight
            )
        edges = [*first.values(), *back.values()]
    return sorted(edges, key=lambda edge: (edge.dst, edge.src, edge.relation))


def edges_of(graph):
    """The edges of a graph in its order."""
    topology = graph.topology
    dst = torch.repeat_interleave(topology.indptr.diff()).tolist()
    relation = [0] * len(dst) if topology.relation is None else topology.relation.tolist()
    weight = [1.0] * len(dst) if topology.weight is None else topology.weight.tolist()
    return [Edge(*row) for row in zip(topology.indices.tolist(), dst, relation, weight, strict=True)]


def same(one: Graph, other: Graph) -> None:
    """Assert that two graphs are equal in every part, types of arrays included."""
    for name in ("name", "num_classes", "class_names", "relation_names", "node_types", "num_features"):
        assert getattr(one, name) == getattr(other, name), name
    parts, others = arrays(one), arrays(other)
    assert parts.keys() == others.keys()
    for name, values in parts.items():
        assert values.dtype == others[name].dtype, name
        assert torch.equal(values, others[name]), name


_EDGE_ARRAYS = ("indptr", "indices", "relation", "weight", "edge_features")


def arrays(graph):
    named = {
        **{name: getattr(graph.topology, name) for name in _EDGE_ARRAYS},
        **{name: getattr(graph.split, name) for name in ("train", "val", "test")},
        "labels": graph.labels,
    }
    if isinstance(graph.features, SparseRows):
        named |= {name: getattr(graph.features, name) for name in ("indptr", "indices", "values")}
    else:
        named["features"] = graph.features
    return {name: values for name, values in named.items() if values is not None}


def tables(num_nodes=40, **changes):
    """Tables in which everything is right."""
    rng = np.random.default_rng(3)
    known = {
        "num_nodes": num_nodes,
        "features": rng.random((num_nodes, 3), dtype=np.float32),
        "labels": rng.integers(0, 4, num_nodes),
        "train": np.arange(0, 20),
        "val": np.arange(20, 30),
        "test": np.arange(30, num_nodes),
        "class_names": ("a", "b", "c", "d"),
        "relation_names": ("r", "s"),
        "node_types": (NodeType(name="x", first=0, last=25), NodeType(name="y", first=25, last=num_nodes)),
    }
    return NodeTableSource(**{**known, **changes})


def source(edges=None, **changes):
    """A typed, weighted source in which everything is right, unless changed."""
    rng = np.random.default_rng(4)
    made = [
        Edge(*map(int, pair), int(rng.integers(2)), float(rng.integers(9))) for pair in rng.integers(0, 40, (300, 2))
    ]
    return Listed(made if edges is None else edges, tables(**changes), typed=True, weighted=True)


def graph(*, sparse=False, **changes):
    """A small graph with everything that a graph can have."""
    if sparse:
        changes["features"] = random_array((40, 9), density=0.2, rng=5, dtype=np.float32, format="csr")
    return assemble_graph(source(**changes), undirected=True)
