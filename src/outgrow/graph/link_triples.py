"""Edges as links: from a head to a tail, of a relation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.graph.topology import Topology
from outgrow.ops.rows.gather import concat_ranges

_CHUNK_EDGES = 1 << 22
"""Edges looked at together."""


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


def iterate_in_links(topology: Topology, max_edges: int = _CHUNK_EDGES) -> Iterator[tuple[LinkTriples, Tensor]]:
    """Yield all edges as links and their ids, those of several nodes at a time: see `collect_in_links`."""
    first, indptr = 0, topology.indptr
    while first < topology.num_nodes:
        end = int(torch.searchsorted(indptr, int(indptr[first]) + max_edges, right=True)) - 1
        last = min(topology.num_nodes, max(first + 1, end))
        yield collect_in_links(topology, torch.arange(first, last))
        first = last
