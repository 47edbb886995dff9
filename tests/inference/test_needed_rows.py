"""Layers compute the rows that few scored nodes need, and give what all rows give."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from outgrow.engine.constant_sums import cached_first_aggregate
from outgrow.engine.features.inputs import fetch_shard_inputs
from outgrow.engine.inference import infer_shard
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.topology import Topology
from outgrow.inference.layer_nodes import find_layer_nodes
from outgrow.inference.needed_rows import NEEDED_ROWS, find_first_narrow_layer, find_needed_rows
from outgrow.nn.convolution import SAGEConv
from outgrow.nn.edge_messages import GINEConv
from outgrow.nn.encoder import LinearEncoder
from outgrow.nn.epilogue import Epilogue
from outgrow.nn.layer import Layer
from outgrow.nn.model import Model
from outgrow.nn.zoo import GAT, GCN, GIN, RGCN, SAGE
from support import normal, random_topology, sparse_rows, with_edge_features, with_relations

NODES, WIDTH, RELATIONS = 400, 6, 3
TOPOLOGY = with_relations(random_topology(NODES, 500, weighted=True), RELATIONS)
SCORED = torch.arange(7, NODES, 29)
"""So few that 2 of 3 layers, but not the first one, compute at most 40% of the rows."""


def make_encoded(layers: int) -> Model:
    first, *others = [Layer(SAGEConv(4, 4), Epilogue(activation=torch.relu)) for _ in range(layers)]
    return Model([first, *others], encoder=LinearEncoder(WIDTH, 4))


MODELS: dict[str, Callable[..., Model]] = {
    "sums first": lambda layers: GCN(WIDTH, 9, 9, layers=layers),
    "projects first": lambda layers: GCN(WIDTH, 5, 3, layers=layers),
    "itself too": lambda layers: SAGE(WIDTH, 5, 3, layers=layers, norm=True),
    "residual": lambda layers: SAGE(WIDTH, WIDTH, 3, layers=layers, residual=True),
    "gin": lambda layers: GIN(WIDTH, 5, 3, layers=layers),
    "attention": lambda layers: GAT(WIDTH, 4, 3, layers=layers, heads=2, out_heads=1),
    "relations": lambda layers: RGCN(WIDTH, 5, 3, layers=layers, num_relations=RELATIONS),
    "encoder": make_encoded,
}


def output_of(model: Model, topology: Topology, x: Tensor, scored: Tensor | None, chunk_bytes: int = 1 << 30) -> Tensor:
    """The output of the scored nodes: computed by themselves, or of all nodes if none are given."""
    shard = FullGraphShard(topology)
    inputs = fetch_shard_inputs(model, shard, x)
    needed = None if scored is None else find_needed_rows(model, shard, scored)
    return infer_shard(model, shard, inputs, needed=needed, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", [1000, 1 << 30])
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_scored_nodes_have_the_output_that_they_have_among_all(name: str, layers: int, chunk_bytes: int) -> None:
    torch.manual_seed(1)
    model, x = MODELS[name](layers).double().eval(), normal(NODES, WIDTH)
    whole = output_of(model, TOPOLOGY, x, None)
    found = output_of(model, TOPOLOGY, x, SCORED, chunk_bytes)
    torch.testing.assert_close(found, whole[SCORED], rtol=1e-12, atol=1e-14)


def test_sparse_features_give_what_dense_ones_give() -> None:
    torch.manual_seed(1)
    model, x = SAGE(WIDTH, 5, 3, sparse_input=True).double().eval(), normal(NODES, WIDTH)
    x = x * (x > 0)
    whole = output_of(model, TOPOLOGY, x, None)
    found = output_of(model, TOPOLOGY, sparse_rows(x, least=0.0), SCORED)  # type: ignore[arg-type]
    torch.testing.assert_close(found, whole[SCORED], rtol=1e-12, atol=1e-14)


def test_a_kept_aggregate_is_read_at_the_rows_that_are_needed() -> None:
    model, x = SAGE(WIDTH, 9, 9).double().eval(), normal(NODES, WIDTH)
    whole = output_of(model, TOPOLOGY, x, None)
    shard = FullGraphShard(TOPOLOGY)
    inputs = fetch_shard_inputs(model, shard, x)
    first, last = model.layers_list()
    assert cached_first_aggregate(model, shard.layer_view(first).block, inputs.source) is not None
    with patch.object(Layer, "aggregate", autospec=True, side_effect=Layer.aggregate) as sums:
        found = infer_shard(model, shard, inputs, needed=find_needed_rows(model, shard, SCORED))
    assert [call.args[0] for call in sums.call_args_list] == [last]
    torch.testing.assert_close(found, whole[SCORED], rtol=1e-12, atol=1e-14)


def test_each_layer_computes_what_those_above_it_read() -> None:
    model, shard = SAGE(WIDTH, 5, 3, layers=3), FullGraphShard(TOPOLOGY)
    expected = find_layer_nodes(shard, model.layers_list(), SCORED)
    needed = find_needed_rows(model, shard, SCORED)
    assert needed is not None
    below = expected.inputs
    assert needed.inputs is None or torch.equal(needed.inputs, below)
    below = torch.arange(NODES) if needed.inputs is None else below
    for rows, outputs, edges in zip(needed.layers, expected.outputs, expected.num_edges, strict=True):
        assert rows is not None
        assert torch.equal(rows.block.dst_nodes, outputs)
        assert torch.equal(rows.block.src_nodes, below)
        assert rows.block.edges.num_edges == edges
        assert rows.block.edges.num_src == len(below)
        below = outputs


def test_features_of_few_nodes_alone_are_read() -> None:
    few = SCORED[:2]
    model, shard = GCN(WIDTH, 5, 3), FullGraphShard(TOPOLOGY)
    needed = find_needed_rows(model, shard, few)
    assert needed is not None
    assert needed.inputs is not None
    assert torch.equal(needed.inputs, find_layer_nodes(shard, model.layers_list(), few).inputs)
    # The sources of this first layer are the features themselves: nothing is computed for them.
    read_in_place = find_needed_rows(GCN(WIDTH, 9, 9), shard, few)
    assert read_in_place is not None
    assert read_in_place.inputs is None


def test_rows_that_are_most_are_not_told_apart() -> None:
    shares = [NEEDED_ROWS + 0.01, NEEDED_ROWS, 0.1]
    assert find_first_narrow_layer(shares, [0, 0, 0]) == 1
    assert find_first_narrow_layer([0.2, *shares[1:]], [0, 0, 0]) == 0
    assert find_first_narrow_layer([1.0], [0]) == 0
    # Features of most edges are not copied, those of the last layer's few are.
    assert find_first_narrow_layer([0.2, 0.2, 0.1], [0, 4, 4]) == 2


def test_layers_that_read_features_of_edges_compute_all_rows_but_the_last() -> None:
    topology = with_edge_features(TOPOLOGY, 2)
    model = Model(
        [Layer(GINEConv(WIDTH, WIDTH, edge_dim=2), Epilogue()), Layer(GINEConv(WIDTH, 3, edge_dim=2))]
    ).double()
    needed = find_needed_rows(model, FullGraphShard(topology), SCORED)
    assert needed is not None
    assert [rows is None for rows in needed.layers] == [True, False]
    x = normal(NODES, WIDTH)
    found, whole = (output_of(model, topology, x, nodes) for nodes in (SCORED, None))
    torch.testing.assert_close(found, whole[SCORED], rtol=1e-12, atol=1e-14)
