"""The bytes that `migrate` must send, computed from batches, owners and the widths of rows by plain loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.batches import BatchConfig
from outgrow.engine.shard import PartitionShard
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.nn import GCN, SAGE, Model
from outgrow.nn.tasks import NodeClassification
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem
from outgrow.strategies.migrate.strategy import Migrate
from suites.traffic import LONG, gathered, ring
from support import normal, random_topology

SEED, EPOCHS, NODES, WIDTH = 5, (1, 2), 60, 8
TOPOLOGY = random_topology(NODES, 900)
TRAIN = torch.arange(0, NODES, 2)
FEW = BatchConfig(size=10, fanout=(2, 3))


class Traffic(NamedTuple):
    """A model of 8 features and 3 classes.

    Attributes:
        build: Makes it.
        number: Bytes of a parameter.
        row: Bytes of a node's features.
    """

    build: Callable[[], Model]
    number: int
    row: int


MODELS = {
    "gcn": Traffic(lambda: GCN(WIDTH, 16, 3).double(), 8, 8 * WIDTH),
    "sage with features in half precision": Traffic(lambda: SAGE(WIDTH, 6, 3, norm=True), 4, 2 * WIDTH),
}
WAYS = {
    "elided": Migrate(),
    "travel": Migrate(move_model=True, merge=False),
    "travel without pregathering": Migrate(move_model=True, merge=False, pregather=False),
    "two time steps": Migrate(move_model=True, time_steps=2),
    "two time steps without pregathering": Migrate(move_model=True, time_steps=2, pregather=False, prefetch=1),
    "one time step": Migrate(move_model=True, time_steps=1),
    "travel, judged": Migrate(move_model=True),
}


def owner_of(workers: int) -> Tensor:
    """Nodes dealt out without order."""
    return torch.from_numpy(normal(NODES, seed=3).argsort().numpy() % workers)


def met(seeds: list[int], homes: list[int], workers: int, time_steps: int) -> list[list[list[int]]]:
    """Which seeds of a batch each worker computes in each time step: ``[worker][time step]``."""
    models = [place * workers // len(seeds) for place in range(len(seeds))]
    steps = [(home - model) % workers for home, model in zip(homes, models, strict=True)]
    left = list(range(workers))
    while len(left) > time_steps:
        fewest = min(left, key=lambda step: (steps.count(step), step))
        left.remove(fewest)
        dealt = Counter[int]()
        for place, model in enumerate(models):
            if steps[place] == fewest:
                steps[place] = left[(model + dealt[model]) % len(left)]
                dealt[model] += 1
    found: list[list[list[int]]] = [[[] for _ in left] for _ in range(workers)]
    for seed, model, step in zip(seeds, models, steps, strict=True):
        found[(model + step) % workers][left.index(step)].append(seed)
    return found


def time_steps_of(way: Migrate, workers: int) -> int:
    """In how many time steps a batch is trained as long as none are merged."""
    return min(workers, way.time_steps or workers) if way.move_model else 1


def seeds_met(way: Migrate, seeds: Tensor, owner: Tensor, workers: int) -> list[list[list[int]]]:
    """Seeds of a batch by worker and time step; where models do not travel each worker has its own."""
    homes = owner[seeds].tolist()
    if way.move_model:
        return met(seeds.tolist(), homes, workers, time_steps_of(way, workers))
    return [[[s for s, home in zip(seeds.tolist(), homes, strict=True) if home == rank]] for rank in range(workers)]


def remote_rows(
    sampler: NeighborSampler, groups: list[list[int]], epoch: int, step: int, away: Tensor, *, once: bool
) -> int:
    """Rows that a worker fetches for a batch.

    Args:
        sampler: Draws neighbourhoods.
        groups: Seeds of the worker in each time step.
        epoch: Number of the epoch.
        step: Number of the batch.
        away: ``[V]`` which nodes are not the worker's own.
        once: Whether a row that several time steps need comes once.
    """
    found: list[set[int]] = []
    for group in groups:
        nodes = sampler.sample_blocks(torch.tensor(group, dtype=torch.int64), epoch, step)[0].src_nodes
        found.append({*nodes[away[nodes]].tolist()})
    return len(set[int]().union(*found)) if once else sum(map(len, found))


def bytes_of_batch(traffic: Traffic, rows: int, time_steps: int, workers: int) -> Counter[Kind]:
    """What a batch sends, all workers together, each on a host of its own.

    Args:
        traffic: The model.
        rows: Remote rows.
        time_steps: Between each and the next all models move.
        workers: Number of workers.
    """
    sizes = [parameter.numel() for parameter in traffic.build().parameters()]
    values, grads = sum(sizes) * traffic.number, (sum(sizes) + len(sizes)) * traffic.number
    moves = workers * (time_steps - 1)
    return Counter(
        {
            Kind.FEATURES: rows * traffic.row,
            Kind.IDS: rows * LONG,
            Kind.METRICS: ring(LONG, workers),  # the loss
            Kind.PARAMETERS: moves * values + ring(grads, workers),  # the sum of gradients counts as parameters
            Kind.GRADIENTS: moves * grads,
        }
    )


def bytes_of_labels(owner: Tensor, workers: int) -> Counter[Kind]:
    """What it takes that all workers know the labels of all seeds."""
    counts = torch.bincount(owner[TRAIN], minlength=workers).tolist()
    wanted = [tuple(count * (peer != rank) for peer, count in enumerate(counts)) for rank in range(workers)]
    rows = len(TRAIN) * (workers - 1)
    return Counter({Kind.FEATURES: rows * LONG, Kind.IDS: rows * LONG, Kind.METRICS: gathered(wanted, workers)})


def bytes_of_run(traffic: Traffic, way: Migrate, workers: int) -> Counter[Kind]:
    """What two epochs send, all workers together; the second is judged where time steps may be merged afterwards."""
    model, owner, found = traffic.build(), owner_of(workers), Counter[Kind]()
    views = [TOPOLOGY.with_self_loops if layer.spec.self_loops else TOPOLOGY for layer in model.layers_list()]
    sampler = NeighborSampler(views, FEW.fanout_per_hop(len(views)), SEED)
    time_steps = time_steps_of(way, workers)
    for epoch in EPOCHS:
        batches = FEW.seeds_of_epoch(TRAIN, SEED, epoch)
        # Each request tells how many rows the next one is for; the number of the first is a message of its own.
        asks = len(batches) * (1 if way.pregather else time_steps)
        numbers = LONG * workers * (workers - 1)
        found += Counter({Kind.METRICS: numbers, Kind.IDS: (asks - 1) * numbers})
        for step, seeds in enumerate(batches):
            groups = seeds_met(way, seeds, owner, workers)
            rows = sum(
                remote_rows(sampler, groups[rank], epoch, step, owner != rank, once=way.pregather)
                for rank in range(workers)
            )
            found += bytes_of_batch(traffic, rows, time_steps, workers)
    if way.move_model:
        judged = way.merge and way.time_steps is None
        if judged or time_steps < workers:  # time steps are dropped, or may be
            found += bytes_of_labels(owner, workers)
        found[Kind.METRICS] += ring(LONG, workers) if judged else 0  # seconds of the second epoch
    return +found


def problem_of(place: WorkerContext, traffic: Traffic) -> Problem:
    """A worker's side of the problem."""
    torch.manual_seed(0)
    features = normal(NODES, WIDTH, seed=1)
    return Problem.from_node_labels(
        PartitionShard(TOPOLOGY, owner_of(place.comm.size), place.comm),
        features=features if traffic.row == 8 * WIDTH else features.half(),
        labels=torch.arange(NODES) % 3,
        train=TRAIN,
        task=NodeClassification(),
        model=traffic.build(),
        seed=SEED,
        batches=FEW,
    )


def bytes_by_way(place: WorkerContext) -> dict[tuple[str, str], Counter[Kind]]:
    """What a worker sends in two epochs of each model in each way."""
    found = {}
    for name, traffic in MODELS.items():
        for way, strategy in WAYS.items():
            before = place.comm.ledger.bytes_by_link.copy()
            problem = problem_of(place, traffic)
            execution = strategy.prepare(problem)
            for epoch in EPOCHS:
                for _ in execution.steps(epoch):
                    problem.model.zero_grad()
            execution.close()
            added = place.comm.ledger.bytes_by_link - before
            found[name, way] = Counter({kind: count for (_, kind), count in added.items()})
    return found
