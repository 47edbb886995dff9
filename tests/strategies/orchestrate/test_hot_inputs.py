"""Rows of some hot nodes, computed again from what was kept, are those of all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.nn import Conv, GATConv, GCNConv, GGCNConv, Layer, RGCNConv, SAGEConv, SAGEMaxConv
from outgrow.nn.encoder import LinearEncoder
from outgrow.nn.model import Model
from outgrow.strategies.orchestrate.hot_inputs import HotInputs, aggregate_hot_rows, aggregates_raw_features
from support import normal, random_topology, sparse_rows, with_relations

WIDTH, NODES = 4, 20
CONVS: dict[str, Callable[[], Conv]] = {
    "gcn": lambda: GCNConv(WIDTH, 3, project_first=True),
    "sage": lambda: SAGEConv(WIDTH, 3, project_first=True),
    "sage-max": lambda: SAGEMaxConv(WIDTH, 3),
    "gat": lambda: GATConv(WIDTH, 4, 2, attention_dropout=0.4),
    "ggcn": lambda: GGCNConv(WIDTH, WIDTH),
    "rgcn": lambda: RGCNConv(WIDTH, 3, 2),
}


def inputs_of(layer: Layer, hot: list[int], *, sparse: bool) -> HotInputs:
    """Hot nodes come first among their sources, as in a sampled block."""
    topology = with_relations(random_topology(NODES, 90, weighted=True), 2)
    topology = topology.with_self_loops if layer.spec.self_loops else topology
    features = normal(NODES, WIDTH, seed=3)
    rows = sparse_rows(features, least=0.5) if sparse else features
    return HotInputs(topology.block.with_rng_key(5), rows, 7).select_nodes(torch.tensor(hot))


def output(model: Model, inputs: HotInputs) -> Tensor:
    [layer] = model.layers_list()
    rows = aggregate_hot_rows(model, inputs)
    return layer.update_nodes(rows.target, rows.aggregate, inputs.block.dst_nodes, None)


@settings(deadline=None)
@given(
    kind=st.sampled_from([*CONVS]),
    hot=st.lists(st.integers(0, NODES - 1), min_size=1, unique=True),
    at=st.lists(st.integers(0, NODES - 1), min_size=1),
    sparse=st.booleans(),
)
def test_rows_of_some_are_those_of_all(kind: str, hot: list[int], at: list[int], sparse: bool) -> None:
    torch.manual_seed(0)
    conv = CONVS[kind]().with_projection_first() if sparse else CONVS[kind]()
    assume(conv is not None)
    assert conv is not None
    layer = Layer(conv)
    model = Model([layer], input_dropout=0.3).double()
    inputs = inputs_of(layer, hot, sparse=sparse)
    positions = torch.tensor([*dict.fromkeys(each % len(hot) for each in at)])
    some = inputs.select_nodes(positions)
    assert some.block.dst_nodes.tolist() == [hot[each] for each in positions.tolist()]
    assert torch.equal(some.block.src_nodes[: len(positions)], some.block.dst_nodes)
    assert len(some.rows) == len(some.block.src_nodes) == some.block.edges.num_src
    assert len(some.block.src_nodes.unique()) == len(some.block.src_nodes)
    torch.testing.assert_close(output(model, some), output(model, inputs)[positions], rtol=1e-12, atol=1e-12)


def test_what_parameters_precede() -> None:
    """Else the aggregate alone gives the gradient of all parameters."""
    summed, projected = Layer(GCNConv(WIDTH, 3, project_first=False)), Layer(GCNConv(WIDTH, 3, project_first=True))
    attention = Layer(GATConv(WIDTH, 4, 2))
    assert aggregates_raw_features(Model([summed]), summed)
    assert aggregates_raw_features(Model([summed], input_dropout=0.3), summed)
    assert not aggregates_raw_features(Model([projected]), projected)
    assert not aggregates_raw_features(Model([attention]), attention)
    assert not aggregates_raw_features(Model([summed], encoder=LinearEncoder(9, WIDTH)), summed)
