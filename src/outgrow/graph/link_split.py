"""Link prediction: edges as links, and their split: one without leakage, or one that the graph comes with.

A link runs from a head to a tail. Links that are drawn to validate and to test on are removed from the graph,
together with every other edge between the same two nodes, whatever its direction and relation: a model that sees
"part of" in one direction could otherwise copy it instead of predicting "has part" in the other. Links that a graph
comes with are taken as they are; `outgrow.graph.link_leakage` says what they share with the edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.graph.link_triples import LinkTriples, iterate_in_links, mark_relations
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, as_tensor, parallel_kernel, prange
from outgrow.ops.rng import fold_in, hash64, uniform01

TRAIN, VAL, TEST = 0, 1, 2
_SPLIT = 6


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
        whole: The graph whose edges are known links; with those that were drawn to be held out.
        others: Known links that are no edges: those that the graph comes with to be held out.
        relations: ``[n]`` int64, the relations whose links are predicted; None for all.
        candidates: What the links to validate and to test on are ranked among; None for all nodes.
    """

    topology: Topology
    val: LinkTriples
    test: LinkTriples
    whole: Topology
    others: tuple[LinkTriples, ...] = ()
    relations: Tensor | None = None
    candidates: tuple[LinkCandidates | None, LinkCandidates | None] = (None, None)

    @property
    def known_links(self) -> LinkTriples:
        """All links to train, validate and test on, and loops among them: predictions among these are not wrong."""
        return self._join(lambda links: links)

    def find_known_answers(self) -> LinkTriples:
        """Return the known links that answer what links to validate and to test on ask: those with the same end.

        The list is as long as there are such links, however many edges there are.
        """
        num_nodes = self.whole.num_nodes
        heads, tails = (torch.zeros(num_nodes, dtype=torch.bool) for _ in range(2))
        for part in (self.val, self.test):
            heads[part.head], tails[part.tail] = True, True
        if self.whole.relation is None:
            # Each answers in both directions.
            heads = tails = heads | tails
        return self._join(lambda links: links.select_links(heads[links.head] | tails[links.tail]))

    def _join(self, select: Callable[[LinkTriples], LinkTriples]) -> LinkTriples:
        """Return the links that a function selects among those of the graph, some at a time, and those held out."""
        chunks = (
            links.select_links(mark_relations(links, self.relations)) for links, _ in iterate_in_links(self.whole)
        )
        parts = [select(links) for links in chunks]
        return _join_links([*parts, *(select(links) for links in self.others)])


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
    held_out = _HeldOutEdges.draw(topology, val=val, test=test, seed=seed, relations=relations)
    # Without relations, the reverse of a link is the same fact, and predicting both would count it twice.
    directed = topology.relation is not None
    split = LinkSplit(
        topology=_remove_edges(topology, held_out.removed),
        val=_unique_pairs(held_out.val, directed=directed),
        test=_unique_pairs(held_out.test, directed=directed),
        whole=topology,
        relations=relations,
    )
    _require_each_part(held_out.num_train, split, val, test)
    return split


class _HeldOutEdges(NamedTuple):
    """Edges that are drawn to be held out.

    Attributes:
        removed: ``[E]`` bool, which edges are removed.
        val: Links to validate on, as often as there are edges.
        test: Links to test on.
        num_train: Number of links that are left to train on.
    """

    removed: Tensor
    val: LinkTriples
    test: LinkTriples
    num_train: int

    @staticmethod
    def draw(topology: Topology, *, val: float, test: float, seed: int, relations: Tensor | None) -> _HeldOutEdges:
        removed = torch.zeros(topology.num_edges, dtype=torch.bool)
        found, pairs, num_train = {VAL: list[LinkTriples](), TEST: list[LinkTriples]()}, list[Tensor](), 0
        for links, number in iterate_in_links(topology):
            parts = draw_link_parts(links, val=val, test=test, seed=seed)
            chosen = mark_relations(links, relations)
            for part, those in found.items():
                those.append(links.select_links((parts == part) & chosen))
            num_train += int(((parts == TRAIN) & links.non_loop_mask & chosen).sum())
            out = parts != TRAIN
            removed[number] = out
            if relations is not None:
                pairs.append(_encode_pairs(links.select_links(out & chosen), topology.num_nodes))
        if relations is not None:
            # Of these pairs all edges go, as without a choice: the reverse of a link would give it away.
            of_links = torch.cat(pairs)
            for links, number in iterate_in_links(topology):
                removed[number] &= torch.isin(_encode_pairs(links, topology.num_nodes), of_links)
        return _HeldOutEdges(removed, _join_links(found[VAL]), _join_links(found[TEST]), num_train)


def _join_links(parts: Sequence[LinkTriples]) -> LinkTriples:
    return LinkTriples(*map(torch.cat, zip(*parts, strict=True)))


def _encode_pairs(links: LinkTriples, num_nodes: int) -> Tensor:
    """Return ``[P]`` int64: a number of the two ends of each link, in either direction."""
    return torch.minimum(links.head, links.tail) * num_nodes + torch.maximum(links.head, links.tail)


def mark_train_links(links: LinkTriples, *, val: float, test: float, seed: int) -> Tensor:
    """Return ``[P]`` bool: which links `split_links` leaves to train on, loops excepted."""
    return (draw_link_parts(links, val=val, test=test, seed=seed) == TRAIN) & links.non_loop_mask


def draw_link_parts(links: LinkTriples, *, val: float, test: float, seed: int) -> Tensor:
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
    has_links = any(
        bool((links.non_loop_mask & mark_relations(links, relations)).any()) for links, _ in iterate_in_links(topology)
    )
    chosen = [mark_relations(part, relations) for part in links]
    val, test = (part.select_links(at) for part, at in zip(links, chosen, strict=True))
    first, second = links.candidates
    if not has_links:
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
        whole=topology,
        others=(val, test),
        relations=relations,
        candidates=(
            None if first is None else first.select_links(chosen[0]),
            None if second is None else second.select_links(chosen[1]),
        ),
    )


def _remove_edges(topology: Topology, removed_E: Tensor) -> Topology:
    """Return the graph without the edges of a mask."""
    kept = ~removed_E
    # The number of removed edges before each row maps old row ends to new ones without a loop over rows.
    before = torch.searchsorted(removed_E.nonzero()[:, 0], topology.indptr)
    return Topology(
        indptr=topology.indptr - before,
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
            out[e] = TRAIN
        else:
            out[e] = TEST if number < test else VAL
