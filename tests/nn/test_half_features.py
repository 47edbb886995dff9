"""Features stored in half precision give what the same numbers give in float32, and are never widened as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from layer_table import CONVS, EDGE_DIM, IN, OUT, RELATIONS

from outgrow.engine.constant_sums import cached_first_aggregate
from outgrow.engine.features.inputs import cast_features
from outgrow.engine.inference import infer_full_graph
from outgrow.nn import Epilogue, GCNConv, Layer, Model
from outgrow.ops.sparse import SparseRows
from support import normal, random_topology, whole_blocks, with_edge_features, with_relations

TOPOLOGY = with_edge_features(
    with_relations(random_topology(25, 120, weighted=True), RELATIONS), EDGE_DIM, torch.float32
)
HALVES = [torch.bfloat16, torch.float16]


def model_of(name: str) -> Model:
    torch.manual_seed(0)
    return Model([Layer(CONVS[name](), Epilogue(activation=torch.relu)), Layer(GCNConv(OUT, 2))])


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", CONVS)
def test_every_layer(name: str, half: torch.dtype) -> None:
    model, stored = model_of(name), normal(TOPOLOGY.num_nodes, IN, dtype=half)
    given, blocks = cast_features(model, stored), whole_blocks(model, TOPOLOGY)
    assert isinstance(given, torch.Tensor)
    assert (given is stored) == model.layers_list()[0].accepts_half
    known = [cached_first_aggregate(model, blocks[0], x) for x in (given, stored.float())]
    outs = [model(blocks, x, 5, aggregate) for x, aggregate in zip((given, stored.float()), known, strict=True)]
    torch.testing.assert_close(outs[0], outs[1])
    grads = [torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in outs]
    for ours, expected in zip(*grads, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        infer_full_graph(model, TOPOLOGY, given, chunk_bytes=400), infer_full_graph(model, TOPOLOGY, stored.float())
    )


def test_which_layers_take_it() -> None:
    refused = {name for name, conv in CONVS.items() if not conv().accepts_half}
    assert refused == {"compgcn-corr", "compgcn-sub", "ggnn", "foreign", "propagate-attention", "propagate-relations"}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: model_of("gcn"), torch.bfloat16),
        (lambda: model_of("gcn").double(), torch.float64),
        (lambda: Model([Layer(GCNConv(IN, 2))], input_dropout=0.5), torch.float32),
        (lambda: Model([Layer(GCNConv(IN, IN), Epilogue(residual=True))]), torch.float32),
        (lambda: model_of("foreign"), torch.float32),
    ],
    ids=["kept", "a float64 model", "dropout of the input", "residual", "another library's layer"],
)
def test_where_it_is_widened(make: Callable[[], Model], expected: torch.dtype) -> None:
    stored = normal(5, IN, dtype=torch.bfloat16)
    assert cast_features(make(), stored).dtype == expected


def test_sparse_features_are_widened() -> None:
    ends = torch.tensor([0, 1, 2])
    rows = SparseRows(
        indptr=ends, indices=torch.zeros(2, dtype=torch.int32), values=torch.ones(2).half(), num_columns=IN
    )
    assert cast_features(model_of("gcn"), rows).dtype == torch.float32
