"""Links: edges as what is to be predicted, and a split of them that does not leak.

A link runs from a head to a tail. Those that validate and test are taken out of the graph, and with each of them every
other edge between the same two nodes, whatever its direction and relation: a model that may look at "part of" in one
direction need not predict "has part" in the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, as_tensor, parallel_kernel, prange
from outgrow.ops.rng import fold_in, hash64, uniform01
from outgrow.ops.rows.gather import concat_ranges

_TRAIN, _VAL, _TEST = 0, 1, 2
_SPLIT = 6


class LinkTriples(NamedTuple):
    """Directed links.

    Attributes:
        head: ``[P]`` int64, node that each comes from.
        tail: ``[P]`` int64, node that each goes to.
        relation: ``[P]`` int64; zeros where edges have no relations.
    """

    head: Tensor
    tail: Tensor
    relation: Tensor

    @property
    def non_loop_mask(self) -> Tensor:
        """``[P]`` bool: which are no loops."""
        return self.head != self.tail

    def select_links(self, at: Tensor | slice) -> LinkTriples:
        """Some of them, by number, mask or range."""
        return LinkTriples(*(each[at] for each in self))

    def __len__(self) -> int:
        return len(self.head)


class LinkSplit(NamedTuple):
    """What to train on, and what to predict.

    Attributes:
        topology: The graph without what validates and tests. Its edges, loops excepted, are the links to train on.
        val: Links to validate on, none twice.
        test: Links to test on, none twice.
        known: All links of the graph, in whatever part: those are no wrong answers.
    """

    topology: Topology
    val: LinkTriples
    test: LinkTriples
    known: LinkTriples


def split_links(topology: Topology, *, val: float, test: float, seed: int) -> LinkSplit:
    """Set links aside.

    Which part an edge is in is drawn by the key of (seed, smaller node, larger node), so all edges between two nodes
    are in one part, whatever the order of edges. Parts are about as large as asked for. Loops stay in the graph. Of
    links without relations that run in both directions only one is asked for.

    Args:
        topology: In-edges of all nodes.
        val: Share of the pairs of nodes to validate on.
        test: Share to test on.
        seed: Seed of the draw.

    Raises:
        InputError: Nothing but loops is left to train on, or nothing to test on where that was asked for.
    """
    links = collect_links(topology)
    part = np.empty(len(links), dtype=np.int8)
    ends = as_numpy(links.head), as_numpy(links.tail)
    _draw_parts(*ends, np.uint64(fold_in(seed, _SPLIT)), float(test), float(test + val), part)
    parts = as_tensor(part)
    directed = topology.relation is not None
    split = LinkSplit(
        topology=_remove_edges(topology, parts != _TRAIN),
        val=_unique_pairs(links.select_links(parts == _VAL), directed=directed),
        test=_unique_pairs(links.select_links(parts == _TEST), directed=directed),
        known=links.select_links(links.non_loop_mask),
    )
    _require_each_part(int(((parts == _TRAIN) & links.non_loop_mask).sum()), split, val, test)
    return split


def collect_links(topology: Topology) -> LinkTriples:
    """All edges of a graph as links, loops and duplicates too, in their order."""
    return collect_in_links(topology, topology.nodes)[0]


def collect_in_links(topology: Topology, nodes: Tensor) -> tuple[LinkTriples, Tensor]:
    """The in-edges of some nodes as links, loops and duplicates too, and ``[P]`` int64: the number of each edge."""
    first = topology.indptr[nodes]
    count = topology.indptr[nodes + 1] - first
    number = concat_ranges(first, count)
    relation = torch.zeros_like(number) if topology.relation is None else topology.relation[number].long()
    return LinkTriples(topology.indices[number].long(), torch.repeat_interleave(nodes, count), relation), number


def _remove_edges(topology: Topology, removed_E: Tensor) -> Topology:
    """The graph without some edges, given as a mask."""
    kept = ~removed_E
    before = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])
    return Topology(
        indptr=before[topology.indptr],
        indices=topology.indices[kept],
        relation=None if topology.relation is None else topology.relation[kept],
        weight=None if topology.weight is None else topology.weight[kept],
    )


def _unique_pairs(links: LinkTriples, *, directed: bool) -> LinkTriples:
    """Each link once, in the order of tails; where they are not ``directed``, each pair of nodes once."""
    head = links.head
    tail = links.tail
    if not directed:
        head, tail = torch.minimum(head, tail), torch.maximum(head, tail)
    names = np.stack([as_numpy(tail), as_numpy(head), as_numpy(links.relation)], 1)
    _, first = np.unique(names, axis=0, return_index=True)
    return links.select_links(as_tensor(np.sort(first)))


def _require_each_part(num_train: int, split: LinkSplit, val: float, test: float) -> None:
    found = {"to train on": num_train}
    found |= {"to validate on": len(split.val)} if val else {}
    found |= {"to test on": len(split.test)} if test else {}
    if all(found.values()):
        return
    raise InputError(
        "the graph has too few edges to predict links",
        needed=f"links {', '.join(found)}",
        got=", ".join(f"{count:,} {what}" for what, count in found.items()),
        repair="give a larger graph, or other val_links and test_links",
    )


@parallel_kernel
def _draw_parts(
    head: NDArray[np.int64],
    tail: NDArray[np.int64],
    key: np.uint64,
    test: float,
    held_out: float,
    out: NDArray[Any],
) -> None:
    """Draws below ``test`` are tested, those up to ``held_out`` validate; loops do neither."""
    for e in prange(len(head)):
        low, high = min(head[e], tail[e]), max(head[e], tail[e])
        drawn = uniform01(hash64(hash64(key, np.uint64(low)), np.uint64(high)))
        if low == high or drawn >= held_out:
            out[e] = _TRAIN
        else:
            out[e] = _TEST if drawn < test else _VAL
