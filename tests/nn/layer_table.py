"""Every layer, as the tests of layers run it. A new layer is one line here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from outgrow.nn import Conv, Finish, GATConv, GCNConv, Layer, SAGEConv, SAGEMaxConv

IN, OUT = 6, 6

CONVS: dict[str, Callable[[], Conv]] = {
    "gcn": lambda: GCNConv(IN, OUT),
    "sage-project-first": lambda: SAGEConv(IN, OUT, project_first=True),
    "sage-aggregate-first": lambda: SAGEConv(IN, OUT, project_first=False),
    "sage-max": lambda: SAGEMaxConv(IN, OUT),
    "gat-concatenated": lambda: GATConv(IN, OUT, 3, attention_dropout=0.4),
    "gat-averaged": lambda: GATConv(IN, OUT, 2, average=True, attention_dropout=0.4),
}
FINISHES = {
    "bare": Finish(),
    "finished": Finish(norm=True, activation=nn.functional.elu, residual=True, dropout=0.3),
}


def layer_of(conv: Conv, finish: str, seed: int = 0) -> Layer:
    """A layer in float64, of which no parameter is zero."""
    torch.manual_seed(seed)
    layer = Layer(conv, FINISHES[finish]).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer
