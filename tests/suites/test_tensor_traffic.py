"""The ledger of `tensor` is the formula, to the byte; a decoupled model takes four exchanges however deep it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.shard import PartitionShard
from outgrow.graph.store.reader import write_store
from outgrow.graph.topology import Topology
from outgrow.nn import GAT, GCN, GGCN, RGCN, SAGE, SIGN, Decoupled, DecoupledGAT, Model
from outgrow.nn.tasks import NodeClassification
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem
from outgrow.strategies.tensor.chunk_schedule import assign_owners
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.config import TrainConfig
from planted import NODES, WIDTH, planted
from suites.sessions import Plan, Result, graph_of, train_in_turn
from suites.tensor_traffic import Everywhere, Moves, Sliced, both_ways, bytes_of_run, bytes_per_epoch, in_ranges
from suites.traffic import Sizes
from thread_group import run_in_threads

WORKERS, RELATIONS = 3, 3
SHORT, LONG = Sizes(epochs=2, evaluations=1, number=8, feature=8), Sizes(epochs=5, evaluations=2, number=8, feature=8)


class Traffic(NamedTuple):
    """A model of 8 features and 2 classes, and what moves when it is trained.

    Attributes:
        build: Makes the model.
        moves: What moves.
        strategy: With 1 chunk workers own ranges of 40 nodes, with more some own more than others.
        half: Whether features are stored in half precision.
    """

    build: Callable[[], Model]
    moves: Moves
    strategy: TensorParallel = TensorParallel()
    half: bool = False


class Exchanges(NamedTuple):
    """A model of some layers or rounds, and its exchanges in an epoch.

    Attributes:
        build: Makes the model.
        in_chunks: Splits and gathers, there and back, of which there is one for each chunk.
        whole: Exchanges that are not cut into chunks.
    """

    build: Callable[[], Model]
    in_chunks: int
    whole: int = 0


RAW, WHOLE = (Sliced(1, WIDTH),), TensorParallel(chunks=1)
ONE_OF_CLASSES = Moves(trained=both_ways((1, 2)))
MODELS = {
    "gcn aggregates first": Traffic(
        lambda: GCN(8, 16, 2), Moves(features=RAW, aggregates=RAW, trained=both_ways((1, 2)))
    ),
    "gcn projects first": Traffic(lambda: GCN(8, 4, 2), Moves(trained=both_ways((1, 4), (1, 2))), WHOLE),
    "textbook gcn": Traffic(
        lambda: GCN(8, 16, 2),
        Moves(features=RAW, untrained=RAW, trained=both_ways((1, 2))),
        TensorParallel(cache_first_aggregate=False),
    ),
    "gcn with dropout of the input": Traffic(
        lambda: GCN(8, 16, 2, input_dropout=0.5), Moves(dropped=RAW, untrained=RAW, trained=both_ways((1, 2)))
    ),
    "half precision": Traffic(
        lambda: GCN(8, 16, 2), Moves(features=RAW, aggregates=RAW, trained=both_ways((1, 2))), half=True
    ),
    "sage of three layers": Traffic(
        lambda: SAGE(8, 16, 2, layers=3),
        Moves(features=RAW, aggregates=RAW, trained=both_ways((1, 16), (1, 2))),
        TensorParallel(chunks=7),
    ),
    "gat splits columns and sends scores to all": Traffic(
        lambda: GAT(8, 6, 2, heads=2, out_heads=3),
        Moves(trained=(*both_ways((2, 3), (3, 2)), Everywhere(2 * 2), Everywhere(2 * 3))),
    ),
    "ggcn splits columns of targets too": Traffic(
        lambda: GGCN(8, 6, 2),
        Moves(trained=tuple(Sliced(channels, columns) for columns in (6, 2) for channels in (2, 1, 1))),
    ),
    "rgcn aggregates to bases first": Traffic(
        lambda: RGCN(8, 16, 2, num_relations=RELATIONS, bases=2),
        Moves(features=RAW, trained=(Sliced(2, 8), Sliced(2, 2), Sliced(1, 2))),
    ),
    "rgcn sums bases before the gather, in one chunk and in many": Traffic(
        lambda: RGCN(8, 2, 2, num_relations=RELATIONS, bases=3, layers=2),
        Moves(trained=(Sliced(3, 2), Sliced(1, 2), Sliced(1, 2), Sliced(3, 2))),
        TensorParallel(chunks=5),
    ),
    "decoupled, 2 rounds": Traffic(lambda: Decoupled(8, 16, 2, rounds=2), ONE_OF_CLASSES),
    "decoupled, 5 rounds": Traffic(lambda: Decoupled(8, 16, 2, rounds=5), ONE_OF_CLASSES),
    "decoupled with restarts": Traffic(lambda: Decoupled(8, 16, 2, rounds=5, alpha=0.2), ONE_OF_CLASSES),
    "features propagated once": Traffic(
        lambda: SIGN(8, 16, 2, concat_hops=False), Moves(features=RAW, aggregates=RAW, trained=())
    ),
    "all hops of features gathered at once": Traffic(
        lambda: SIGN(8, 16, 2, rounds=3), Moves(features=RAW, aggregates=(Sliced(3, WIDTH),), trained=())
    ),
    "features propagated in every epoch": Traffic(
        lambda: SIGN(8, 16, 2, rounds=3),
        Moves(features=RAW, untrained=(Sliced(3, WIDTH),), trained=()),
        TensorParallel(cache_first_aggregate=False),
    ),
    "decoupled with attention": Traffic(
        lambda: DecoupledGAT(8, 16, 2, rounds=3, heads=2), Moves(trained=(*both_ways((1, 2)), Everywhere(2 * 2))), WHOLE
    ),
    "decoupled with attention in many chunks": Traffic(
        lambda: DecoupledGAT(8, 16, 2, rounds=3, heads=2),
        Moves(trained=(*both_ways((1, 2)), Everywhere(2 * 2))),
        TensorParallel(chunks=11),
    ),
    "decoupled with relations": Traffic(lambda: Decoupled(8, 16, 2, num_relations=RELATIONS), ONE_OF_CLASSES),
}
EXCHANGES = {
    **{f"decoupled, {n} rounds": Exchanges(lambda n=n: Decoupled(8, 16, 2, rounds=n), 4) for n in (1, 5)},
    "sums, 3 rounds": Exchanges(lambda: Decoupled(8, 16, 2, rounds=3, aggregator="sum"), 4),
    "means, 3 rounds": Exchanges(lambda: Decoupled(8, 16, 2, rounds=3, aggregator="mean"), 4),
    "restarts, 5 rounds": Exchanges(lambda: Decoupled(8, 16, 2, rounds=5, alpha=0.2), 4),
    "restarts of attention": Exchanges(lambda: DecoupledGAT(8, 16, 2, rounds=3, alpha=0.2), 4, 2),
    "propagated features": Exchanges(lambda: SIGN(8, 16, 2), 0),
    **{f"attention, {n} rounds": Exchanges(lambda n=n: DecoupledGAT(8, 16, 2, rounds=n), 4, 2) for n in (1, 5)},
    "relations, 3 rounds": Exchanges(lambda: Decoupled(8, 16, 2, rounds=3, num_relations=RELATIONS), 4, 0),
    **{f"gcn, {n} layers": Exchanges(lambda n=n: GCN(8, 4, 2, layers=n), 4 * n) for n in (1, 3)},
    "gat, 2 layers": Exchanges(lambda: GAT(8, 6, 2, heads=2), 8, 4),
}
CHUNKS = (1, 4)


def topology() -> Topology:
    """Parallel edges have the same relation, so that they are in the order of a store."""
    found = planted().topology
    return replace(found, relation=(found.indices % RELATIONS).to(torch.int8))


def sizes_of(traffic: Traffic, sizes: Sizes) -> Sizes:
    """In half precision features have 2 bytes and parameters 4."""
    return Sizes(epochs=sizes.epochs, evaluations=sizes.evaluations, number=4, feature=2) if traffic.half else sizes


def model_of(traffic: Traffic) -> Model:
    """In float64, unless the features are in half precision."""
    torch.manual_seed(0)
    return traffic.build() if traffic.half else traffic.build().double()


def plan_of(traffic: Traffic, sizes: Sizes, folder: Path) -> Plan:
    """A run of some epochs, evaluated after every second."""
    config = TrainConfig(epochs=sizes.epochs, eval_every=2)
    return Plan(folder / ("half" if traffic.half else "double"), model_of(traffic), config, traffic.strategy)


@contextmanager
def counted_exchanges(comm: Comm) -> Iterator[list[Kind]]:
    """What each exchange of a worker carries, there or back."""
    found, right = list[Kind](), comm.start_exchange

    def send(rows: Tensor, route: Any, kind: Kind) -> Any:
        found.append(kind)
        return right(rows, route, kind)

    with patch.object(comm, "start_exchange", send):
        yield found


def problem_on(comm: Comm, model: Model) -> Problem:
    """Nodes dealt out in turn."""
    world = planted()
    return Problem.from_node_labels(
        PartitionShard(topology(), torch.arange(NODES) % comm.size, comm),
        features=world.features,
        labels=world.labels,
        train=torch.arange(0, NODES, 3),
        task=NodeClassification(),
        model=model.double(),
        seed=4,
    )


def exchanges_of(comm: Comm, model: Model, chunks: int) -> list[Kind]:
    """The exchanges of an epoch."""
    execution = TensorParallel(chunks=chunks).prepare(problem_on(comm, model))
    with counted_exchanges(comm) as found:
        list(execution.steps(1))
    execution.close()
    return found


def attention_bytes(comm: Comm, attention: str) -> Counter[Kind]:
    """What a worker sends in the second epoch of a decoupled model with attention, by kind."""
    problem = problem_on(comm, DecoupledGAT(8, 16, 2, rounds=3, heads=2))
    execution = TensorParallel(attention=attention).prepare(problem)
    list(execution.steps(1))
    before = comm.ledger.bytes_by_link.copy()
    list(execution.steps(2))
    execution.close()
    found = Counter[Kind]()
    for (_, kind), count in (comm.ledger.bytes_by_link - before).items():
        found[kind] += count
    return found


class Seen(NamedTuple):
    """What a worker has.

    Attributes:
        results: Of runs.
        exchanges: Of an epoch, by model and number of chunks.
        attention: Bytes of an epoch by what workers tell each other of attention, and by kind.
    """

    results: dict[str, Result]
    exchanges: dict[tuple[str, int], list[Kind]]
    attention: dict[str, Counter[Kind]]


@cache
def seen(sizes: Sizes) -> list[Seen]:
    """A run of every model, and the exchanges; one task."""

    def on_worker(place: WorkerContext) -> Seen:
        exchanges = {
            (name, chunks): exchanges_of(place.comm, expected.build(), chunks)
            for name, expected in EXCHANGES.items()
            for chunks in CHUNKS
        }
        attention = {told: attention_bytes(place.comm, told) for told in ("scores", "coefficients")}
        place.comm.ledger.bytes_by_link.clear()
        return Seen(train_in_turn(place, chosen), exchanges, attention)

    with TemporaryDirectory() as name:
        folder = Path(name)
        graph = replace(graph_of(replace(planted(), topology=topology())), relation_names=("a", "b", "c"))
        assert isinstance(graph.features, Tensor)
        write_store(graph, folder / "double")
        write_store(replace(graph, features=graph.features.half()), folder / "half")
        chosen = {name: plan_of(traffic, sizes, folder) for name, traffic in MODELS.items()}
        return run_in_threads(on_worker, WORKERS)


def owner_of(traffic: Traffic) -> Tensor:
    """The worker of each node."""
    [first, *_], graph = traffic.build().layers_list(), topology()
    view = graph.with_self_loops if first.spec.self_loops else graph
    return assign_owners(view.indptr, view.indices, traffic.strategy.owned_chunks, WORKERS)


def bytes_between_workers(name: str, sizes: Sizes) -> dict[str, int]:
    ledger = seen(sizes)[0].results[name].summary["ledger"]
    assert not any(table for link, table in ledger.items() if link != "peer")
    return ledger["peer"]


@pytest.mark.parametrize(
    "sizes", [pytest.param(SHORT, marks=pytest.mark.slow, id="short"), pytest.param(LONG, id="long")]
)
@pytest.mark.parametrize("name", MODELS)
def test_all_bytes_of_a_run(name: str, sizes: Sizes) -> None:
    traffic = MODELS[name]
    expected = bytes_of_run(owner_of(traffic), WORKERS, model_of(traffic), traffic.moves, sizes_of(traffic, sizes))
    assert bytes_between_workers(name, sizes) == {kind.value: count for kind, count in expected.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_what_an_epoch_adds(name: str) -> None:
    traffic, short, long = MODELS[name], *(bytes_between_workers(name, sizes) for sizes in (SHORT, LONG))
    nodes, number = owner_of(traffic).bincount().tolist(), sizes_of(traffic, SHORT).number
    plain, evaluated = (bytes_per_epoch(traffic.moves, nodes, number, evaluated=each) for each in (False, True))
    for kind in (Kind.FEATURES, Kind.ACTIVATIONS, Kind.GRADIENTS):
        assert long.get(kind, 0) - short.get(kind, 0) == 2 * plain.get(kind, 0) + evaluated.get(kind, 0)
    for kind in (Kind.IDS, Kind.TOPOLOGY):
        assert long[kind] == short[kind]


@pytest.mark.parametrize("kind", [Kind.ACTIVATIONS, Kind.GRADIENTS])
def test_coefficients_are_a_number_for_each_edge(kind: Kind) -> None:
    scores, coefficients = (
        sum(each.attention[told][kind] for each in seen(LONG)) for told in ("scores", "coefficients")
    )
    assert coefficients - scores == topology().with_self_loops.num_edges * (WORKERS - 1) * 8


def test_rounds_move_nothing() -> None:
    found = [dict(bytes_between_workers(f"decoupled, {rounds} rounds", LONG)) for rounds in (2, 5)]
    described = [each.pop(Kind.PARAMETERS) for each in found]
    assert found[0] == found[1]
    assert described[0] <= described[1]  # a round has no parameters, but a name


def test_nodes_are_dealt_out_in_several_ways() -> None:
    owners = [owner_of(traffic) for traffic in MODELS.values()]
    counts = [owner.bincount(minlength=WORKERS).tolist() for owner in owners]
    assert {in_ranges(owner) for owner in owners} == {True, False}
    assert [40, 40, 40] in counts
    assert max(max(each) - min(each) for each in counts) <= 2


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("name", EXCHANGES)
def test_exchanges_of_an_epoch(name: str, chunks: int) -> None:
    """Four of a decoupled model however many rounds it has, and two more with attention; each cut into chunks."""
    count = EXCHANGES[name].in_chunks * chunks + EXCHANGES[name].whole
    for found in (each.exchanges[name, chunks] for each in seen(LONG)):
        assert found == [Kind.ACTIVATIONS] * (count // 2) + [Kind.GRADIENTS] * (count // 2)
