"""The generated graph whose labels hang on features of edges, and layers that read them on it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.synthetic.edge_signal import EdgeSignal

WIDTH = 64
CONVS: dict[str, Callable[[int], og.nn.Conv]] = {
    "gine": lambda edge_dim: og.nn.GINEConv(16, WIDTH, edge_dim),
    "gat": lambda edge_dim: og.nn.GATConv(16, WIDTH, heads=4, edge_dim=edge_dim),
}
WITHOUT: dict[str, Callable[[], og.nn.Conv]] = {
    "gin": lambda: og.nn.GINConv(16, WIDTH),
    "gat": lambda: og.nn.GATConv(16, WIDTH, heads=4),
}


@pytest.fixture(scope="module")
def graph() -> og.Graph:
    return og.load("edge-signal-11")


def accuracy(graph: og.Graph, conv: og.nn.Conv) -> float:
    """Test accuracy of a layer with a norm, and one of SAGE that reads no features of edges."""
    then = og.nn.Epilogue(norm=True, activation=torch.relu)
    model = og.nn.Model([og.nn.Layer(conv, then), og.nn.Layer(og.nn.SAGEConv(WIDTH, 4))])
    return og.train(graph, model, epochs=50, lr=0.01, patience=None).test_accuracy


@pytest.mark.parametrize("name", CONVS)
def test_layers_that_read_features_of_edges_tell_the_classes(graph: og.Graph, name: str) -> None:
    torch.manual_seed(0)
    assert accuracy(graph, CONVS[name](graph.num_edge_features)) >= 0.9


def test_the_width_within_a_layer_is_not_that_of_its_output(graph: og.Graph) -> None:
    """With as many numbers as classes between its projections, a layer that gives logits would learn nothing."""
    torch.manual_seed(0)
    model = og.nn.GINE(16, WIDTH, 4, edge_dim=graph.num_edge_features, layers=1)
    assert og.train(graph, model, epochs=60, lr=0.01, patience=None).test_accuracy >= 0.9


@pytest.mark.filterwarnings("ignore:.*read by no layer")
@pytest.mark.parametrize("name", WITHOUT)
def test_layers_that_do_not_read_them_cannot(graph: og.Graph, name: str) -> None:
    torch.manual_seed(0)
    assert accuracy(graph, WITHOUT[name]()) <= 0.6


def test_kinds_of_neighbours_do_not_depend_on_the_class(graph: og.Graph) -> None:
    src, dst = graph.edge_index
    assert graph.labels is not None
    pairs = torch.stack([graph.labels.long()[dst], src % 4])
    counts = torch.bincount(pairs[0] * 4 + pairs[1], minlength=16).view(4, 4).double()
    assert torch.allclose(counts / counts.sum(1, keepdim=True), torch.full((4, 4), 0.25).double(), atol=0.015)
    assert bool((torch.bincount(dst) == 16).all())


def test_marked_edges_come_from_the_kind_of_the_class(graph: og.Graph) -> None:
    assert graph.edge_features is not None
    assert graph.labels is not None
    src, dst = graph.edge_index
    marked = graph.edge_features.mean(1) > 0
    right = (src % 4) == graph.labels.long()[dst]
    assert float((marked == right).double().mean()) > 0.98


def test_a_store_has_the_same_graph(graph: og.Graph, tmp_path) -> None:
    stored = convert_to_store(EdgeSignal(scale=11), tmp_path / "signal.store")
    assert torch.equal(stored.edge_index, graph.edge_index)
    assert stored.edge_features is not None
    assert graph.edge_features is not None
    assert torch.equal(stored.edge_features, graph.edge_features)
    assert torch.equal(torch.as_tensor(np.asarray(stored.labels)), torch.as_tensor(np.asarray(graph.labels)))


@pytest.mark.parametrize("scale", [0, 4, 29])
def test_a_scale_out_of_range_is_refused(scale: int) -> None:
    with pytest.raises(InputError, match=f"edge-signal-{scale} cannot be generated"):
        og.load(f"edge-signal-{scale}")
