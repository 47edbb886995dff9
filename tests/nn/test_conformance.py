"""The layer contract: however the work on a graph is cut, a layer gives the same outputs and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_mutants import KEY, MUTANTS
from layer_table import CONVS, EDGE_DIM, FINISHES, IN, OUT, RELATIONS, layer_of

import layer_plans
from layer_plans import Plan, largest_difference, plans_for, results
from outgrow.engine.shard import layer_topology
from outgrow.graph.topology import Topology
from outgrow.nn import Layer
from rounding import NOISE, ROUNDINGS
from support import normal, random_topology, topologies, topology_of, with_edge_features, with_relations

TOLERANCE = 1e-12
GRAPHS = {
    name: with_edge_features(with_relations(topology, RELATIONS), EDGE_DIM)
    for name, topology in {
        "multi-graph": random_topology(40, 250),
        "weighted": random_topology(40, 250, weighted=True),
        "no-edges": topology_of(5, []),
        "no-nodes": topology_of(0, []),
        "one-node": topology_of(1, [(0, 0), (0, 0)]),
        "only-self-loops": topology_of(4, [(v, v) for v in range(4)]),
        "isolated": topology_of(9, [(0, 4), (4, 0), (4, 4)]),
        "one-edge-many-times": topology_of(3, [(0, 2)] * 7),
    }.items()
}


def difference(
    plan: Plan, layer: Layer, topology: Topology, key: int | None = KEY, dtype: torch.dtype = torch.float64
) -> float:
    """Between a plan and the whole graph at once; streams of random numbers start anew for each."""
    x = normal(topology.num_nodes, IN, dtype=dtype)
    torch.manual_seed(5)
    ours = results(plan, layer, topology, x, key)
    torch.manual_seed(5)
    return largest_difference(ours, results(layer_plans.whole, layer, topology, x, key))


def amplification(layer: Layer, topology: Topology) -> float:
    """How much larger a relative change of the input and of all parameters is in what a layer gives: at least 1."""
    given = normal(topology.num_nodes, IN)
    torch.manual_seed(5)
    before = results(layer_plans.whole, layer, topology, given, KEY)
    changed = copy.deepcopy(layer)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for values in (given, *changed.parameters()):
            values.mul_(1 + NOISE * (2 * torch.rand(values.shape, generator=generator, dtype=values.dtype) - 1))
    torch.manual_seed(5)
    return max(1.0, largest_difference(results(layer_plans.whole, changed, topology, given, KEY), before) / NOISE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_every_way_to_cut_the_work(graph: str, conv: str, finish: str, dtype: torch.dtype) -> None:
    layer = layer_of(CONVS[conv](), finish, dtype=dtype)
    differences = {plan.__name__: difference(plan, layer, GRAPHS[graph], dtype=dtype) for plan in plans_for(layer)}
    # Which order sums are rounded in depends on the processor: the bound is what rounding each number may make of them.
    wide = layer_of(CONVS[conv](), finish)
    bound = ROUNDINGS * torch.finfo(dtype).eps * amplification(wide, GRAPHS[graph])
    assert not {name: value for name, value in differences.items() if not value <= bound}


@pytest.mark.parametrize("conv", CONVS)
@given(topology=topologies(), key=st.none() | st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=10)
def test_any_graph_and_any_key(conv: str, topology: Topology, key: int | None) -> None:
    layer = layer_of(CONVS[conv](), "finished")
    given = with_edge_features(with_relations(topology, RELATIONS), EDGE_DIM)
    for plan in plans_for(layer):
        assert difference(plan, layer, given, key) <= TOLERANCE


def test_the_plans_that_each_layer_promises() -> None:
    promised = {name: {plan.__name__ for plan in plans_for(layer_of(make(), "bare"))} for name, make in CONVS.items()}
    everything = {"chunks", "gathered", "columns", "weighed_parts", "edge_parts"}
    weighed_whole = {name for name in CONVS if name.startswith(("gat-", "rgcn-"))}
    weighed_whole |= {"propagate-attention", "propagate-relations"}
    expected = {name: everything - {"edge_parts"} if name in weighed_whole else everything for name in CONVS}
    expected["sage-max"] = expected["edge"] = {"chunks", "gathered", "columns"}
    expected |= {name: {"chunks", "gathered"} for name in CONVS if name.startswith(("foreign", "gatv2", "transformer"))}
    # Matrices mix the columns of what is summed.
    for name in ("rgcn-aggregate-first", "rgcn-matrices", "rgcn-blocks"):
        expected[name] -= {"columns"}
    assert promised == expected


@pytest.mark.parametrize("conv", CONVS)
def test_widths_are_those_of_the_rows(conv: str) -> None:
    layer = layer_of(CONVS[conv](), "bare")
    topology = layer_topology(GRAPHS["multi-graph"], layer)
    x, widths = normal(topology.num_nodes, IN), layer.spec
    source, target = layer.source(x, topology.nodes), layer.target(x, topology.nodes)
    assert source.values is not None
    assert source.values.shape[1:] == widths.source
    assert widths.target == ((0, 0) if target.values is None else target.values.shape[1:])
    for rows in (source, target):
        assert (0 if rows.scores is None else rows.scores.shape[1]) == widths.score
    aggregate = layer.aggregate(topology.block, source, target)
    assert aggregate.shape[1:] == widths.aggregate
    assert layer.update(x, aggregate, topology.block).shape == (topology.num_nodes, OUT)


@pytest.mark.parametrize("conv", CONVS)
def test_what_is_said_of_reading_the_destination_is_true(conv: str) -> None:
    layer = layer_of(CONVS[conv](), "bare")
    topology, x = layer_topology(GRAPHS["multi-graph"], layer), normal(40, IN)
    other = layer(topology.block, x, normal(40, IN, seed=9))
    assert torch.equal(other, layer(topology.block, x, x)) != layer.reads_target
    assert layer_of(CONVS[conv](), "finished").reads_target


@pytest.mark.parametrize("conv", CONVS)
def test_what_is_said_of_fixed_weights_is_true(conv: str) -> None:
    weights = []
    for seed in (0, 1):
        layer, x = layer_of(CONVS[conv](), "bare", seed), normal(40, IN, seed=seed)
        block = layer_topology(GRAPHS["multi-graph"], layer).block
        weight = layer.conv.edge_weight(block, layer.source(x, block.src_nodes), layer.target(x, block.dst_nodes))
        weights.append(torch.zeros(1) if weight is None else weight)
    assert torch.equal(*weights) == layer.spec.static_edge_weight


@pytest.mark.parametrize("conv", ["gat-concatenated", "gcn"])
def test_draws_follow_the_key(conv: str) -> None:
    layer, x = layer_of(CONVS[conv](), "finished"), normal(40, IN)
    block = GRAPHS["multi-graph"].with_self_loops.block
    one, again, two, none = (layer(block.with_rng_key(key), x, x) for key in (1, 1, 2, None))
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    assert not torch.equal(one, none)


@pytest.mark.mutant
@pytest.mark.parametrize(("mutant", "plan"), [(name, plan) for name in MUTANTS for plan in MUTANTS[name].plans])
def test_a_mutant_is_found(mutant: str, plan: Plan) -> None:
    layer, promised = MUTANTS[mutant].make(), MUTANTS[mutant].promised
    assert (plan in plans_for(layer)) == promised
    assert difference(plan, layer, GRAPHS["multi-graph"]) > 1e-3
