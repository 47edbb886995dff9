"""The strategy `tensor`: its runs are those of `full`, its workers do equally much, and what it cannot train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch
from layer_table import Foreign

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.engine.shard import PartitionShard
from outgrow.graph.store.reader import write_store
from outgrow.nn import (
    GAT,
    GCN,
    GGCN,
    SAGE,
    AttentionPropagateConv,
    Conv,
    Decoupled,
    DecoupledGAT,
    GCNConv,
    Layer,
    LinearEncoder,
    Model,
    PropagateConv,
)
from outgrow.nn.tasks import NodeClassification
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.config import TrainConfig
from planted import NODES, WIDTH, Planted, model_of, planted
from suites.sessions import Plan, Result, graph_of, largest_step, train_in_turn
from thread_group import run_in_threads

CLOSE = 1e-8
CONFIG = TrainConfig(epochs=12, lr=0.02, weight_decay=1e-4, seed=5)


def decoupled(heads: int) -> Model:
    torch.manual_seed(1)
    return Decoupled(WIDTH, 8, 2, rounds=4, gamma=0.9, heads=heads, dropout=0.3, input_dropout=0.2).double()


MODELS: dict[str, Callable[[], Model]] = {
    **{kind: partial(model_of, kind, 1) for kind in ("gcn", "sage", "gat")},
    "decoupled": partial(decoupled, 0),
    "decoupled attention": partial(decoupled, 2),
}


class Layers(NamedTuple):
    """A model, and channels and columns of its layers' source rows."""

    build: Callable[[], Model]
    rows: tuple[tuple[int, int], ...]
    loops: bool = True

    @property
    def edges(self) -> int:
        """Number of edges that each layer aggregates."""
        graph = planted().topology
        return (graph.with_self_loops if self.loops else graph).num_edges


BALANCED = {
    "gcn": Layers(lambda: GCN(8, 7, 5), ((1, 7), (1, 5))),
    "gcn of even widths": Layers(lambda: GCN(8, 6, 2), ((1, 6), (1, 2))),
    "gat": Layers(lambda: GAT(8, 6, 4, heads=2, out_heads=3), ((2, 3), (3, 4))),
    "ggcn of even widths": Layers(lambda: GGCN(8, 6, 2), ((2, 6), (2, 2)), loops=False),
    "decoupled": Layers(lambda: Decoupled(8, 16, 5, rounds=3), ((1, 5),) * 3),
    "decoupled attention of even widths": Layers(lambda: DecoupledGAT(8, 16, 4, rounds=3, heads=2), ((1, 4),) * 3),
}


def problem_of(comm: Comm, model: Model) -> Problem:
    """Of the nodes some workers own many and some few."""
    world = planted()
    owner = torch.arange(NODES).remainder(7).clamp_max(comm.size - 1)
    return Problem.from_node_labels(
        PartitionShard(world.topology, owner, comm),
        features=world.features,
        labels=world.labels,
        train=torch.arange(0, NODES, 3),
        task=NodeClassification(),
        model=model.double(),
        seed=4,
    )


def counted(comm: Comm) -> dict[str, Counter[str]]:
    """What this worker counts in an epoch, by model."""
    found = {}
    for name, layers in BALANCED.items():
        execution = TensorParallel().prepare(problem_of(comm, layers.build()))
        comm.ledger.counters.clear()
        list(execution.steps(1))
        execution.close()
        found[name] = Counter(comm.ledger.counters)
        comm.ledger.counters.clear()
    return found


def one_sided(world: Planted) -> og.Graph:
    """All nodes to train on are among the last."""
    graph = graph_of(world)
    nodes = torch.arange(NODES)
    split = replace(graph.split, train=nodes[100:], val=nodes[:50], test=nodes[50:100])
    return replace(graph, split=split)


GRAPHS: dict[str, Callable[[Planted], og.Graph]] = {"planted": graph_of, "labels on one worker": one_sided}
STRATEGIES: dict[str, Strategy] = {
    "chunks": TensorParallel(),
    "chunks once more": TensorParallel(),
    "no chunks": TensorParallel(chunks=1, cache_first_aggregate=False),
    "coefficients": TensorParallel(attention="coefficients"),
    "full": Full(partition="hash"),
}
"""Without chunks workers own ranges of nodes."""
CASES = [
    *((kind, "planted", "chunks") for kind in MODELS),
    *((kind, "planted", "no chunks") for kind in ("sage", "decoupled attention")),
    *((kind, "labels on one worker", "no chunks") for kind in ("gcn", "gat")),
    ("gat", "planted", "chunks once more"),
    ("decoupled attention", "planted", "coefficients"),
    ("decoupled attention", "planted", "full"),
]


