"""Every layer, as the tests of layers run it. A new layer is one line here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from generators import apart
from outgrow.nn import (
    AttentionPropagateConv,
    CommNetConv,
    CompGCNConv,
    Conv,
    EdgeConv,
    Epilogue,
    FiLMConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GGCNConv,
    GGNNConv,
    GINConv,
    GINEConv,
    Layer,
    NNConv,
    PropagateConv,
    PyGConv,
    RelationPropagateConv,
    RGCNConv,
    RGCNDiagonalConv,
    RGCNMatrixConv,
    SAGEConv,
    SAGEMaxConv,
    TransformerConv,
)

IN, OUT, RELATIONS, EDGE_DIM = 6, 6, 3, 4


class Foreign(nn.Module):
    """What a convolution of PyG looks like from outside: a weighted sum of what an edge makes of both its ends."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.own = nn.Linear(2 * IN, OUT), nn.Linear(IN, OUT)

    def forward(
        self, x: tuple[torch.Tensor, torch.Tensor], edge_index: torch.Tensor, edge_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        src, dst = edge_index
        message = torch.tanh(self.both(torch.cat([x[0][src], x[1][dst]], 1)))
        message = message if edge_weight is None else message * edge_weight[:, None]
        own: torch.Tensor = self.own(x[1])
        return own.index_add(0, dst, message)


CONVS: dict[str, Callable[[], Conv]] = {
    "gcn": lambda: GCNConv(IN, OUT, project_first=True),
    "gcn-aggregate-first": lambda: GCNConv(IN, OUT, project_first=False),
    "sage-project-first": lambda: SAGEConv(IN, OUT, project_first=True),
    "sage-aggregate-first": lambda: SAGEConv(IN, OUT, project_first=False),
    "sage-max": lambda: SAGEMaxConv(IN, OUT),
    "commnet-project-first": lambda: CommNetConv(IN, OUT, project_first=True),
    "commnet-aggregate-first": lambda: CommNetConv(IN, OUT, project_first=False),
    "gin-project-first": lambda: GINConv(IN, OUT, project_first=True),
    "gin-aggregate-first": lambda: GINConv(IN, OUT, project_first=False),
    "gatv2": lambda: GATv2Conv(IN, OUT, 3, edge_dim=EDGE_DIM, self_loops=False, attention_dropout=0.4),
    "gatv2-shared": lambda: GATv2Conv(IN, OUT, 2, average=True, share_weights=True),
    "transformer": lambda: TransformerConv(IN, OUT, 3, edge_dim=EDGE_DIM, attention_dropout=0.4),
    "transformer-averaged": lambda: TransformerConv(IN, OUT, 2, average=True, beta=True),
    "gine": lambda: GINEConv(IN, OUT, EDGE_DIM),
    "gine-project-first": lambda: GINEConv(IN, OUT, EDGE_DIM, project_first=True),
    "nn": lambda: NNConv(IN, OUT, EDGE_DIM),
    "nn-project-first": lambda: NNConv(IN, OUT, EDGE_DIM, mean=True, project_first=True),
    "edge": lambda: EdgeConv(IN, OUT),
    "ggcn": lambda: GGCNConv(IN, OUT),
    "ggnn": lambda: GGNNConv(IN, OUT),
    "ggnn-of-another-width": lambda: GGNNConv(IN, OUT, state=4),
    "film": lambda: FiLMConv(IN, OUT),
    "film-linear-messages": lambda: FiLMConv(IN, OUT, slope=1.0),
    "film-with-relations": lambda: FiLMConv(IN, OUT, num_relations=RELATIONS),
    "rgcn-project-first": lambda: RGCNConv(IN, OUT, RELATIONS, bases=2, project_first=True),
    "rgcn-aggregate-first": lambda: RGCNConv(IN, OUT, RELATIONS, bases=2, project_first=False),
    "rgcn-columns-apart": lambda: RGCNConv(IN, OUT, RELATIONS, bases=2, project_first=False).with_sliceable_columns(),
    "rgcn-diagonal": lambda: RGCNDiagonalConv(IN, OUT, RELATIONS),
    "rgcn-matrices-project-first": lambda: RGCNMatrixConv(IN, OUT, RELATIONS, project_first=True),
    "rgcn-matrices": lambda: RGCNMatrixConv(IN, OUT, RELATIONS, project_first=False),
    "rgcn-blocks-project-first": lambda: RGCNMatrixConv(IN, OUT, RELATIONS, num_blocks=2, project_first=True),
    "rgcn-blocks": lambda: RGCNMatrixConv(IN, OUT, RELATIONS, num_blocks=3, project_first=False),
    "compgcn-corr": lambda: CompGCNConv(IN, OUT, RELATIONS, composition="corr"),
    "compgcn-sub": lambda: CompGCNConv(IN, OUT, RELATIONS + 1, composition="sub", inverses=True),
    "propagate": lambda: PropagateConv(IN, gamma=0.9),
    "propagate-mean": lambda: PropagateConv(IN, aggregator="mean"),
    "propagate-restart": lambda: PropagateConv(IN // 2, aggregator="sum", alpha=0.2, hops_in=1, hops_out=1),
    "propagate-attention": lambda: AttentionPropagateConv(IN - 2, 1, gamma=0.9),
    "propagate-relations": lambda: RelationPropagateConv(IN, RELATIONS, gamma=0.9),
    "foreign": lambda: PyGConv(Foreign(), IN, OUT),
    "gat-concatenated": lambda: GATConv(IN, OUT, 3, attention_dropout=0.4),
    "gat-with-edge-features": lambda: GATConv(IN, OUT, 3, num_relations=RELATIONS, edge_weights=True),
    "gat-with-features-of-edges": lambda: GATConv(IN, OUT, 3, edge_dim=EDGE_DIM, self_loops=False),
    "gat-with-features-and-loops": lambda: GATConv(IN, OUT, 2, edge_dim=EDGE_DIM, attention_dropout=0.4),
    "gat-averaged": lambda: GATConv(IN, OUT, 2, average=True, attention_dropout=0.4),
}


def one_of_each() -> dict[str, Conv]:
    """A convolution of each kind, to ask what it is like."""
    with apart():
        return {name: make() for name, make in CONVS.items()}


FINISHES = {
    "bare": Epilogue(),
    "finished": Epilogue(norm=True, activation=nn.functional.elu, residual=True, dropout=0.3),
}


def layer_of(conv: Conv, finish: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Layer:
    """A layer of which no parameter is zero."""
    torch.manual_seed(seed)
    layer = Layer(conv, FINISHES[finish]).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer
