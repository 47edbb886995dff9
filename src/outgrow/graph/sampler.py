"""Neighbour sampling: blocks of a batch, in which each destination keeps some of its in-edges.

Which ones node ``v`` keeps in a layer is a pure function of (seed, epoch, step, layer, v), whoever samples and in
whatever batch (Hamilton, Ying, Leskovec: Inductive representation learning on large graphs, NeurIPS 2017).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.core.errors import InputError
from outgrow.graph.csc import Topology
from outgrow.graph.edge_choice import Chosen, EdgeChoice, Fanout
from outgrow.ops.backend import array, tensor
from outgrow.ops.keyed import NEIGHBOURS, derive
from outgrow.ops.sampling import Array, Ids
from outgrow.ops.sampling_bits import new_bits
from outgrow.ops.sampling_memory import Memory
from outgrow.ops.sampling_nodes import number_seeds, number_sources, take

_LARGEST = (1 << 31) - 1


class Sampler:
    """Draws blocks. Final; may be called from several threads at once.

    A layer whose fan-out is a number keeps so many of each node's in-edges, drawn without replacement: uniformly, or
    one after the other with probabilities by weight. One whose fan-out is a tuple keeps so many of each relation, drawn
    uniformly, and all self-loops that were added (relation -1). What is drawn by weight or from edges with relations
    takes time by the degrees of the nodes, everything else by the number of edges that are kept.

    Args:
        views: The topology as each layer of the model wants it, the first layer first.
        fanout: For each hop from the seeds outward, so the first is that of the last layer; -1 keeps all in-edges.
        seed: Key of all draws.
        weighted: Whether numbers are drawn by weight. Then ``weight * stands_for`` is the same for all drawn in-edges
            of a node, and their sum is the weight of all its in-edges.

    Raises:
        InputError: Not one fan-out for each view, views of different graphs or of 2^31 - 1 nodes or more, or what
            `EdgeChoice` refuses.
    """

    def __init__(
        self, views: Sequence[Topology], fanout: Sequence[Fanout], seed: int, *, weighted: bool = False
    ) -> None:
        _require_views(views, fanout)
        self.views, self.seed = tuple(views), seed
        given = zip(self.views, reversed(fanout), strict=True)
        self._choices = [EdgeChoice(view, number, weighted=weighted) for view, number in given]
        self._degrees = [array(view.degree) for view in self.views]
        self._memory, self._idle = Memory(), deque[_Scratch]()

    def blocks(self, seeds: Tensor, epoch: int, step: int) -> list[Block]:
        """The blocks of a batch, one for each layer.

        The first source nodes of a block are its destinations, and ``edge_ids`` are positions in the layer's view.

        Args:
            seeds: ``[n]`` int64, distinct; may be empty. The destinations of the last block.
            epoch: Part of the key.
            step: Part of the key.

        Raises:
            InputError: A seed is no node of the graph, or comes twice.
        """
        scratch = self._scratch()
        nodes = scratch.begin(array(seeds))
        key, hops = derive(self.seed, epoch, step), []
        for layer, choice in reversed([*enumerate(self._choices)]):
            chosen = choice.choose(nodes, derive(key, layer + 1, NEIGHBOURS), scratch.bits, self._memory)
            num_dst = len(nodes)
            nodes, indices = scratch.number(chosen.edges, choice.indices, nodes, self._memory)
            hops.append(_Hop(chosen, indices, num_dst, len(nodes)))
        scratch.end(len(nodes))
        self._idle.append(scratch)
        return self._blocks(hops[::-1], nodes)

    def _scratch(self) -> _Scratch:
        try:
            return self._idle.pop()
        except IndexError:
            return _Scratch(self.views[0].num_nodes, max(choice.most_bits for choice in self._choices))

    def _blocks(self, hops: Sequence[_Hop], nodes: Ids) -> list[Block]:
        node_ids, degrees, blocks = tensor(nodes), dict[Topology, Tensor](), []
        for view, degree, hop in zip(self.views, self._degrees, hops, strict=True):
            if view not in degrees:  # the first layer that wants it has the most sources
                degrees[view] = self._taken(degree, nodes[: hop.num_src])
            blocks.append(self._block(view, hop, node_ids, degrees[view]))
        return blocks

    def _block(self, view: Topology, hop: _Hop, nodes: Tensor, degree: Tensor) -> Block:
        chosen, num_dst, num_src = hop.chosen, hop.num_dst, hop.num_src
        edges = Edges(
            indptr=tensor(chosen.indptr),
            indices=tensor(hop.indices),
            num_src=num_src,
            relation=None if view.relation is None else self._taken(array(view.relation), chosen.edges),
            weight=None if view.weight is None else self._taken(array(view.weight), chosen.edges),
        )
        return Block(
            edges=edges,
            src_nodes=nodes[:num_src],
            dst_nodes=nodes[:num_dst],
            src_degree=degree[:num_src],
            dst_degree=degree[:num_dst],
            edge_ids=tensor(chosen.edges),
            stands_for=None if chosen.stands_for is None else tensor(chosen.stands_for),
            relation_degree=None if chosen.relation_degree is None else tensor(chosen.relation_degree),
        )

    def _taken(self, values: Array, rows: Ids) -> Tensor:
        out = self._memory.empty(len(rows), values.dtype)
        take(values, rows, out)
        return tensor(out)


class _Hop(NamedTuple):
    """What was drawn for one layer: the in-edges, ``[E]`` int32 rows of their sources, and how many nodes there are."""

    chosen: Chosen
    indices: NDArray[np.int32]
    num_dst: int
    num_src: int


class _Scratch:
    """Memory of one caller at a time: the numbers of nodes, and a set for draws.

    Args:
        num_nodes: ``V``.
        most_bits: Numbers in the set are less.
    """

    def __init__(self, num_nodes: int, most_bits: int) -> None:
        self.bits = new_bits(most_bits)
        self._table, self._base = np.zeros(num_nodes, dtype=np.int32), 1

    def begin(self, seeds: Ids) -> Ids:
        """Number the seeds from 0; returns them, the nodes that have a number."""
        numbered = number_seeds(seeds, self._table, self._base)
        if numbered < len(seeds):
            raise InputError(
                "these nodes cannot be the seeds of a batch",
                needed=f"distinct nodes, from 0 to {len(self._table) - 1}",
                got=f"{seeds[numbered]} at position {numbered}",
                repair="give every node of the batch once",
            )
        return seeds

    def number(self, edges: Ids, indices: Array, nodes: Ids, memory: Memory) -> tuple[Ids, NDArray[np.int32]]:
        """Number the sources of edges.

        Args:
            edges: ``[E]``.
            indices: Source of every edge of the view.
            nodes: Those that have a number, in this order.
            memory: For the results.

        Returns:
            The nodes that have a number now, and ``[E]`` the number of each edge's source.
        """
        known, local = len(nodes), memory.empty(len(edges), np.int32)
        grown = memory.empty(known + len(edges), np.int64)
        grown[:known] = nodes
        known = number_sources(edges, indices, self._table, self._base, grown, known, local)
        return grown[:known], local

    def end(self, known: int) -> None:
        """Forget the numbers of a batch of so many nodes."""
        self._base += known
        if self._base > _LARGEST - len(self._table):
            self._table[:], self._base = 0, 1


def _require_views(views: Sequence[Topology], fanout: Sequence[Fanout]) -> None:
    if not views or len(fanout) != len(views):
        raise InputError(
            "the fan-outs do not fit the model",
            needed=f"{max(1, len(views))} of them, one for each layer",
            got=f"{len(fanout)}: {tuple(fanout)}",
            repair="give one fan-out for each layer, the last layer's first; -1 keeps all in-edges",
        )
    sizes = {view.num_nodes for view in views}
    if len(sizes) > 1 or max(sizes) >= _LARGEST:
        raise InputError(
            "these graphs cannot be sampled",
            needed=f"views of one graph, of fewer than {_LARGEST} nodes",
            got=f"graphs of {', '.join(map(str, sorted(sizes)))} nodes",
            repair="give the topology, or the topology with self-loops, for each layer",
        )
