"""Link prediction: edges as links, and their split: one without leakage, or one that the graph comes with.

A link runs from a head to a tail. Links that are drawn to validate and to test on are removed from the graph,
together with every other edge between the same two nodes, whatever its direction and relation: a model that sees
"part of" in one direction could otherwise copy it instead of predicting "has part" in the other. Links that a graph
comes with are taken as they are; `outgrow.graph.link_leakage` says what they share with the edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
        head: ``[P]`` int64, source node of each link.
        tail: ``[P]`` int64, destination node of each link.
        relation: ``[P]`` int64; zeros if edges have no relations.
    """

    head: Tensor
    tail: Tensor
    relation: Tensor

    @property
    def non_loop_mask(self) -> Tensor:
        """``[P]`` bool: True for links that are not self-loops."""
        return self.head != self.tail

    def select_links(self, at: Tensor | slice) -> LinkTriples:
        """Return some of the links, selected by number, mask or slice."""
        return LinkTriples(*(each[at] for each in self))

    def __len__(self) -> int:
        return len(self.head)


class LinkCandidates(NamedTuple):
    """Wrong answers that links are ranked among, as OGB gives them (Hu et al., NeurIPS 2020).

    Attributes:
        head: ``[P, K]`` integer, nodes in the place of each head; None to rank heads among all nodes.
        tail: ``[P, K]`` integer, nodes in the place of each tail; None to rank tails among all nodes.
    """

    head: Tensor | None = None
    tail: Tensor | None = None

    def of_end(self, end: str) -> Tensor | None:
        """Return the candidates for an end, ``"head"`` or ``"tail"``."""
        return self.head if end == "head" else self.tail

    def select_links(self, at: Tensor) -> LinkCandidates:
        """Return the candidates of some links, selected by number or mask."""
        return LinkCandidates(*(None if each is None else each[at] for each in self))


@dataclass(frozen=True, eq=False)
class HeldOutLinks:
    """Links that a graph comes with to validate and to test on; they are none of its edges.

    Iteration yields the two parts.

    Attributes:
        val: Validation links; may be empty.
        test: Test links; may be empty.
        val_candidates: What validation links are ranked among; None for all nodes.
        test_candidates: What test links are ranked among; None for all nodes.
    """

    val: LinkTriples
    test: LinkTriples
    val_candidates: LinkCandidates | None = None
    test_candidates: LinkCandidates | None = None

    def __iter__(self) -> Iterator[LinkTriples]:
        return iter((self.val, self.test))

    @property
    def candidates(self) -> tuple[LinkCandidates | None, LinkCandidates | None]:
        """What the links of both parts are ranked among."""
        return self.val_candidates, self.test_candidates


class LinkSplit(NamedTuple):
    """Links to train on, to validate on and to test on.

    Attributes:
        topology: The graph without validation and test links. Its edges other than loops are the training
            links.
        val: Validation links; each once, unless the graph comes with them.
        test: Test links; likewise.
        known: All links to train, validate and test on, and loops among them: a prediction among these does not count
            as wrong.
        candidates: What the links to validate and to test on are ranked among; None for all nodes.
    """

    topology: Topology
    val: LinkTriples
    test: LinkTriples
    known: LinkTriples
    candidates: tuple[LinkCandidates | None, LinkCandidates | None] = (None, None)


def split_links(
    topology: Topology, *, val: float, test: float, seed: int, relations: Tensor | None = None
) -> LinkSplit:
    """Split the links of a graph into training, validation and test links.

    The part of an edge is a random function of (seed, smaller node, larger node), so all edges between two
    nodes are in the same part, whatever the order of edges. Parts have about the requested sizes. Loops stay
    in the graph. If edges have no relations, of two links in opposite directions only one is to be predicted.

    Edges of relations that are not predicted stay in the graph, but for those between two nodes whose link is held out.

    Args:
        topology: In-edges of all nodes.
        val: Share of node pairs to validate on.
        test: Share of node pairs to test on.
        seed: Seed of the split.
        relations: ``[n]`` int64, the relations whose links are predicted; None for all edges.

    Raises:
        InputError: Only loops remain to train on, or a part that was requested is empty.
    """
    links = collect_links(topology)
    parts = _draw_link_parts(links, val=val, test=test, seed=seed)
    chosen = mark_relations(links, relations)
    removed = parts != _TRAIN
    if relations is not None:
        # Of these pairs all edges go, as without a choice: the reverse of a link would give it away.
        pairs = torch.minimum(links.head, links.tail) * topology.num_nodes + torch.maximum(links.head, links.tail)
        removed &= torch.isin(pairs, pairs[removed & chosen])
    # Without relations, the reverse of a link is the same fact, and predicting both would count it twice.
    directed = topology.relation is not None
    split = LinkSplit(
        topology=_remove_edges(topology, removed),
        val=_unique_pairs(links.select_links((parts == _VAL) & chosen), directed=directed),
        test=_unique_pairs(links.select_links((parts == _TEST) & chosen), directed=directed),
        known=links.select_links(chosen),
    )
    _require_each_part(int(((parts == _TRAIN) & links.non_loop_mask & chosen).sum()), split, val, test)
    return split


def mark_train_links(links: LinkTriples, *, val: float, test: float, seed: int) -> Tensor:
    """Return ``[P]`` bool: which links `split_links` leaves to train on, loops excepted."""
    return (_draw_link_parts(links, val=val, test=test, seed=seed) == _TRAIN) & links.non_loop_mask


def _draw_link_parts(links: LinkTriples, *, val: float, test: float, seed: int) -> Tensor:
    """Return ``[P]`` int8: the part of each link."""
    part = np.empty(len(links), dtype=np.int8)
    ends = as_numpy(links.head), as_numpy(links.tail)
    _draw_parts(*ends, np.uint64(fold_in(seed, _SPLIT)), float(test), float(test + val), part)
    return as_tensor(part)


def take_held_out_links(topology: Topology, links: HeldOutLinks, relations: Tensor | None = None) -> LinkSplit:
    """Split the links of a graph as it comes with them: its edges are trained on, and none is removed.

    Links to validate and to test on are ranked as often as they are given.

    Args:
        topology: In-edges of all nodes.
        links: Links to validate and to test on.
        relations: ``[n]`` int64, the relations whose links are predicted; None for all.

    Raises:
        InputError: Only loops are there to train on.
    """
    edges = collect_links(topology)
    known = edges.select_links(mark_relations(edges, relations))
    chosen = [mark_relations(part, relations) for part in links]
    val, test = (part.select_links(at) for part, at in zip(links, chosen, strict=True))
    first, second = links.candidates
    if not known.non_loop_mask.any():
        raise InputError(
            "the graph has too few edges to predict links",
            needed="links to train on",
            got="0 to train on, besides those that are held out",
            repair="give a larger graph",
        )
    return LinkSplit(
        topology=topology,
        val=val,
        test=test,
        known=LinkTriples(*map(torch.cat, zip(known, val, test, strict=True))),
        candidates=(
            None if first is None else first.select_links(chosen[0]),
            None if second is None else second.select_links(chosen[1]),
        ),
    )


def mark_relations(links: LinkTriples, relations: Tensor | None) -> Tensor:
    """Return ``[P]`` bool: which links are of some relations; all of them for None."""
    return torch.ones(len(links), dtype=torch.bool) if relations is None else torch.isin(links.relation, relations)


def collect_links(topology: Topology) -> LinkTriples:
    """Return all edges of a graph as links in edge order, including loops and duplicates."""
    return collect_in_links(topology, topology.nodes)[0]


def collect_in_links(topology: Topology, nodes: Tensor) -> tuple[LinkTriples, Tensor]:
    """Return the in-edges of some nodes as links, with loops and duplicates, and ``[P]`` int64 their edge ids."""
    first = topology.indptr[nodes]
    count = topology.indptr[nodes + 1] - first
    number = concat_ranges(first, count)
    # Zeros rather than None: links with and without relations are then scored by the same code.
    relation = torch.zeros_like(number) if topology.relation is None else topology.relation[number].long()
    return LinkTriples(topology.indices[number].long(), torch.repeat_interleave(nodes, count), relation), number


def _remove_edges(topology: Topology, removed_E: Tensor) -> Topology:
    """Return the graph without the edges of a mask."""
    kept = ~removed_E
    # A sum of kept edges before each edge maps old row ends to new ones without a loop over rows.
    before = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])
    return Topology(
        indptr=before[topology.indptr],
        indices=topology.indices[kept],
        relation=None if topology.relation is None else topology.relation[kept],
        weight=None if topology.weight is None else topology.weight[kept],
        edge_features=None if topology.edge_features is None else topology.edge_features[kept],
        feature_sizes=topology.feature_sizes,
        feature_columns=topology.feature_columns,
        edge_time=None if topology.edge_time is None else topology.edge_time[kept],
        node_time=topology.node_time,
        times_are_dates=topology.times_are_dates,
    )


def _unique_pairs(links: LinkTriples, *, directed: bool) -> LinkTriples:
    """Return each link once, in the order of first occurrence; each pair of nodes once unless ``directed``."""
    head = links.head
    tail = links.tail
    if not directed:
        head, tail = torch.minimum(head, tail), torch.maximum(head, tail)
    names = np.stack([as_numpy(tail), as_numpy(head), as_numpy(links.relation)], 1)
    # Sorting the positions restores the order of edges, which is by tail.
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
    """Assign numbers below ``test`` to the test part, others below ``held_out`` to validation, loops to training."""
    for e in prange(len(head)):
        # Ordered, so that both directions of a pair, and all its relations, draw the same number.
        low, high = min(head[e], tail[e]), max(head[e], tail[e])
        number = uniform01(hash64(hash64(key, np.uint64(low)), np.uint64(high)))
        if low == high or number >= held_out:
            out[e] = _TRAIN
        else:
            out[e] = _TEST if number < test else _VAL
