"""What each layer is to a pass over chunks."""

from __future__ import annotations

import pytest
import torch
from layer_table import CONVS, EDGE_DIM, IN, OUT, RELATIONS, layer_of

from engine.own_features import COLUMNS, sparse
from outgrow.core.block import Edges
from outgrow.engine.layer_plan import AggregatePolicy, LayerPlan, has_fixed_weights, pair_index_bytes, plan_layers
from outgrow.engine.shard import layer_topology
from outgrow.nn import GCNConv, SAGEConv
from outgrow.nn.layer import Layer
from outgrow.nn.model import Model
from outgrow.ops.aggregation.pair_edges import PairEdges
from support import normal, random_topology, with_edge_features, with_relations

FIXED = {
    "gcn",
    "gcn-aggregate-first",
    "sage-project-first",
    "sage-aggregate-first",
    "commnet-project-first",
    "commnet-aggregate-first",
    "gin-project-first",
    "gin-aggregate-first",
    "ggnn",
    "ggnn-of-another-width",
    "propagate",
    "propagate-mean",
    "propagate-restart",
}
"""Layers that sum up rows with weights that the graph fixes."""
RAW = {
    "compgcn-sub",
    "rgcn-matrices",
    "rgcn-blocks",
    "rgcn-columns-apart",
    "propagate",
    "propagate-mean",
    "nn",
    "gine",
    *(name for name in CONVS if name.endswith("aggregate-first")),
}
"""Layers whose source rows are their input; PyG's read them within."""
CONSTANT = FIXED & RAW | {"nn"}
"""Layers whose aggregate of raw features has no parameters; the features of edges that `NNConv` weighs by have none."""
OWN_ROWS_ONLY = {"gcn", "gcn-aggregate-first", "propagate", "propagate-mean", "propagate-relations"}
"""Layers that read nothing of a destination but its aggregate."""


def traits(*names: str, cache: bool = True, **options: float) -> list[LayerPlan]:
    layers = [layer_of(CONVS[name](), "bare") for name in names]
    return plan_layers(Model(layers, **options), normal(4, IN), cache=cache)


def ways(*names: str, cache: bool = True, **options: float) -> list[AggregatePolicy]:
    return [each.aggregate_policy for each in traits(*names, cache=cache, **options)]


@pytest.mark.parametrize("name", CONVS)
def test_first_middle_and_last(name: str) -> None:
    """An aggregate is kept where its gradient needs no parameter; that of raw features is computed once."""
    aggregate = AggregatePolicy.CACHED if name in FIXED else AggregatePolicy.RECOMPUTED
    assert ways(name, name, name) == [
        AggregatePolicy.CONSTANT if name in CONSTANT else aggregate,
        aggregate,
        AggregatePolicy.LAST,
    ]


@pytest.mark.parametrize("name", CONVS)
def test_without_the_cache_all_is_computed_again(name: str) -> None:
    """But for what is constant, which is no cache."""
    first = AggregatePolicy.CONSTANT if name in CONSTANT else AggregatePolicy.RECOMPUTED
    assert ways(name, name, name, cache=False) == [first, AggregatePolicy.RECOMPUTED, AggregatePolicy.LAST]


def test_one_layer_is_the_last_unless_it_is_constant() -> None:
    assert ways("gcn") == [AggregatePolicy.LAST]
    assert ways("gcn-aggregate-first") == [AggregatePolicy.CONSTANT]


def test_what_is_drawn_or_sparse_is_not_constant() -> None:
    assert ways("sage-aggregate-first", "gcn", input_dropout=0.5) == [AggregatePolicy.CACHED, AggregatePolicy.LAST]
    layers = [Layer(SAGEConv(COLUMNS, OUT, project_first=False)), Layer(GCNConv(OUT, OUT))]
    assert plan_layers(Model(layers), sparse(), cache=True)[0].aggregate_policy is AggregatePolicy.CACHED


@pytest.mark.parametrize("name", CONVS)
def test_what_is_read_and_trained(name: str) -> None:
    first, second = traits(name, name)
    reads = name not in OWN_ROWS_ONLY
    assert [each.source_is_input for each in (first, second)] == [name in RAW] * 2
    assert [each.reads_input for each in (first, second)] == [reads] * 2
    assert [each.keeps_input for each in (first, second)] == [reads and name not in RAW] * 2
    assert [each.input_requires_grad for each in (first, second)] == [False, True]
    assert [each.source_requires_grad for each in (first, second)] == [name not in RAW, True]
    assert first.reads_unreferenced_rows == (name in ("ggcn", "foreign"))
    assert has_fixed_weights(first.layer) == (name in FIXED)


def test_the_backward_pass_needs_source_rows_where_nothing_is_kept() -> None:
    first = traits("gcn")[0]
    needed = {way: first._replace(aggregate_policy=way).needs_sources_backward for way in AggregatePolicy}
    assert needed == {
        AggregatePolicy.CONSTANT: False,
        AggregatePolicy.CACHED: False,
        AggregatePolicy.RECOMPUTED: True,
        AggregatePolicy.LAST: True,
    }


@pytest.mark.parametrize("name", CONVS)
def test_source_rows_are_split_as_the_layer_made_them(name: str) -> None:
    """Columns, then scores; their number is what tables are made for."""
    [each] = traits(name)
    rows = each.layer.source(normal(7, IN), torch.arange(7))
    assert rows.values is not None
    parts = [rows.values.flatten(1), *([] if rows.scores is None else [rows.scores])]
    wide = torch.cat(parts, 1)
    assert wide.shape[1] == each.source_width
    got = each.unflatten_source(wide)
    assert got.values is not None
    assert torch.equal(got.values, rows.values)
    assert (got.scores is None) == (rows.scores is None)
    if got.scores is not None and rows.scores is not None:
        assert torch.equal(got.scores, rows.scores)


@pytest.mark.parametrize("name", CONVS)
def test_aggregates_are_as_wide_as_tables_for_them(name: str) -> None:
    [each] = traits(name)
    graph = with_edge_features(with_relations(random_topology(7, 20, weighted=True), RELATIONS), EDGE_DIM)
    block = layer_topology(graph, each.layer).block
    aggregate = each.layer.aggregate(
        block, *each.layer.source_and_target(normal(7, IN), normal(7, IN), graph.nodes, graph.nodes)
    )
    assert aggregate.flatten(1).shape == (7, each.aggregate_width)


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("num_edges", [3, 60])
def test_the_order_of_edges_by_pairs_is_counted_where_there_is_one(name: str, num_edges: int) -> None:
    """What both passes keep with the edges is at most what was expected, and not far off."""
    [each] = traits(name)
    graph = with_edge_features(with_relations(random_topology(40, num_edges), RELATIONS), EDGE_DIM)
    block = layer_topology(graph, each.layer).block
    x = normal(40, IN).requires_grad_()
    out = each.layer.aggregate(block, *each.layer.source_and_target(x, x, graph.nodes, graph.nodes))
    torch.autograd.backward(out.sum())
    expected = pair_index_bytes(each, block.edges.num_edges)
    kept = _pair_bytes(block.edges)
    assert kept <= expected <= 3 * kept


def _pair_bytes(edges: Edges) -> int:
    orders = [each for each in edges.cache.values() if isinstance(each, PairEdges)]
    parts = [part for each in orders for part in (each.rows, each.indptr, each.indices, each.edge)]
    return sum(part.nbytes for part in parts) - 8 * len(orders)
