"""Models on sparse features give what they give on the same features made dense."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from outgrow.engine.inference import infer_full_graph
from outgrow.nn import GCN, GGCN, GGNN, GIN, RGCN, SAGE, CommNet, FiLM, Model, RGCNDiagonal
from outgrow.ops.sparse import SparseRows
from support import normal, random_topology, whole_blocks, with_relations

NODES, WIDTH, HIDDEN, CLASSES, RELATIONS = 20, 6, 6, 3, 3
WIDTHS = (WIDTH, HIDDEN, CLASSES)
MODELS = {
    "sage-max": lambda: SAGE(*WIDTHS, pool="max"),
    "gin": lambda: GIN(*WIDTHS, sparse_input=True, input_dropout=0.4),
    "commnet": lambda: CommNet(*WIDTHS, sparse_input=True, input_dropout=0.4),
    "ggcn": lambda: GGCN(*WIDTHS, input_dropout=0.4),
    "ggnn": lambda: GGNN(*WIDTHS, sparse_input=True, input_dropout=0.4),
    "film": lambda: FiLM(*WIDTHS, input_dropout=0.4),
    "rgcn": lambda: RGCN(*WIDTHS, num_relations=RELATIONS, bases=2, sparse_input=True, input_dropout=0.4),
    "rgcn-diagonal": lambda: RGCNDiagonal(*WIDTHS, num_relations=RELATIONS, input_dropout=0.4),
}


# Their first layers aggregate before they project unless they are asked, or the features are sparse.
REORDERED = {
    "gcn": lambda: GCN(WIDTH, 9, CLASSES),
    "sage": lambda: SAGE(WIDTH, 9, CLASSES),
    "gin": lambda: GIN(WIDTH, 9, CLASSES),
    "commnet": lambda: CommNet(WIDTH, 9, CLASSES),
    "rgcn": lambda: RGCN(WIDTH, 9, CLASSES, num_relations=RELATIONS, bases=2),
}


def sparse_rows(dense: torch.Tensor) -> SparseRows:
    row, column = np.nonzero(dense.numpy())
    counts = np.bincount(row, minlength=len(dense))
    return SparseRows(
        indptr=torch.from_numpy(np.concatenate(([0], np.cumsum(counts))).astype(np.int64)),
        indices=torch.from_numpy(column.astype(np.int32)),
        values=dense[row, column],
        num_columns=dense.shape[1],
    )


@pytest.mark.parametrize("name", MODELS)
def test_sparse_features_give_what_dense_ones_give(name: str) -> None:
    model: Model = MODELS[name]().double()
    dense = normal(NODES, WIDTH) * (normal(NODES, WIDTH, seed=1) > 0)
    topology = with_relations(random_topology(NODES, 80), RELATIONS)
    given, blocks = (dense, sparse_rows(dense)), whole_blocks(model, topology)
    assert model.layers_list()[0].accepts_sparse
    outs = [model(blocks, x, 5) for x in given]
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in outs]
    for ours, expected in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)
    logits = [infer_full_graph(model, topology, x, chunk_bytes=400) for x in given]
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", REORDERED)
def test_a_model_is_made_to_accept_sparse_features(name: str) -> None:
    model: Model = REORDERED[name]().double()
    dense = normal(NODES, WIDTH) * (normal(NODES, WIDTH, seed=1) > 0)
    blocks = whole_blocks(model, with_relations(random_topology(NODES, 80), RELATIONS))
    expected, parameters = model(blocks, dense, 5), dict(model.named_parameters())
    assert not model.first_reader.accepts_sparse
    assert model.accept_sparse_features()
    assert not model.layers_list()[0].spec.source_is_input
    torch.testing.assert_close(model(blocks, sparse_rows(dense), 5), expected, rtol=1e-12, atol=1e-12)
    # The same objects under the same names: optimizers and checkpoints notice nothing.
    assert {key: id(each) for key, each in model.named_parameters()} == {key: id(p) for key, p in parameters.items()}


@pytest.mark.parametrize(
    "make", [lambda: SAGE(WIDTH, WIDTH, CLASSES, residual=True), lambda: GGNN(WIDTH, WIDTH, CLASSES)]
)
def test_a_first_layer_that_adds_its_input_or_gates_it_needs_dense_features(make: Callable[[], Model]) -> None:
    assert not make().accept_sparse_features()