class Seen(NamedTuple):
    """What a worker has counted in an epoch, by model, and the runs of all cases."""

    counts: dict[str, Counter[str]]
    runs: dict[tuple[str, str, str], Result]


@cache
def seen(workers: int) -> list[Seen]:
    """What each worker has, one task; runs are made on two."""

    def on_worker(place: WorkerContext) -> Seen:
        return Seen(counted(place.comm), train_in_turn(place, plans if workers == 2 else {}))

    with TemporaryDirectory() as name:
        folder = Path(name)
        for graph, make in GRAPHS.items():
            write_store(make(planted()), folder / graph)
        plans = {
            (kind, graph, how): Plan(folder / graph, MODELS[kind](), CONFIG, STRATEGIES[how])
            for kind, graph, how in CASES
        }
        return run_in_threads(on_worker, workers)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", BALANCED)
def test_workers_aggregate_equally_much(name: str, workers: int) -> None:
    """A slice is a column wider than another at most, in each layer."""
    layers, by_rank = BALANCED[name], [each.counts[name] for each in seen(workers)]
    work = [each["edge_columns"] for each in by_rank]
    assert sum(work) == sum(layers.edges * channels * columns for channels, columns in layers.rows)
    assert max(work) - min(work) <= sum(layers.edges * channels for channels, _ in layers.rows)
    if workers == 2 and "even" in name:
        assert work[0] == work[1]
    assert sum(each["edges_aggregated"] for each in by_rank) == layers.edges * len(layers.rows)
    assert sum(each["rows_computed"] for each in by_rank) == NODES * len(layers.rows)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("make", [GCN, SAGE])
def test_a_constant_aggregate_is_computed_once(make: Callable[..., Model], constant: bool) -> None:
    world, model = planted(), make(8, 16, 2, layers=3).double()
    problem = replace(world.problem(), model=model)
    counters = problem.shard.comm.ledger.counters
    execution = TensorParallel(cache_first_aggregate=constant).prepare(problem)
    edges = (world.topology.with_self_loops if make is GCN else world.topology).num_edges
    assert counters["edges_aggregated"] == (edges if constant else 0)
    for epoch in (1, 2, 3):
        before = counters["edges_aggregated"]
        list(execution.steps(epoch))
        assert counters["edges_aggregated"] - before == edges * (2 if constant else 3)
    list(execution.inference())
    assert counters["edges_aggregated"] == edges * (1 + 4 * 2 if constant else 4 * 3)


@pytest.mark.parametrize("kind", MODELS)
def test_the_run_is_that_of_full_on_one_worker(kind: str) -> None:
    graph, runs = graph_of(planted()), []
    for strategy in ("full", "tensor"):
        model = MODELS[kind]()
        runs.append(og.train(graph, model, strategy=strategy, config=CONFIG, progress=False))
    expected, run = runs
    assert run.summary["strategy"] == "tensor"
    assert run.summary["strategy_options"] == TensorParallel().options()
    assert run.summary["exact"] is True
    assert largest_step(run.loss, expected.loss) < CLOSE
    assert run.loss[-1] < run.loss[0]
    for key in ("val_accuracy", "test_accuracy", "best_epoch"):
        assert run.summary[key] == expected.summary[key]
    assert run.logits is not None
    torch.testing.assert_close(run.logits, expected.logits, rtol=CLOSE, atol=CLOSE)
    torch.testing.assert_close(run.logits, og.predict(graph, model), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("kind", "graph", "how"), CASES)
def test_the_run_is_that_of_full_on_two_workers(kind: str, graph: str, how: str) -> None:
    result, given = seen(2)[0].runs[kind, graph, how], GRAPHS[graph](planted())
    expected = og.train(given, MODELS[kind](), strategy=Full(), config=CONFIG, progress=False)
    assert result.summary["workers"] == 2
    assert largest_step(result.summary["loss"], expected.loss) < CLOSE
    for key in ("val_accuracy", "test_accuracy", "best_epoch"):
        assert result.summary[key] == expected.summary[key]
    torch.testing.assert_close(result.logits, expected.logits, rtol=CLOSE, atol=CLOSE)
    assert result.summary["strategy"] == STRATEGIES[how].name
    assert result.summary["ledger"]["peer"]["gradients"] > 0


def test_a_run_has_the_same_bits_each_time() -> None:
    first, second = (seen(2)[0].runs["gat", "planted", how] for how in ("chunks", "chunks once more"))
    assert first.summary["loss"] == second.summary["loss"]
    assert first.val_scores == second.val_scores
    assert torch.equal(first.logits, second.logits)


