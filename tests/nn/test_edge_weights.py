"""Weights of edges: which convolutions refuse some, which say that they read none, and what a self-loop weighs."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.nn.model import Model

NODES = 12
NORMALISING: dict[str, Callable[[], Model]] = {
    "gcn": lambda: og.nn.GCN(3, 4, 2),
    "sage": lambda: og.nn.SAGE(3, 4, 2),
    "commnet": lambda: og.nn.CommNet(3, 4, 2),
    "film": lambda: og.nn.FiLM(3, 4, 2),
    "rgcn": lambda: og.nn.RGCN(3, 4, 2, num_relations=2),
    "rgcn, diagonal": lambda: og.nn.RGCNDiagonal(3, 3, 2, num_relations=2),
    "decoupled": lambda: og.nn.Decoupled(3, 4, 2, rounds=2),
}
SUMMING: dict[str, Callable[[], Model]] = {
    "gin": lambda: og.nn.GIN(3, 4, 2),
    "ggcn": lambda: og.nn.GGCN(3, 4, 2),
    "ggnn": lambda: og.nn.GGNN(3, 4, 2),
}
PASSING_OVER: dict[str, Callable[[], Model]] = {
    "GATConv": lambda: og.nn.GAT(3, 4, 2, heads=2),
    "SAGEMaxConv": lambda: og.nn.SAGE(3, 4, 2, pool="max"),
    "AttentionPropagateConv": lambda: og.nn.DecoupledGAT(3, 4, 2, heads=2, rounds=2),
}


def graph_of(weight: np.ndarray | None, edges: np.ndarray | None = None) -> og.Graph:
    """A ring in which every node also has an edge from the node opposite."""
    nodes = np.arange(NODES)
    ring = np.stack([np.concatenate([nodes, nodes]), np.concatenate([(nodes + 1) % NODES, (nodes + 6) % NODES])])
    edges = ring if edges is None else edges
    return og.from_arrays(
        edges,
        features=np.random.default_rng(0).normal(size=(NODES, 3)).astype("f4"),
        labels=nodes % 2,
        split={"train": nodes[:8], "val": nodes[8:]},
        weight=weight,
        relation=np.arange(edges.shape[1]) % 2,
    )


def positive(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(2 * NODES).astype("f4") + 0.5


@pytest.mark.parametrize("name", NORMALISING)
def test_what_normalises_refuses_weights_that_it_cannot_divide(name: str) -> None:
    model = NORMALISING[name]()
    negative, vanishing = positive(), positive()
    negative[5] = -3
    # The two in-edges of node 1.
    vanishing[[0, NODES + 7]] = 0
    for weight, got in (
        (negative, "1 of 24 weights below 0, the least is -3"),
        (vanishing, "1 nodes whose in-edges have weights that add up to 0"),
    ):
        graph = graph_of(weight)
        with pytest.raises(InputError, match=got):
            og.train(graph, model, epochs=1, progress=False)
        with pytest.raises(InputError, match=got):
            og.predict(graph, model)
    og.train(graph_of(positive()), model, epochs=1, progress=False)


@pytest.mark.parametrize("name", SUMMING)
def test_what_sums_takes_signed_weights_and_reads_them(name: str) -> None:
    model = SUMMING[name]()
    signed = positive() - 1
    assert not torch.allclose(og.predict(graph_of(signed), model), og.predict(graph_of(-signed), model))


@pytest.mark.parametrize("name", PASSING_OVER)
def test_what_does_not_read_weights_says_so(name: str) -> None:
    model = PASSING_OVER[name]()
    with pytest.warns(DataWarning, match=f"weights of the edges of 'graph' are not read by {name}"):
        og.train(graph_of(positive()), model, epochs=1, progress=False)
    with pytest.warns(DataWarning, match=f"not read by {name}"):
        weighted = og.predict(graph_of(positive()), model)
    assert torch.equal(weighted, og.predict(graph_of(None), model))


def test_attention_that_reads_weights_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        og.train(graph_of(positive()), og.nn.GAT(3, 4, 2, heads=2, edge_weights=True), epochs=1, progress=False)


def test_a_convolution_of_the_users_that_divides_is_refused_too() -> None:
    class Own(og.nn.GINConv):
        def edge_weight(self, block, source, target):  # type: ignore[no-untyped-def]
            return og.nn.mean_weight(block, source.values.dtype)

    weight = positive()
    weight[0] = -1
    model = og.nn.Model([og.nn.Layer(Own(3, 2))])
    with pytest.raises(InputError, match="1 of 24 weights below 0"):
        og.predict(graph_of(weight), model)


def test_a_wrapped_convolution_needs_the_features_of_edges_that_it_reads() -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    conv = og.nn.PyGConv(pyg.GATv2Conv(3, 2, edge_dim=1, add_self_loops=False), 3, 2)
    with pytest.raises(InputError, match="does not fit the features of the edges"):
        og.predict(graph_of(positive()), og.nn.Model([og.nn.Layer(conv)]))
    model = og.nn.Model([og.nn.Layer(og.nn.PyGConv(pyg.GATv2Conv(3, 2, add_self_loops=False), 3, 2))])
    with pytest.warns(DataWarning, match="not read by GATv2Conv"):
        og.predict(graph_of(positive()), model)


@pytest.mark.parametrize("strategy", ["full", "offload", "tensor", "migrate", "split"])
def test_a_self_loop_keeps_its_weight_under_every_strategy(strategy: str) -> None:
    """Loss of the first epoch against GCN on a dense matrix: a loop that is there keeps its weight, others get 1."""
    nodes = np.arange(NODES)
    edges = np.stack([np.concatenate([nodes, nodes[:4]]), np.concatenate([(nodes + 1) % NODES, nodes[:4]])])
    weight = np.random.default_rng(1).random(edges.shape[1]).astype("f4") * 3 + 0.1
    graph = graph_of(weight, edges)
    torch.manual_seed(0)
    conv = og.nn.GCNConv(3, 2)
    batches = {"batch_size": 8, "fanout": (-1,)} if strategy in ("migrate", "split") else {}
    dense = torch.zeros(NODES, NODES, dtype=torch.float64)
    dense[edges[1], edges[0]] = torch.from_numpy(weight).double()
    dense += torch.diag((dense.diagonal() == 0).double())
    degree = dense.sum(1)
    assert graph.features is not None
    assert graph.labels is not None
    rows = (dense / (degree[:, None] * degree).sqrt()) @ torch.as_tensor(graph.features).double()
    expected = rows @ conv.project.weight.detach().double()
    loss = torch.nn.functional.cross_entropy(expected[:8], graph.labels[:8].long()).item()
    run = og.train(graph, og.nn.Model([og.nn.Layer(conv)]), strategy=strategy, epochs=1, progress=False, **batches)
    assert run.loss[0] == pytest.approx(loss, rel=1e-5)
