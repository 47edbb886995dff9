"""P3 trains what `sampled` trains, and sends what `migrate_counts.by_slices` counts, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest
import torch
from migrate_counts import P3 as COUNTED
from migrate_counts import Workers, of_models, parameter_bytes, priced
from rivals.p3 import P3
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.ledger import Kind
from outgrow.engine.batches import BatchConfig
from outgrow.engine.minibatch_loop import make_sampler
from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard
from outgrow.graph.graph import Graph
from outgrow.nn import GAT, GCN, SAGE, Model
from outgrow.nn.tasks import NodeClassification
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.sampled import Sampled
from pool import run_workers
from suites.traffic import LONG, ring
from support import normal, random_topology, with_relations

SEED, EPOCHS, NODES, WIDTH, CLASSES = 5, (1, 2), 60, 8, 3
TOPOLOGY = random_topology(NODES, 900)
TRAIN = torch.arange(0, NODES, 2)


class Case(NamedTuple):
    """What is trained.

    Attributes:
        build: Makes the model; its first layer projects first if it is narrow, else sums first.
        batches: Some leave a worker without seeds.
        width: Of the features; with fewer columns than workers some have none.
    """

    build: Callable[[], Model]
    batches: BatchConfig = BatchConfig(size=10, fanout=(2, 3))
    width: int = WIDTH


CASES = {
    "gcn, sums first": Case(lambda: GCN(WIDTH, 16, CLASSES, dropout=0.3)),
    "gcn, projects first": Case(lambda: GCN(WIDTH, 5, CLASSES, dropout=0.3, norm=True, input_dropout=0.4)),
    "sage, sums first": Case(lambda: SAGE(WIDTH, 16, CLASSES, dropout=0.3, norm=True, input_dropout=0.4)),
    "sage, projects first": Case(lambda: SAGE(WIDTH, 5, CLASSES, dropout=0.3)),
    "one layer": Case(lambda: SAGE(WIDTH, 5, CLASSES, layers=1), BatchConfig(size=14, fanout=(4,))),
    "three layers, all neighbours": Case(lambda: GCN(WIDTH, 6, CLASSES, layers=3), BatchConfig(size=16)),
    "two columns": Case(lambda: SAGE(2, 5, CLASSES, input_dropout=0.4), width=2),
    "two columns, projects first": Case(lambda: GCN(2, 1, CLASSES), width=2),
    "too few seeds": Case(lambda: SAGE(WIDTH, 5, CLASSES), BatchConfig(size=2, fanout=(2, 3))),
}
Gradients = list[dict[str, Tensor]]
"""Of each step, by parameter."""


class Seen(NamedTuple):
    """What a worker has of a case.

    Attributes:
        gradients: Its gradients.
        losses: Of each step.
        sent: Bytes by kind that it sent in the steps.
    """

    gradients: Gradients
    losses: list[float]
    sent: Counter[Kind]


def model_of(case: Case) -> Model:
    torch.manual_seed(1)
    return case.build().double()


def seen(share: GraphShard, case: Case, strategy: Strategy) -> Seen:
    """What two epochs give, as one worker has it."""
    comm, model = share.comm, model_of(case)
    problem = Problem.from_node_labels(
        share,
        features=normal(NODES, case.width, seed=1),
        labels=torch.arange(NODES) * 7 % CLASSES,
        train=TRAIN,
        task=NodeClassification(),
        model=model,
        seed=SEED,
        batches=case.batches,
    )
    execution, found = strategy.prepare(problem), Seen([], [], Counter())
    before = comm.ledger.bytes_by_link.copy()
    for epoch in EPOCHS:
        for step in execution.steps(epoch):
            assert all(each.grad is not None for each in model.parameters())
            found.gradients.append({name: each.grad.clone() for name, each in model.named_parameters()})
            found.losses.append(step.loss)
            model.zero_grad()
    execution.close()
    for (_, kind), count in (comm.ledger.bytes_by_link - before).items():
        found.sent[kind] += count
    return found


def owner_of(workers: int) -> Tensor:
    """Nodes dealt out without order."""
    return torch.from_numpy(normal(NODES, seed=3).argsort().numpy() % workers)


def on_worker(place: WorkerContext) -> dict[str, Seen]:
    share = PartitionShard(TOPOLOGY, owner_of(place.comm.size), place.comm)
    return {name: seen(share, case, P3()) for name, case in CASES.items()}


@cache
def trained(workers: int) -> list[dict[str, Seen]]:
    return run_workers(on_worker, workers)


def counted(name: str, workers: int) -> tuple[Counter[str], int]:
    """What is counted of all steps, and how many they are."""
    case, model = CASES[name], model_of(CASES[name])
    sampler = make_sampler(TOPOLOGY, model, case.batches, SEED)
    total, steps = Counter[str](), 0
    for epoch in EPOCHS:
        for step, seeds in enumerate(case.batches.seeds_of_epoch(TRAIN, SEED, epoch)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("migrate_counts.EPOCH", epoch)
                found = of_models(Workers(sampler=sampler, owner=owner_of(workers), size=workers), seeds, step)
            total, steps = total + found[COUNTED], steps + 1
    return total, steps


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_sampled(name: str, workers: int) -> None:
    expected = seen(FullGraphShard(TOPOLOGY), CASES[name], Sampled())
    everyone = (
        [seen(FullGraphShard(TOPOLOGY), CASES[name], P3())]
        if workers == 1
        else [each[name] for each in trained(workers)]
    )
    assert len(expected.losses) == sum(len(CASES[name].batches.seeds_of_epoch(TRAIN, SEED, epoch)) for epoch in EPOCHS)
    for found in everyone:
        assert found.losses == pytest.approx(expected.losses, rel=1e-10)
        for mine, theirs in zip(found.gradients, expected.gradients, strict=True):
            for parameter, gradient in theirs.items():
                torch.testing.assert_close(mine[parameter], gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_the_ledger_is_what_is_counted(name: str, workers: int) -> None:
    """Beside it go the first layer's sum of gradients, numbers that say whether there are any, and sizes."""
    sent = sum((each[name].sent for each in trained(workers)), Counter[Kind]())
    found, steps = counted(name, workers)
    model = model_of(CASES[name])
    graph = Graph(name="random", topology=TOPOLOGY, features=torch.ones(NODES, CASES[name].width))
    once = model.layers_list()[0].spec.out_features * found["activations"] * LONG
    assert sent[Kind.ACTIVATIONS] == sent[Kind.GRADIENTS] == once
    assert sent[Kind.ACTIVATIONS] + sent[Kind.GRADIENTS] == 2 * priced(found, model, graph, workers)["partial"]
    assert sent[Kind.IDS] + sent[Kind.TOPOLOGY] == found["topology_bytes"]
    assert sent[Kind.IDS] == LONG * (workers - 1) * found["rows"]
    flags = LONG * len([*model.parameters()])
    assert sent[Kind.PARAMETERS] == steps * ring(parameter_bytes(model) + flags, workers)
    assert sent[Kind.METRICS] == steps * (3 * LONG * workers * (workers - 1) + ring(LONG, workers))
    assert not sent[Kind.FEATURES]


