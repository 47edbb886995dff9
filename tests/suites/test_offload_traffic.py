"""The ledger of `offload` is the formula, to the byte: forward and backward, with and without each technique."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import pytest
import torch

from outgrow.core.ledger import Kind, Link
from outgrow.engine.shard import PartitionShard
from outgrow.nn import GAT, GCN, GIN, SAGE, Model
from outgrow.nn.tasks import NodeClassification
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem
from outgrow.strategies.offload.execution import ChunkedExecution
from outgrow.strategies.offload.strategy import Offload
from planted import NODES, WIDTH, planted
from suites.offload_traffic import Bytes, LayerRows, Sets, Traffic, nodes_read, volumes_of
from support import disk_folder
from thread_group import run_in_threads

ROWS = {Kind.FEATURES, Kind.ACTIVATIONS, Kind.GRADIENTS}
EPOCHS = 2


class Kinds(NamedTuple):
    """A model of 8 features and 2 classes with three layers, and what is known of its rows."""

    build: Callable[[], Model]
    layers: tuple[LayerRows, ...]
    loops: bool = False
    constant: bool = False
    half: bool = False


MEAN = (LayerRows(8, 8, 8, raw=True), LayerRows(16, 16, 16, raw=True), LayerRows(2, 2, 16))
GCN_ROWS = (LayerRows(8, 8, raw=True), LayerRows(16, 16, raw=True), LayerRows(2, 2))
MODELS = {
    "gcn aggregates first": Kinds(lambda: GCN(8, 16, 2, layers=3), GCN_ROWS, loops=True, constant=True),
    "gcn projects first": Kinds(
        lambda: GCN(8, 4, 2, layers=3), (LayerRows(4, 4), LayerRows(4, 4, raw=True), LayerRows(2, 2)), loops=True
    ),
    "gcn with dropout of the input": Kinds(lambda: GCN(8, 16, 2, layers=3, input_dropout=0.5), GCN_ROWS, loops=True),
    "half precision": Kinds(lambda: GCN(8, 16, 2, layers=3), GCN_ROWS, loops=True, constant=True, half=True),
    "sage": Kinds(lambda: SAGE(8, 16, 2, layers=3), MEAN, constant=True),
    "gin": Kinds(lambda: GIN(8, 16, 2, layers=3), MEAN, constant=True),
    "gat sends columns and scores": Kinds(
        lambda: GAT(8, 6, 2, layers=3, heads=2, out_heads=3),
        (LayerRows(6 + 2, 6, 8, fixed=False), LayerRows(6 + 2, 6, 6, fixed=False), LayerRows(6 + 3, 6, 6, fixed=False)),
        loops=True,
    ),
}


class Plan(NamedTuple):
    """A model and how it is trained."""

    model: str
    chunks: int
    sharing: bool = True
    reuse: bool = True
    reorganise: bool = True
    overlap: bool = True
    cache: bool = True
    storage_precision: str = "full"


class Seen(NamedTuple):
    """What a worker has moved, and which chunk it ran in each wave: first and last own row, plus 1."""

    chunks: list[tuple[int, int]]
    prepared: Bytes
    epochs: list[Bytes]
    inference: Bytes
    facts: dict[str, object]
    counters: Counter[str]


SWITCHES = [
    *(Plan(name, 3) for name in MODELS),
    *(Plan(name, 3, sharing=False, reuse=False, cache=False) for name in MODELS),
    *(Plan("sage", 5, *flags) for flags in product((True, False), repeat=2)),
    Plan("gat sends columns and scores", 4, sharing=False),
    *(Plan("sage", chunks, reorganise=False, overlap=False) for chunks in (1, 7)),
    *(Plan(name, 3, storage_precision=narrow) for name in MODELS for narrow in ("bfloat16", "int8")),
]
EVERYTHING = [
    Plan(name, chunks, sharing=sharing, reuse=reuse, reorganise=reorganise, cache=cache)
    for name in MODELS
    for chunks in (2, 5)
    for sharing, reuse, reorganise, cache in product((True, False), repeat=4)
]


def owner_of(workers: int) -> torch.Tensor:
    """Half of the nodes in turn, and the others in ranges."""
    nodes = torch.arange(NODES)
    return torch.where(nodes % 2 == 0, nodes // 2 % workers, nodes * workers // NODES)


def problem_of(kinds: Kinds, comm: Comm) -> Problem:
    world = planted()
    torch.manual_seed(0)
    model = kinds.build()
    return Problem.from_node_labels(
        PartitionShard(world.topology, owner_of(comm.size), comm),
        features=world.features.half() if kinds.half else world.features,
        labels=world.labels,
        train=torch.arange(0, NODES, 3),
        task=NodeClassification(),
        model=model if kinds.half else model.double(),
        seed=4,
    )


def crossed(comm: Comm) -> Bytes:
    """What crossed since this was asked for last, without what only describes it."""
    found = Counter({key: count for key, count in comm.ledger.bytes_by_link.items() if key[1] in ROWS and count})
    comm.ledger.bytes_by_link.clear()
    return found


def measured(comm: Comm, plan: Plan) -> Seen:
    problem = problem_of(MODELS[plan.model], comm)
    comm.ledger.bytes_by_link.clear()
    comm.ledger.counters.clear()
    options = {name: value for name, value in plan._asdict().items() if name != "model"}
    execution = Offload(scratch_dir=str(disk_folder()), **options).prepare(problem)
    assert isinstance(execution, ChunkedExecution)
    prepared, epochs = crossed(comm), []
    for epoch in range(EPOCHS):
        list(execution.steps(epoch))
        epochs.append(crossed(comm))
    list(execution.inference())
    inference = crossed(comm)
    chunks = list(execution.state.chunk_ranges)
    execution.close()
    return Seen(chunks, prepared, epochs, inference, problem.run_facts, Counter(comm.ledger.counters))


def on_worker(place: WorkerContext, plans: list[Plan]) -> dict[Plan, Seen]:
    return {plan: measured(place.comm, plan) for plan in plans}


@cache
def seen(workers: int, plans: tuple[Plan, ...]) -> list[Mapping[Plan, Seen]]:
    """What each worker has moved."""
    if workers == 1:
        return [{plan: measured(SingleProcessComm(), plan) for plan in plans}]
    return list(run_in_threads(partial(on_worker, plans=list(plans)), workers))


def own_of(workers: int) -> list[list[int]]:
    owner = owner_of(workers)
    return [(owner == worker).nonzero()[:, 0].tolist() for worker in range(workers)]


def reads_of(plan: Plan, by_worker: list[Seen]) -> Sets:
    chunks = [each.chunks for each in by_worker]
    return nodes_read(planted().topology, own_of(len(by_worker)), chunks, loops=MODELS[plan.model].loops)


def require_formula(plan: Plan, by_worker: list[Seen]) -> None:
    """All that was moved is what the formulas say, and so are the facts."""
    kinds, reads, own = MODELS[plan.model], reads_of(plan, by_worker), own_of(len(by_worker))
    traffic = Traffic(
        layers=kinds.layers,
        volumes=volumes_of(reads, own, sharing=plan.sharing, reuse=plan.reuse),
        nodes=NODES,
        features=WIDTH,
        number=4 if kinds.half else 8,
        feature=2 if kinds.half else 8,
        constant=kinds.constant,
        cache=plan.cache,
        storage=plan.storage_precision,
    )
    assert sum((each.prepared for each in by_worker), Counter()) == +traffic.prepared()
    for epoch in range(EPOCHS):
        assert sum((each.epochs[epoch] for each in by_worker), Counter()) == +traffic.epoch()
    assert sum((each.inference for each in by_worker), Counter()) == +traffic.inference()


@pytest.mark.parametrize("plan", SWITCHES, ids=str)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_all_bytes(workers: int, plan: Plan) -> None:
    require_formula(plan, [found[plan] for found in seen(workers, tuple(SWITCHES))])


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_all_bytes_with_and_without_everything(workers: int) -> None:
    found = seen(workers, tuple(EVERYTHING))
    for plan in EVERYTHING:
        require_formula(plan, [each[plan] for each in found])


@pytest.mark.parametrize("plan", [Plan("sage", 5), Plan("gat sends columns and scores", 4, sharing=False)], ids=str)
@pytest.mark.parametrize("workers", [1, 3])
def test_volumes_that_are_told(workers: int, plan: Plan) -> None:
    by_worker = [found[plan] for found in seen(workers, tuple(SWITCHES))]
    reads, own = reads_of(plan, by_worker), own_of(workers)
    given = [sorted(of_worker, key=by_worker[i].chunks.__getitem__) for i, of_worker in enumerate(numbered(reads))]
    before = [[reads[i][wave] for wave in waves] for i, waves in enumerate(given)]
    for facts in (each.facts for each in by_worker):
        for name, sets in (("rows_chosen", reads), ("rows_given", before)):
            shared, reused, plain = (
                volumes_of(sets, own, sharing=sharing, reuse=reuse)
                for sharing, reuse in ((True, False), (True, True), (False, False))
            )
            assert facts[name] == {
                "vanilla": plain.loaded,
                "shared": shared.loaded,
                "reused": reused.loaded,
                "peer": shared.sent,
                "peer_reused": reused.sent,
                "reuse": shared.loaded - reused.loaded,
            }
        assert facts["replication"] == pytest.approx(sum(len(nodes) for waves in reads for nodes in waves) / NODES)
        assert facts["chunks"] == plan.chunks


@pytest.mark.parametrize("model", ["gcn projects first", "sage"])
def test_narrow_rows_take_a_quarter_of_the_bytes_of_float64(model: str) -> None:
    """In bfloat16; those between workers are as many."""
    full, narrow = (
        sum((each[Plan(model, 3, storage_precision=name)].epochs[1] for each in seen(3, tuple(SWITCHES))), Counter())
        for name in ("full", "bfloat16")
    )
    for kind in (Kind.ACTIVATIONS, Kind.GRADIENTS):
        assert narrow[Link.PEER, kind] == full[Link.PEER, kind]
        for link in (Link.HOST_TO_DEVICE, Link.DEVICE_TO_HOST):
            assert 4 * narrow[link, kind] == full[link, kind] > 0


def numbered(reads: Sets) -> list[range]:
    return [range(len(waves)) for waves in reads]


@pytest.mark.parametrize("workers", [1, 3])
def test_chunks_are_ranges_of_about_equal_work(workers: int) -> None:
    sizes = planted().topology.indptr.diff() + 1
    for plan in (plan for plan in SWITCHES if plan.sharing and plan.reuse and not MODELS[plan.model].loops):
        for own, found in zip(own_of(workers), seen(workers, tuple(SWITCHES)), strict=True):
            chunks = sorted(found[plan].chunks)
            assert [first for first, _ in chunks] == [0, *(last for _, last in chunks[:-1])]
            assert chunks[-1][1] == len(own)
            work = [int(sizes[own[first:last]].sum()) for first, last in chunks]
            assert max(work) <= sum(work) / len(work) + int(sizes.max())


def test_every_technique_saves_what_it_should() -> None:
    def over(link: Link, **options: bool) -> int:
        found = seen(3, tuple(SWITCHES))
        return sum(each[Plan("sage", 5, **options)].epochs[1][link, Kind.ACTIVATIONS] for each in found)

    vanilla, reused, shared, both = (
        over(Link.HOST_TO_DEVICE, sharing=sharing, reuse=reuse) for sharing, reuse in product((False, True), repeat=2)
    )
    assert both < min(reused, shared)
    assert max(reused, shared) < vanilla
    assert over(Link.PEER, sharing=False) == 0 < over(Link.PEER) < over(Link.PEER, reuse=False)
