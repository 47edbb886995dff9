"""On a CUDA device every strategy and layer gives the gradient and the outputs that the reference gives on the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import outgrow as og
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.topology import Topology
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.runtime.system.device import CPU, choose_device
from suites import links
from suites.cases import Case
from suites.exactness import EVERY_CASE, GRAPHS, WAYS, Gradient, problem_of, reference, step_of, underived

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
CASES = list(dict.fromkeys(case for _, case in EVERY_CASE))
LINK_TOLERANCE = 1e-10


@cache
def expected(way: str, case: Case) -> Gradient:
    return reference(case, WAYS[way])


def share_on(place: torch.device, topology: Topology) -> FullGraphShard:
    """A share on edges that nothing was derived from yet."""
    comm = SingleProcessComm()
    comm.device = choose_device(place.type, comm)
    return FullGraphShard(underived(topology), comm)


def on_cpu(gradient: Gradient) -> Gradient:
    return Gradient(gradient.loss, {name: grad.cpu() for name, grad in gradient.parameters.items()})


def outputs(case: Case, way: str, place: torch.device) -> torch.Tensor:
    """The logits of all nodes, after no step."""
    strategy = WAYS[way].strategy
    problem = problem_of(case, share_on(place, GRAPHS[case.graph]), WAYS[way].batches)
    problem.model.to(strategy.parameter_device(problem.shard.comm.device))
    execution = strategy.prepare(problem)
    found = list(execution.inference())
    execution.close()
    return torch.cat([logits for _, logits in sorted(found, key=lambda piece: piece[0])])


@pytest.mark.parametrize("way", WAYS)
def test_gradients(way: str) -> None:
    differences = {}
    for case in [case for name, case in EVERY_CASE if name == way] or CASES[:5]:
        strategy = WAYS[way].strategy
        problem = problem_of(case, share_on(torch.device("cuda"), GRAPHS[case.graph]), WAYS[way].batches)
        problem.model.to(strategy.parameter_device(problem.shard.comm.device))
        found = on_cpu(step_of(problem, strategy, WAYS[way].epochs_before))
        difference = found.difference(expected(way, case))
        if not difference <= case.tolerance:
            differences[case] = difference
    assert not differences


@pytest.mark.parametrize("way", ["full", "offload-3", "tensor", "split", "migrate", "orchestrate-aggregate"])
def test_outputs(way: str) -> None:
    for case in [case for name, case in EVERY_CASE if name == way]:
        here, there = (outputs(case, way, place) for place in (CPU, torch.device("cuda")))
        torch.testing.assert_close(there.cpu(), here, rtol=case.tolerance, atol=case.tolerance)


@pytest.mark.parametrize("way", links.WAYS)
def test_links(way: str) -> None:
    differences = {}
    for case in [*links.PRODUCT, *links.ODD]:
        strategy, epochs_before = links.WAYS[way]()
        problem = links.problem_of(case, share_on(torch.device("cuda"), links.fresh(case)))
        problem.model.to(strategy.parameter_device(problem.shard.comm.device))
        difference = on_cpu(step_of(problem, strategy, epochs_before)).difference(links.reference(case))
        if not difference <= LINK_TOLERANCE:
            differences[case] = difference
    assert not differences


def test_the_device_is_used() -> None:
    torch.cuda.reset_peak_memory_stats()
    outputs(Case("gcn-aggregate-first"), "full", torch.device("cuda"))
    assert torch.cuda.max_memory_allocated() > 0


def sums_of_means(graph: og.Graph) -> og.nn.Model:
    """SAGE for each edge type, on learned rows of the types without features."""
    widths = {kind.name: kind.num_columns for kind in graph.node_types if kind.num_columns}
    learned = {kind.name: kind.last - kind.first for kind in graph.node_types if not kind.num_columns}
    layers = [
        og.nn.Layer(og.nn.HeteroConv({each: og.nn.SAGEConv(16, width) for each in graph.types.edge_types}))
        for width in (16, graph.num_classes)
    ]
    return og.nn.Model(layers, encoder=og.nn.HeteroEncoder(widths, 16, embeddings=learned))


TYPED = {
    "hgt": lambda graph: og.nn.HGT(graph.num_features, 16, graph.num_classes, types=graph.types, heads=4, dropout=0.0),
    "rgcn": lambda graph: og.nn.TypedRGCN(graph.num_features, 16, graph.num_classes, types=graph.types, dropout=0.0),
    "hetero": sums_of_means,
}


@pytest.mark.parametrize("strategy", ["full", "offload", "sampled"])
@pytest.mark.parametrize("name", TYPED)
def test_models_with_modules_per_type(name: str, strategy: str) -> None:
    """Types without labels, whose rows the last layer leaves out, among them."""
    graph = og.load("ogbn-mag@0.002")
    batches: dict[str, Any] = {"batch_size": 256, "fanout": (5, 5)} if strategy == "sampled" else {}
    losses = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = TYPED[name](graph).double()
        run = og.train(graph, model, strategy=strategy, device=device, epochs=3, progress=False, **batches)
        losses.append(run.summary["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=LINK_TOLERANCE)
