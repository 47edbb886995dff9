"""Models that read features of edges, on graphs that have them, others or none; wrapped convolutions of PyG."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import outgrow as og
from outgrow.app.model_probe import probe_model
from outgrow.app.model_registry import build_model

NODES, EDGES, COLUMNS, EDGE_DIM, CLASSES = 40, 200, 5, 3, 3


def graph(edge_dim: int) -> og.Graph:
    random = np.random.default_rng(0)
    given = {"edge_features": random.normal(size=(EDGES, edge_dim)).astype("f4")} if edge_dim else {}
    return og.from_arrays(
        random.integers(0, NODES, (2, EDGES)),
        features=random.normal(size=(NODES, COLUMNS)).astype("f4"),
        labels=random.integers(0, CLASSES, NODES),
        **given,
    )


def foreign(edge_dim: int | None) -> og.nn.Model:
    pyg = pytest.importorskip("torch_geometric.nn", reason="needs the extra pyg")
    conv = pyg.GATv2Conv(COLUMNS, CLASSES, add_self_loops=False, edge_dim=edge_dim)
    return og.nn.Model([og.nn.Layer(og.nn.PyGConv(conv, COLUMNS, CLASSES))])


@pytest.mark.parametrize("found", [0, EDGE_DIM + 1])
def test_a_graph_without_features_of_edges_or_with_others(found: int) -> None:
    models = [og.nn.GATv2(COLUMNS, 8, CLASSES, edge_dim=EDGE_DIM), og.nn.GINE(COLUMNS, 8, CLASSES, edge_dim=EDGE_DIM)]
    for model in (*models, foreign(EDGE_DIM)):
        for run in (
            lambda model=model: og.predict(graph(found), model),
            lambda model=model: og.train(graph(found), model),
        ):
            with pytest.raises(og.InputError, match=f"(?s){EDGE_DIM} features of each edge.*{found}"):
                run()


def test_features_that_no_layer_reads_are_named() -> None:
    with pytest.warns(UserWarning, match="are read by no layer"):
        og.predict(graph(EDGE_DIM), foreign(None))


def test_a_model_that_must_have_them_by_name() -> None:
    with pytest.raises(og.InputError, match="have no features"):
        build_model("gine", graph(0), {"hidden": 8})
    for name in ("gat", "gatv2", "transformer", "gine", "edge-network"):
        model = build_model(name, graph(EDGE_DIM), {"hidden": 8})
        assert [layer.conv.edge_dim for layer in model.layers_list()] == [EDGE_DIM, EDGE_DIM]


def test_a_wrapped_convolution_is_as_pyg_computes_it_and_is_probed_with_features() -> None:
    given, model = graph(EDGE_DIM), foreign(EDGE_DIM)
    conv = model.layers_list()[0].conv.aggregation.conv
    with torch.no_grad():
        expected = conv.eval()(given.features, given.edge_index, given.edge_attr)
    torch.testing.assert_close(og.predict(given, model), expected, rtol=1e-5, atol=1e-5)
    assert probe_model(model) == ((), ())
    before = conv.lin_edge.weight.detach().clone()
    og.train(given, model, epochs=2, progress=False)
    assert not torch.equal(before, conv.lin_edge.weight)


def test_half_features_and_codes_are_read_in_place() -> None:
    given, model = graph(EDGE_DIM), og.nn.GATv2(COLUMNS, 8, CLASSES, edge_dim=EDGE_DIM)
    assert given.edge_features is not None
    half = dataclasses.replace(
        given, topology=dataclasses.replace(given.topology, edge_features=given.edge_features.half())
    )
    torch.testing.assert_close(og.predict(half, model), og.predict(given, model), rtol=1e-2, atol=1e-2)
