"""What the log says of the work that is saved on a model."""

from __future__ import annotations

import torch
from layer_table import CONVS, IN, OUT

from outgrow.engine.layer_plan import describe_layers
from outgrow.nn import GAT, GCN, SAGE, Epilogue, GCNConv, Layer, Model
from support import normal

FEATURES = normal(5, IN, dtype=torch.float32)


def test_order_constant_aggregate_and_fused_finish() -> None:
    assert describe_layers(GCN(IN, 16, 3, dropout=0.5), FEATURES) == [
        "layer 1, GCNConv 6 to 16: aggregates rows of 6 as they come; activation, dropout in one pass; "
        "that aggregate of raw features is constant: computed once, not every epoch; no gradient for the features",
        "layer 2, GCNConv 16 to 3: aggregates projected rows of 3",
    ]


def test_heads_and_an_activation_that_is_not_fused() -> None:
    first, last = describe_layers(GAT(IN, 16, 3, heads=4, dropout=0.5), FEATURES)
    assert first == (
        "layer 1, GATConv 6 to 16: aggregates projected rows of 4 x 4; bias, activation, dropout in one pass; "
        "no gradient for the features"
    )
    assert last == "layer 2, GATConv 16 to 3: aggregates projected rows of 3"
    other = describe_layers(GAT(IN, 16, 3, heads=4, dropout=0.5, activation=torch.tanh), FEATURES)
    assert other[0] == "layer 1, GATConv 6 to 16: aggregates projected rows of 4 x 4; no gradient for the features"


def test_layers_alike_share_a_line() -> None:
    lines = describe_layers(SAGE(IN, 16, 3, layers=6, norm=True, residual=True, dropout=0.1), FEATURES)
    assert [line.partition(",")[0] for line in lines] == ["layer 1", "layers 2 to 5", "layer 6"]
    assert "norm, activation, residual, dropout in one pass" in lines[1]


def test_what_is_not_saved_is_not_said() -> None:
    (line,) = describe_layers(Model([Layer(GCNConv(IN, OUT), Epilogue(dropout=0.2))], input_dropout=0.5), FEATURES)
    assert "constant" not in line
    assert "one pass" not in line


def test_half_precision_and_other_libraries() -> None:
    half = FEATURES.bfloat16()
    assert "features stay in bfloat16" in describe_layers(GCN(IN, 16, 3), half)[0]
    assert "stay" not in describe_layers(GCN(IN, 16, 3, input_dropout=0.5), half)[0]
    foreign = describe_layers(Model([Layer(CONVS["foreign"]())]), half)[0]
    assert "in its own way" in foreign
    assert "stay" not in foreign
