"""Block model with several types of nodes: each type has communities, and each relation its edges and degrees.

The communities of all types have the same numbers, and edges between two types prefer equal ones: a paper's authors and
topics tell of its class. Everything else is as in `outgrow.graph.synthetic.block_model`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np

from outgrow.core.errors import InputError
from outgrow.graph.graph import NodeType
from outgrow.graph.readers.source import BlockFeatures, EdgeChunk, GraphSource, Ids, LazyMatrix, NodeTableSource
from outgrow.graph.readers.typed_parts import name_relation
from outgrow.graph.synthetic.block_model import CHUNK_EDGES
from outgrow.graph.synthetic.block_model_kernels import (
    BlockModelParams,
    draw_labels,
    draw_relation_edges,
    make_block_model_params,
)
from outgrow.graph.synthetic.node_features import SyntheticNodes
from outgrow.graph.synthetic.structure import BlockStructure
from outgrow.ops.rng import fold_in

_EDGES, _LABELS, _TYPES = 23, 24, 25
_REVERSE = "rev_"


@dataclass(frozen=True, kw_only=True)
class TypedRelation:
    """The edges of a relation, which has a reverse of as many edges, named ``rev_`` and its name.

    Attributes:
        source: Type of the sources.
        name: Its name.
        target: Type of the destinations.
        edges: Number of edges, without those of the reverse.
        exponents: Exponents of the distributions of out-degrees of sources, and of in-degrees of destinations.
        locality: Share of the edges that must stay in a community, 0 to 1.
    """

    source: str
    name: str
    target: str
    edges: int
    exponents: tuple[float, float]
    locality: float


class TypedBlockModel(GraphSource):
    """Graph of several node types; nodes of the first have features, labels and a split, others only edges.

    Each edge is a function of its relation and its number. Its source is a node chosen by weight; its destination is
    chosen by weight from the community of the same number with probability ``locality``, otherwise from all nodes of
    its type. Duplicates occur, and are kept.

    Args:
        counts: Number of nodes of each type, in order.
        relations: Relations, in order; their reverses follow them.
        communities: Number of communities; a type with fewer nodes has one for each.
        node_spec: Classes, features and split of the nodes of the first type.
        seed: Seed of the generator.
        name: Name of the graph.

    Raises:
        InputError: A relation between types that are not there, or numbers that cannot be.
    """

    def __init__(
        self,
        *,
        counts: Mapping[str, int],
        relations: tuple[TypedRelation, ...],
        communities: int,
        node_spec: SyntheticNodes,
        seed: int = 0,
        name: str = "typed-block-model",
    ) -> None:
        self.counts = counts
        self.relations = relations
        self.node_spec = node_spec
        self._communities = communities
        self._seed = seed
        self._name = name
        missing = {end for each in relations for end in (each.source, each.target)} - counts.keys()
        if missing:
            raise InputError(
                "a relation has ends of types that are not there",
                needed=f"types among {', '.join(counts)}",
                got=", ".join(sorted(missing)),
                repair="correct the relation, or give the number of nodes of its types",
            )
        borders = np.cumsum([0, *counts.values()]).tolist()
        self._ranges = dict(zip(counts, pairwise(borders), strict=True))
        self._num_nodes: int = borders[-1]
        # Of each relation and end, drawn from again for every chunk.
        self._side = cache(self._make_params)
        for relation in relations:
            self._side(relation, 0)
            self._side(relation, 1)

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self._name

    def read_tables(self) -> NodeTableSource:
        """Return labels, features and split of the first type, and the ranges of all types."""
        kind = next(iter(self.counts))
        structure = BlockStructure(nodes=self.counts[kind], edges=0, communities=self._count_communities(kind))
        params = make_block_model_params(structure, self._type_seed(kind))
        labels = draw_labels(params, fold_in(self._seed, _LABELS), self.node_spec.classes, structure.homophily)
        tables = self.node_spec.make_node_tables(labels, self._seed)
        rows = tables.features
        assert rows is None or isinstance(rows, LazyMatrix)
        unlabelled = np.full(self._num_nodes - len(labels), -1, dtype=labels.dtype)
        return replace(
            tables,
            num_nodes=self._num_nodes,
            features=None if rows is None else BlockFeatures(parts=((0, rows),), num_rows=self._num_nodes),
            labels=np.concatenate([labels, unlabelled]),
            relation_names=self._name_relations(),
            node_types=tuple(
                NodeType(name=each, first=first, last=last, num_columns=self.node_spec.features * (each == kind))
                for each, (first, last) in self._ranges.items()
            ),
        )

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield the edges of all relations, then those of their reverses, at most about a million at a time."""
        count = len(self.relations)
        for number in range(2 * count):
            relation = self.relations[number % count]
            for first in range(0, relation.edges, CHUNK_EDGES):
                src, dst = self._draw_edges(number % count, first, min(CHUNK_EDGES, relation.edges - first))
                ends = (src, dst) if number < count else (dst, src)
                yield EdgeChunk(*ends, relation=np.full(len(src), number, dtype=np.int16))

    def _draw_edges(self, number: int, first: int, count: int) -> tuple[Ids, Ids]:
        relation = self.relations[number]
        key = fold_in(fold_in(self._seed, _EDGES), number)
        src, dst = draw_relation_edges((self._side(relation, 0), self._side(relation, 1)), key, first, count)
        return src + self._ranges[relation.source][0], dst + self._ranges[relation.target][0]

    def _make_params(self, relation: TypedRelation, end: int) -> BlockModelParams:
        kind = (relation.source, relation.target)[end]
        structure = BlockStructure(
            nodes=self.counts[kind],
            edges=relation.edges,
            communities=self._count_communities(kind),
            exponent=relation.exponents[end],
            locality=relation.locality,
        )
        return make_block_model_params(structure, self._type_seed(kind))

    def _count_communities(self, kind: str) -> int:
        return min(self._communities, self.counts[kind])

    def _type_seed(self, kind: str) -> int:
        # By type, not by relation: a node with many edges of one relation has many of the others.
        return fold_in(fold_in(self._seed, _TYPES), list(self.counts).index(kind))

    def _name_relations(self) -> tuple[str, ...]:
        forward = [name_relation((each.source, each.name, each.target)) for each in self.relations]
        reverse = [name_relation((each.target, f"{_REVERSE}{each.name}", each.source)) for each in self.relations]
        return (*forward, *reverse)
