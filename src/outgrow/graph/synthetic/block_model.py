"""A degree-corrected stochastic block model whose edges can be drawn in any order, without a table.

Karrer, Newman: Stochastic blockmodels and community structure in networks, Physical Review E 83, 2011.

Nodes have ranks, by falling weight. Ranks are dealt to the communities like cards, one to each community per round, in
an order that changes with the round; so every community has hubs, and both the ranks of the graph and the rounds of
one community follow the same power law, which is drawn by inverting its distribution function.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from outgrow.graph.readers.source import EdgeChunk, Source, Tables
from outgrow.graph.synthetic.block_model_kernels import Law, draw_edges, draw_labels, law_of
from outgrow.graph.synthetic.node_features import NodeSignal
from outgrow.graph.synthetic.structure import BlockStructure
from outgrow.ops.rng import derive

CHUNK_EDGES = 1 << 20
_EDGES, _LABELS = 21, 22


class BlockModel(Source):
    """Communities, power-law degrees, labels that follow the communities and features that follow the labels.

    Each edge is drawn from its number alone. Its first end is a node drawn by weight; its second end is drawn by weight
    from the same community with the probability ``locality``, else from the whole graph, or, with a ``decay``, from a
    community whose distance follows a power law; a coin says which is the source. Self-loops and duplicates occur,
    rarely where degrees are small against communities. Read it as undirected for a symmetric graph of nearly twice as
    many edges.

    The powers that ranks are drawn with come from the C library: a graph is the same for any number of threads, and
    on machines of one kind.

    Args:
        structure: Nodes, edges, communities and degrees.
        signal: Classes, features and split.
        seed: Key of all draws.
        name: What to call the graph.
    """

    def __init__(
        self, *, structure: BlockStructure, signal: NodeSignal, seed: int = 0, name: str = "block-model"
    ) -> None:
        self.structure = structure
        self.signal = signal
        self._seed = seed
        self._name = name

    @property
    def name(self) -> str:
        """What to call the graph."""
        return self._name

    def tables(self) -> Tables:
        """Labels, features that are made when they are read, and a split of exact sizes."""
        key = derive(self._seed, _LABELS)
        labels = draw_labels(self._law, key, self.signal.classes, self.structure.homophily)
        return self.signal.tables(labels, self._seed)

    def edges(self) -> Iterator[EdgeChunk]:
        """All edges, about a million at a time."""
        for first in range(0, self.structure.edges, CHUNK_EDGES):
            count = min(CHUNK_EDGES, self.structure.edges - first)
            yield EdgeChunk(*draw_edges(self._law, derive(self._seed, _EDGES), first, count))

    @cached_property
    def _law(self) -> Law:
        return law_of(self.structure, self._seed)
