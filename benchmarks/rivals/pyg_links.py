"""PyG's example of link prediction: R-GCN in blocks and DistMult, all links in each step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import RGCNConv

from outgrow.graph.link_split import collect_links
from outgrow.graph.topology import Topology


class Recipe(nn.Module):
    """Two layers and a row for each relation.

    Args:
        num_nodes: Nodes.
        hidden: Width of all layers.
        num_relations: Relations.
        features: ``[V, hidden]`` rows of the nodes; None for trained ones.
        blocks: Blocks of a relation's matrix.
        dropout: Between both layers.
    """

    def __init__(
        self, num_nodes: int, hidden: int, num_relations: int, features: Tensor | None, blocks: int, dropout: float
    ) -> None:
        super().__init__()
        self.node = nn.Parameter(torch.empty(num_nodes, hidden)) if features is None else features
        if features is None:
            nn.init.xavier_uniform_(self.node)
        self.layers = nn.ModuleList(RGCNConv(hidden, hidden, num_relations, num_blocks=blocks) for _ in range(2))
        self.relation = nn.Parameter(torch.empty(num_relations, hidden))
        nn.init.xavier_uniform_(self.relation)
        self.dropout = dropout

    def forward(self, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """``[V, hidden]`` rows of all nodes."""
        first, second = self.layers
        x = first(self.node, edge_index, edge_type).relu_()
        x = functional.dropout(x, p=self.dropout, training=self.training)
        return second(x, edge_index, edge_type)  # type: ignore[no-any-return]

    def scores(self, rows: Tensor, ends: Tensor, relation: Tensor) -> Tensor:
        """``[E]`` of the links ``ends [2, E]``."""
        return (rows[ends[0]] * self.relation[relation] * rows[ends[1]]).sum(1)


def epoch(
    recipe: Recipe, optimizer: torch.optim.Optimizer, topology: Topology, *, penalty: float, clip: float
) -> float:
    """One step on all links and as many that are drawn; gives the loss."""
    recipe.train()
    optimizer.zero_grad()
    ends, relation = _edges(topology)
    rows = recipe(ends, relation)
    drawn = _drawn(ends, topology.num_nodes)
    score = torch.cat([recipe.scores(rows, each, relation) for each in (ends, drawn)])
    aim = torch.cat([torch.ones(len(relation)), torch.zeros(len(relation))])
    loss = functional.binary_cross_entropy_with_logits(score, aim)
    loss = loss + penalty * (rows.pow(2).mean() + recipe.relation.pow(2).mean())
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(recipe.parameters(), clip)
    optimizer.step()
    return loss.item()


@torch.no_grad()
def rows_of(recipe: Recipe, topology: Topology) -> Tensor:
    """``[V, hidden]`` without dropout."""
    recipe.eval()
    rows: Tensor = recipe(*_edges(topology))
    return rows


def _edges(topology: Topology) -> tuple[Tensor, Tensor]:
    links = collect_links(topology)
    return torch.stack([links.head, links.tail]), links.relation


def _drawn(ends: Tensor, num_nodes: int) -> Tensor:
    """Each link with one end replaced."""
    out, replaced = ends.clone(), torch.rand(ends.shape[1]) < 0.5
    for row, chosen in enumerate((replaced, ~replaced)):
        out[row, chosen] = torch.randint(num_nodes, (int(chosen.sum()),))
    return out
