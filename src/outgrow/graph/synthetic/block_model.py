"""Degree-corrected stochastic block model, whose edges can be drawn in any order and without tables.

Karrer, Newman: Stochastic blockmodels and community structure in networks, Physical Review E 83, 2011.

Nodes are ranked by decreasing weight. Ranks are assigned to the communities in rounds, one to each community
per round, in an order that changes with the round. So every community has hubs, and both the ranks of the
graph and the rounds of one community follow the same power law, which is sampled by inverting its
distribution function.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.synthetic.block_model_kernels import (
    BlockModelParams,
    draw_edges,
    draw_labels,
    make_block_model_params,
)
from outgrow.graph.synthetic.node_features import SyntheticNodes
from outgrow.graph.synthetic.structure import BlockStructure
from outgrow.ops.rng import fold_in

CHUNK_EDGES = 1 << 20
_EDGES, _LABELS = 21, 22


class BlockModel(GraphSource):
    """Block model with power-law degrees, labels that follow communities and features that follow labels.

    Each edge is a function of its number. Its first end is a node chosen by weight. Its second end is chosen
    by weight from the same community with probability ``locality``, otherwise from the whole graph or, with a
    ``decay``, from a community whose distance follows a power law. A random bit decides which end is the
    source. Self-loops and duplicates occur, rarely if degrees are small compared to communities. Read it as
    undirected for a symmetric graph with nearly twice as many edges.

    Powers are computed by the C library, so the graph does not depend on the number of threads, but may
    differ between kinds of machines.

    Args:
        structure: Nodes, edges, communities and degrees.
        node_spec: Classes, features and split.
        seed: Seed of the generator.
        name: Name of the graph.
    """

    def __init__(
        self, *, structure: BlockStructure, node_spec: SyntheticNodes, seed: int = 0, name: str = "block-model"
    ) -> None:
        self.structure = structure
        self.node_spec = node_spec
        self._seed = seed
        self._name = name

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self._name

    def read_tables(self) -> NodeTableSource:
        """Return labels, features that are computed when read, and a split of exact sizes."""
        key = fold_in(self._seed, _LABELS)
        labels = draw_labels(self._params, key, self.node_spec.classes, self.structure.homophily)
        return self.node_spec.make_node_tables(labels, self._seed)

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges, about a million at a time."""
        for first in range(0, self.structure.edges, CHUNK_EDGES):
            count = min(CHUNK_EDGES, self.structure.edges - first)
            yield EdgeChunk(*draw_edges(self._params, fold_in(self._seed, _EDGES), first, count))

    @cached_property
    def _params(self) -> BlockModelParams:
        return make_block_model_params(self.structure, self._seed)