PROPAGATIONS: dict[str, Callable[[], list[Conv]]] = {
    "factors that differ": lambda: [PropagateConv(8, gamma=0.5), PropagateConv(8, gamma=0.25)],
    "scores that end": lambda: [AttentionPropagateConv(6, 1, last=True), PropagateConv(6)],
    "scores that end later": lambda: [AttentionPropagateConv(6, 1), AttentionPropagateConv(6, 1, last=True)],
    "scores that go on": lambda: [AttentionPropagateConv(6, 1), AttentionPropagateConv(6, 1)],
    "restarts that go on": lambda: [PropagateConv(8, alpha=0.2, hops_out=1), PropagateConv(8, hops_in=1, hops_out=2)],
    "restarts that begin anew": lambda: [PropagateConv(8), PropagateConv(8, alpha=0.2, hops_out=1)],
    "restarts from columns of the input": lambda: [
        PropagateConv(4, alpha=0.2, hops_in=1, hops_out=1),
        PropagateConv(4, alpha=0.3, hops_in=1, hops_out=1),
    ],
}
MIXED: dict[str, Callable[[], list[Conv]]] = {
    "scores that were columns": lambda: [PropagateConv(8), AttentionPropagateConv(4, 2, last=True)],
    "columns that were scores": lambda: [AttentionPropagateConv(4, 2), AttentionPropagateConv(6, 1)],
    "scores of what scores were of": lambda: [AttentionPropagateConv(6, 1, last=True), AttentionPropagateConv(2, 2)],
}


@pytest.mark.parametrize(
    "convs",
    [*PROPAGATIONS.values(), *MIXED.values()],
    ids=[*PROPAGATIONS, *MIXED],
)
@pytest.mark.parametrize("encoded", [True, False])
def test_propagation_in_any_order(convs: Callable[[], list[Conv]], encoded: bool) -> None:
    losses = []
    for strategy in ("full", "tensor"):
        torch.manual_seed(0)
        layers = [Layer(conv) for conv in convs()]
        last = Layer(GCNConv(layers[-1].spec.out_features, 2))
        model = Model([*layers, last], encoder=LinearEncoder(WIDTH, WIDTH) if encoded else None).double()
        losses.append(og.train(graph_of(planted()), model, strategy=strategy, epochs=3, progress=False).loss)
    assert largest_step(*losses) < CLOSE


def foreign() -> Model:
    """A layer that may mix columns, before one that does not."""
    return Model([og.nn.Layer(og.nn.PyGConv(Foreign(), 6, 6)), og.nn.Layer(og.nn.GCNConv(6, 2))])


def test_a_layer_that_may_mix_columns_is_refused() -> None:
    graph, model = graph_of(replace(planted(), features=planted().features[:, :6])), foreign().double()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    told = r"tensor cannot(.|\n)*got: +PyGConv, which(.|\n)*choose strategy full or offload"
    with pytest.raises(InputError, match=told):
        TensorParallel().validate_model(model)
    for strategy in ("tensor", TensorParallel()):
        with pytest.raises(InputError, match=told):
            og.train(graph, model, strategy=strategy, epochs=1, progress=False)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))
    og.train(graph, model, strategy="full", epochs=1, progress=False)


@pytest.mark.parametrize("make", [*MODELS.values(), lambda: GGCN(8, 6, 2)])
def test_layers_that_keep_columns_apart_are_taken(make: Callable[[], Model]) -> None:
    TensorParallel().validate_model(make())


@pytest.mark.parametrize("options", [{"batch_size": 16}, {"fanout": (3, 2)}, {"batch_size": 16, "fanout": (3, 2)}])
def test_mini_batches_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"tensor trains on all nodes(.|\n)*no batch_size(.|\n)*choose strategy"):
        og.train(graph_of(planted()), GCN(8, 4, 2).double(), strategy="tensor", progress=False, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cache_first_aggregate": "yes"}, "cache_first_aggregate(.|\n)*true or false(.|\n)*'yes'"),
        ({"cache_first_aggregate": 1}, "cache_first_aggregate(.|\n)*true or false"),
        ({"chunks": 2.5}, "chunks(.|\n)*whole number"),
        ({"chunks": True}, "chunks(.|\n)*whole number"),
        ({"chunks": 0}, "chunks of tensor(.|\n)*at least 1"),
        ({"attention": "score"}, "attention(.|\n)*scores"),
        ({"attention": 2}, "attention(.|\n)*a string"),
    ],
    ids=str,
)
def test_options_of_the_wrong_kind_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        TensorParallel(**options)


def test_an_epoch_that_is_resumed_after_its_only_step_is_over() -> None:
    execution = TensorParallel().prepare(planted().problem())
    assert list(execution.steps(1, first=1)) == []
    assert len(list(execution.steps(1))) == 1
