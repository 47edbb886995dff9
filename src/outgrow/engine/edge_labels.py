"""Targets of edges as steps learn them: which edges a step may ask about, and the loss of those that it does.

Letters: ``E`` edges, ``P`` edges of a step, ``N`` rows, ``F`` columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outgrow.graph.link_triples import LinkTriples
from outgrow.graph.topology import Topology
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.node_task import NodeTask
from outgrow.ops.edge_features import dense_edge_features
from outgrow.ops.link_scores import NodePairs, gather_pair_rows
from outgrow.ops.rows.positions import RowNumbers, find_positions


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeLabels:
    """Targets of edges.

    Attributes:
        task: Loss and metric of rows, with its weights as numbers.
        values: ``[E]`` int32 classes, or numbers.
        train: ``[n]`` int64, ascending: ids of the edges to train on, over all workers.
        topology: The graph without the target, with the features of edges that a decoder reads.
    """

    task: NodeTask
    values: Tensor
    train: Tensor
    topology: Topology

    def mark_trained(self, number: Tensor) -> Tensor:
        """Return ``[P]`` bool: which edges, ``[P]`` int64, are trained on."""
        return find_positions(self.train, number) >= 0

    def read_features(self, number: Tensor, decoder: EdgeDecoder, rows: Tensor) -> Tensor | None:
        """Return ``[P, I]``: what a decoder reads of the features of edges; None for nothing.

        Args:
            number: ``[P]`` int64, ids of the edges.
            decoder: The decoder.
            rows: ``[N, F]``, whose type and device the result has.
        """
        graph = self.topology
        if not decoder.edge_dim:
            return None
        assert graph.edge_features is not None
        starts = None
        if graph.feature_sizes:
            sizes = torch.tensor(graph.feature_sizes)
            starts = sizes.cumsum(0) - sizes
        return dense_edge_features(graph.edge_features[number], starts, decoder.edge_dim, rows.dtype).to(rows.device)

    def compute_loss(
        self, decoder: EdgeDecoder, rows: Tensor, at: RowNumbers, links: LinkTriples, number: Tensor, total: int
    ) -> Tensor:
        """Return the sum of the losses of a worker's edges, divided by ``total`` times the mean weight: see `NodeTask`.

        Args:
            decoder: Scores edges.
            rows: ``[N, F]`` rows of nodes.
            at: The row number of each node.
            links: The worker's edges of the step, ``P`` of them.
            number: ``[P]`` int64, their ids.
            total: Number of edges of the step over all workers.
        """
        tails, heads, relations = (each.to(rows.device) for each in (at[links.tail], at[links.head], links.relation))
        pairs = NodePairs.from_endpoints(tails, heads, relations, len(rows))
        tail_rows, head_rows = gather_pair_rows(rows, pairs)
        ordered = number[pairs.order.cpu()]
        out = decoder.score(head_rows, pairs.relation, tail_rows, self.read_features(ordered, decoder, rows))
        return self.task.loss(out, self.values[ordered].to(rows.device), total)