def test_models_that_are_no_sum_over_columns_are_refused() -> None:
    others = GAT(WIDTH, 8, CLASSES), SAGE(WIDTH, 8, CLASSES, residual=True)
    for model in others:
        with pytest.raises(InputError, match="strategy p3 cannot train this model"):
            P3().validate_model(model)
    P3().validate_model(SAGE(WIDTH, 8, CLASSES))


def test_graphs_of_which_more_than_the_ends_of_edges_counts_are_refused() -> None:
    graph = Graph(name="random", topology=TOPOLOGY, features=torch.ones(NODES, WIDTH))
    P3().validate_graph(graph, BatchConfig(size=4, fanout=(2,)))
    related = Graph(name="related", topology=with_relations(TOPOLOGY, 2), features=torch.ones(NODES, WIDTH))
    P3().validate_graph(related, BatchConfig(size=4, fanout=(2,)))
    with pytest.raises(InputError, match="strategy p3 cannot train on this graph"):
        P3().validate_graph(related, BatchConfig(size=4, fanout=((2, 1),)))
    with pytest.raises(InputError, match="strategy p3 cannot train on this graph"):
        P3().validate_graph(
            Graph(name="weighted", topology=random_topology(9, 20, weighted=True), features=None), BatchConfig()
        )
    empty = torch.zeros(0)
    sparse = SparseRows(indptr=torch.zeros(NODES + 1).long(), indices=empty.int(), values=empty, num_columns=WIDTH)
    with pytest.raises(InputError, match="strategy p3 cannot train on this graph"):
        P3().validate_graph(Graph(name="sparse", topology=TOPOLOGY, features=sparse), BatchConfig())
