"""Outputs of the edges to validate or to test on, some at a time, from the rows of their ends.

Letters: ``P`` edges, ``F`` columns, ``C`` outputs, ``U`` nodes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from outgrow.engine.edge_labels import EdgeLabels
from outgrow.engine.shard import GraphShard
from outgrow.graph.link_numbers import LinkNumbers
from outgrow.inference.query_scores import CHUNK_BYTES
from outgrow.inference.scored_rows import ScoredRows, fetch_scored_rows
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.ops.rows.positions import find_positions

_COPIES = 8
"""Rows for an edge that is scored: both ends in float64, fetched ones, hidden units."""


class EdgeScorer:
    """Scores some edges by the output of a model; each worker those into the nodes that it owns. Final.

    Args:
        shard: What the worker holds of the graph.
        decoder: Scores edges.
        labels: Targets of edges, and their features.
        edges: ``[n]`` int64, ascending: ids of the edges, over all workers.
    """

    def __init__(self, shard: GraphShard, decoder: EdgeDecoder, labels: EdgeLabels, edges: Tensor) -> None:
        self.shard = shard
        self.decoder = decoder
        self.labels = labels
        self.edges = edges
        self._numbers = LinkNumbers(shard.topology, edges=edges)

    def __len__(self) -> int:
        return len(self.edges)

    def find_scored_nodes(self) -> Tensor:
        """Return ``[m]`` int64, ascending: the own nodes that are ends of the edges."""
        read = torch.zeros(self.shard.topology.num_nodes, dtype=torch.bool)
        for number in torch.split(self.edges, 1 << 20):
            links = self._numbers.find_links(number)
            read[links.head] = read[links.tail] = True
        return self.shard.owned_nodes[read[self.shard.owned_nodes]]

    @torch.no_grad()
    def iterate_outputs(self, rows: ScoredRows) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ids ``[P]`` and outputs ``[P, C]``, float64, of the worker's edges. All workers together.

        Args:
            rows: Rows of `find_scored_nodes`, and maybe of more own nodes.
        """
        # In float64, since rounding of products depends on the position of a row among others.
        decoder = copy.deepcopy(self.decoder).to(rows.device, torch.float64).eval()
        size = max(1, CHUNK_BYTES // (8 * _COPIES * max(1, rows.width)))
        # The same chunks on all workers, since each takes part in an exchange.
        for number in torch.split(self.edges, size) if len(self.edges) else ():
            links = self._numbers.find_links(number)
            heads, at_head = torch.unique(links.head, return_inverse=True)
            fetched_UF = fetch_scored_rows(rows, heads, self.shard.comm).double()
            at_tail = find_positions(self.shard.owned_nodes, links.tail)
            mine = (at_tail >= 0).nonzero()[:, 0]
            some, place = rows.select(find_positions(rows.nodes, links.tail[mine]))
            tails = some[place.to(some.device)].to(torch.float64)
            features = self.labels.read_features(number[mine], decoder, tails)
            relations = links.relation[mine].to(tails.device)
            yield number[mine], decoder.score(fetched_UF[at_head[mine].to(tails.device)], relations, tails, features)
