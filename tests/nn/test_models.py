"""Models, the zoo and the tasks."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.nn import GAT, GCN, SAGE, Epilogue, GATConv, GCNConv, Layer, Model, Stack
from outgrow.nn.model import layer_key
from outgrow.nn.tasks import MultiLabel, NodeClassification
from outgrow.ops.rng import dropout, fold_in
from outgrow.ops.sparse import SparseRows
from support import normal, random_topology, whole_blocks


def test_a_model_is_its_layers_with_their_keys() -> None:
    model = GCN(4, 5, 3, layers=2, input_dropout=0.3).double()
    topology, x, key = random_topology(20, 80), normal(20, 4), 77
    blocks = whole_blocks(model, topology)
    expected = dropout(x, topology.nodes, fold_in(key, 0), 0.3)
    for index, (layer, block) in enumerate(zip(model.layers_list(), blocks, strict=True)):
        expected = layer(block.with_rng_key(fold_in(key, index + 1)), expected, expected)
    assert torch.equal(model(blocks, x, key), expected)
    assert layer_key(None, 3) is None
    assert model.encode_input(x, topology.nodes, None) is x


def test_sparse_features_give_what_dense_ones_give() -> None:
    dense = normal(20, 6) * (normal(20, 6, seed=1) > 0)
    row, column = np.nonzero(dense.numpy())
    indptr = torch.from_numpy(np.concatenate(([0], np.cumsum(np.bincount(row, minlength=20)))).astype(np.int64))
    indices = torch.from_numpy(column.astype(np.int32))
    sparse = SparseRows(indptr=indptr, indices=indices, values=dense[row, column], num_columns=6)
    topology = random_topology(20, 80)
    for model in (
        GCN(6, 8, 3, sparse_input=True, input_dropout=0.4),
        SAGE(6, 8, 3, sparse_input=True, input_dropout=0.4),
        GAT(6, 8, 3),
    ):
        blocks = whole_blocks(model.double(), topology)
        outs = [model(blocks, x, 5) for x in (dense, sparse)]
        torch.testing.assert_close(outs[1], outs[0], rtol=1e-12, atol=1e-12)
        grads = [torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in outs]
        for ours, expected in zip(grads[1], grads[0], strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)


def test_widths_of_a_stack() -> None:
    model = GAT(7, 16, 3, heads=4, out_heads=2, layers=3)
    assert [(layer.conv.spec.source, layer.spec.out_features) for layer in model.layers_list()] == [
        ((4, 4), 16),
        ((4, 4), 16),
        ((2, 3), 3),
    ]
    assert [layer.epilogue.activation is None for layer in model.layers_list()] == [False, False, True]
    assert model.layers_list()[-1].epilogue.dropout == 0


def test_a_residual_is_added_where_the_widths_agree() -> None:
    residuals = [layer.epilogue.residual for layer in GCN(8, 16, 3, layers=4, residual=True).layers_list()]
    assert residuals == [False, True, True, False]
    assert SAGE(16, 16, 3, layers=2, residual=True).layers_list()[0].epilogue.residual


@pytest.mark.parametrize("options", [{"layers": 0}, {"dropout": 1.0}, {"input_dropout": -0.1}])
def test_a_stack_refuses_values_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="out of range"):
        Stack(**options)  # type: ignore[arg-type]


def test_a_layer_of_sage_refuses_an_unknown_pool() -> None:
    with pytest.raises(InputError, match="median"):
        SAGE(4, 4, 2, pool="median")


@pytest.mark.parametrize("heads", [3, 0, -1])
def test_heads_that_do_not_divide_the_width(heads: int) -> None:
    with pytest.raises(InputError, match="heads"):
        GATConv(4, 8, heads)


@pytest.mark.parametrize("share", [1.0, -0.5, math.nan])
def test_attention_dropout_out_of_range(share: float) -> None:
    with pytest.raises(InputError, match="attention_dropout"):
        GATConv(4, 8, 2, attention_dropout=share)


def test_the_score_of_a_target_is_that_of_its_projection() -> None:
    conv, x = GATConv(5, 6, 2).double(), normal(9, 5)
    wide = (x @ conv.project.weight).view(9, 2, 3)
    torch.testing.assert_close(conv.target(x).scores, (wide * conv.target_score).sum(-1), rtol=1e-12, atol=1e-12)


def test_loss_is_a_sum_over_nodes_that_adds_up_over_workers() -> None:
    logits, classes = normal(10, 4), torch.arange(10) % 4
    for task, labels in ((NodeClassification(), classes), (MultiLabel(), (normal(10, 4, seed=1) > 0).to(torch.uint8))):
        whole = task.loss(logits, labels, 10)
        parts = task.loss(logits[:3], labels[:3], 10) + task.loss(logits[3:], labels[3:], 10)
        torch.testing.assert_close(parts, whole, rtol=1e-14, atol=1e-14)
    expected = -logits.log_softmax(1)[torch.arange(10), classes].mean()
    torch.testing.assert_close(NodeClassification().loss(logits, classes, 10), expected)


def test_the_loss_on_some_rows_is_that_of_these_rows_alone() -> None:
    logits, classes, rows = normal(10, 4), torch.arange(10) % 4, torch.tensor([7, 2, 3])
    for task, labels in ((NodeClassification(), classes), (MultiLabel(), (normal(10, 4, seed=1) > 0).to(torch.uint8))):
        expected = task.loss(logits[rows], labels[rows], 5)
        torch.testing.assert_close(task.loss(logits, labels[rows], 5, rows), expected, rtol=1e-14, atol=1e-14)


def test_scores() -> None:
    logits = torch.tensor([[2.0, -1.0], [-1.0, 3.0], [1.0, 0.5]])
    assert NodeClassification().score(logits, torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)
    truth = torch.tensor([[1, 0], [1, 1], [0, 1]], dtype=torch.uint8)
    # predicted 10, 01, 11; three hits, two wrong
    assert MultiLabel().score(logits, truth) == pytest.approx(2 * 3 / (2 * 3 + 2))
    assert MultiLabel().predict(logits).tolist() == [[1, 0], [0, 1], [1, 1]]
    assert MultiLabel().score(-torch.ones(2, 2), torch.zeros(2, 2)) == 1.0


def test_the_score_of_nothing_is_not_a_number() -> None:
    nothing = torch.empty(0, 3)
    assert math.isnan(NodeClassification().score(nothing, torch.empty(0, dtype=torch.int64)))
    assert math.isnan(MultiLabel().score(nothing, torch.empty(0, 3)))


def test_a_model_saves_and_loads_its_parameters() -> None:
    first, second = (GAT(4, 8, 3, heads=2) for _ in range(2))
    second.load_state_dict(first.state_dict())
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_blocks_that_shrink_from_layer_to_layer() -> None:
    """As mini-batches do: destinations come first among the sources."""
    topology, x = random_topology(30, 120), normal(30, 4)
    model = Model([Layer(GCNConv(4, 5)), Layer(GCNConv(5, 3))]).double()
    looped = topology.with_self_loops
    whole = model([looped.block, looped.block], x)
    part = model([looped.block, looped.slice_destinations(0, 7)], x)
    torch.testing.assert_close(part, whole[:7], rtol=1e-13, atol=1e-13)


def test_dropout_out_of_range_is_refused_wherever_it_is_given() -> None:
    with pytest.raises(InputError, match="option dropout is out of range"):
        Epilogue(dropout=1.0)
    with pytest.raises(InputError, match="option input_dropout is out of range"):
        Model([Layer(GCNConv(4, 5))], input_dropout=1.0)


@pytest.mark.parametrize(
    ("options", "what", "words"),
    [
        ({"layres": 3}, "unknown option of og.nn.GCN 'layres'", "did you mean layers"),
        ({"norm": "batch"}, "option norm has a value of the wrong type", "true or false"),
        ({"dropout": "0.5"}, "option dropout has a value of the wrong type", "a number"),
        ({"layers": 2.5}, "option layers has a value of the wrong type", "a whole number"),
        ({"activation": "relu"}, "option activation has a value of the wrong type", "a function"),
    ],
)
def test_options_that_are_not_known_or_of_another_type(options: dict[str, Any], what: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(what)) as refused:
        GCN(4, 8, 3, **options)
    assert words in str(refused.value)


def test_missing_and_surplus_widths_are_refused() -> None:
    for widths in ((4,), (4, 8), (4, 8, 3, 2)):
        with pytest.raises(InputError, match=r"og\.nn\.GCN is called with wrong arguments"):
            GCN(*widths)
    with pytest.raises(InputError, match="option hidden has a value of the wrong type"):
        GAT(4, "8", 3)  # type: ignore[arg-type]
    assert GCN(np.int64(4), np.int32(8), 3, dropout=np.float32(0.5)).in_features == 4
