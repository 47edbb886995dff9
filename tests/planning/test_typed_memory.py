"""Memory of models with modules per type, and of temporal draws: what is counted, and that plans choose by it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

import outgrow as og
from outgrow.app.plan.question import PlanSite, query_for_graph
from outgrow.core.errors import InputError
from outgrow.engine.last_layer import FEW_ROWS
from outgrow.graph.graph import Graph
from outgrow.ops.aggregation.pair_edges import in_edge_pairs
from outgrow.ops.sampling.time_order import order_by_time, sum_weights_by_time
from outgrow.planning.aggregation_sizes import count_pairs
from outgrow.planning.dataset_sizes import dataset_sizes
from outgrow.planning.evaluation_memory import inference_before_times_bytes, time_order_bytes
from outgrow.planning.graph_stats.counted import make_workload
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.model_sizes import model_sizes
from outgrow.planning.planner import Plan, make_plan
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload
from outgrow.training.config import TrainConfig
from support import with_times


@cache
def graph() -> Graph:
    return og.load("ogbn-mag@0.002")


def hgt(heads: int = 4, hidden: int = 16) -> og.nn.Model:
    model = og.nn.HGT(graph().num_features, hidden, graph().num_classes, types=graph().types, heads=heads)
    model.bind_types(graph().types)
    return model


def test_pairs_are_those_that_kernels_make() -> None:
    made = in_edge_pairs(graph().topology.block.edges, graph().num_relations)
    assert count_pairs(graph()) == dataset_sizes(graph()).pairs == len(made.rows)


def test_attention_that_an_aggregation_computes_is_counted_by_head() -> None:
    assert [layer.heads for layer in model_sizes(hgt(heads=8), graph()).layers] == [8, 8]
    plain = og.nn.SAGE(graph().num_features, 16, graph().num_classes)
    assert not any(layer.heads or layer.groups_by_pair for layer in model_sizes(plain, graph()).layers)
    # An edge has the scores of its own relation alone, however many there are.
    kinds = tuple(replace(kind, num_columns=0) for kind in graph().node_types)
    dense = replace(graph(), features=torch.zeros(graph().num_nodes, 4), node_types=kinds)
    typed = og.nn.to_hetero(og.nn.GAT(4, 16, graph().num_classes, heads=2, out_heads=1), dense)
    assert [layer.attention for layer in model_sizes(typed, dense).layers] == [2, 1]


def test_the_last_layer_computes_what_the_loss_reads() -> None:
    work = make_workload(graph(), hgt())
    first, last = graph().types.type_nodes("paper")
    nodes, edges = work.last_shares
    indptr = graph().topology.indptr
    assert nodes == pytest.approx((last - first) / graph().num_nodes, rel=0.05)
    assert edges == pytest.approx(float(indptr[last] - indptr[first]) / graph().num_edges, rel=0.05)
    plain = make_workload(graph(), og.nn.SAGE(graph().num_features, 16, graph().num_classes))
    share = len(graph().split.train) / graph().num_nodes
    assert share <= FEW_ROWS
    assert plain.last_shares == (share, share)
    many = replace(graph(), split=replace(graph().split, train=torch.arange(graph().num_nodes)))
    assert make_workload(many, og.nn.SAGE(graph().num_features, 16, graph().num_classes)).last_shares == (1.0, 1.0)


def timed(weighted: bool) -> Workload:
    papers = og.load("papers100M@0.00002")
    topology = with_times(papers.topology)
    if weighted:
        topology = replace(topology, weight=torch.ones(topology.num_edges))
    model = og.nn.SAGE(papers.num_features, 16, papers.num_classes)
    batches = TrainConfig(batch_size=64, fanout=(4, 4), temporal_strategy="uniform").batch_config
    return make_workload(replace(papers, topology=topology), model, batches)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_order_by_time_is_as_large_as_it_is(weighted: bool) -> None:
    papers = og.load("papers100M@0.00002")
    ends = papers.topology.indptr.numpy()
    order = order_by_time((ends, papers.topology.indices.numpy()), None, None, leave_out_loops=False)
    held = order.edges.nbytes + order.times.nbytes
    sums = sum_weights_by_time(ends, order, torch.ones(papers.num_edges).numpy()).nbytes if weighted else 0
    assert time_order_bytes(timed(weighted), 1) == held + sums
    # Several map the order of a store.
    assert time_order_bytes(timed(weighted), 2) == sums


def test_evaluations_before_times_are_batches_of_all_in_edges() -> None:
    """More than those of the fan-outs, and of more where rows of the input are wider."""
    work = timed(False)
    rows = work.sampling.batch_stats(work.sampling_spec("hash"), 1).neighborhood.rows[0]
    assert inference_before_times_bytes(work) > rows[0] * work.input_row_bytes / 64 * 128
    wider = replace(work, model=replace(work.model, row_bytes=2 * work.model.row_bytes))
    assert inference_before_times_bytes(wider) > 1.3 * inference_before_times_bytes(work)


def plan_with(memory: int, **batches: object) -> Plan:
    """The plan for two workers of a machine with so many bytes for each."""
    machine = find_profile("2-core-cpu")
    machine = replace(machine, device=replace(machine.device, memory_bytes=2 * memory))
    site = PlanSite(machine, [WorkerLayout(workers=2)], None)
    return make_plan(query_for_graph(graph(), hgt(hidden=512), TrainConfig(**batches), site))


@pytest.mark.parametrize(
    ("memory", "batches", "chosen"), [(460, {}, "offload"), (560, {"batch_size": 32, "fanout": (2, 2)}, "sampled")]
)
def test_what_fits_is_chosen_where_full_does_not(memory: int, batches: dict[str, object], chosen: str) -> None:
    [full] = [each.why_not for each in plan_with(memory << 20).candidates if each.name == "full"]
    assert "GiB for each worker" in full
    plan = plan_with(memory << 20, **batches)
    assert plan.chosen_candidate is not None
    assert plan.chosen_candidate.name == chosen


def test_a_plan_refuses_what_a_run_refuses() -> None:
    """Strategy tensor for HGT, whose scores need whole rows."""
    [refused] = [each.why_not for each in plan_with(64 << 30).candidates if each.name == "tensor"]
    with pytest.raises(InputError) as error:
        og.train(graph(), hgt(), strategy="tensor", epochs=1, progress=False)
    assert refused == f"{error.value.what.removeprefix('strategy tensor ')}: needs {error.value.needed}"
