"""Labels of nodes to train on: the right ones for any worker, whoever owns them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.engine.features.inputs import TrainingLabels
from outgrow.engine.shard import FullGraphShard, PartitionShard
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from suites.checks import named, on_workers
from suites.traffic import LONG, gathered
from support import random_topology
from thread_group import run_in_threads

WORKERS, NODES = 3, 40
GRAPH = random_topology(NODES, 160)
OWNERS = {
    "scattered": torch.from_numpy(np.random.default_rng(0).permutation(NODES) % WORKERS),
    "ranges": (torch.arange(NODES) // 14).to(torch.int16),
    "one owns nothing": torch.arange(NODES) % 2 * 2,
    "one owns all": torch.ones(NODES, dtype=torch.int64),
}
LABELS = {
    "int64": torch.arange(NODES) * 7 % 11,
    "int16": (torch.arange(NODES) * 5 % 13).to(torch.int16),
    "rows of numbers": torch.from_numpy(np.random.default_rng(1).integers(0, 2, (NODES, 5)).astype(np.float32)),
    "rows of bytes": torch.from_numpy(np.random.default_rng(2).integers(0, 2, (NODES, 9)).astype(np.uint8)),
}
TRAIN = {
    "ascending": torch.arange(0, NODES, 2),
    "in any order": torch.from_numpy(np.random.default_rng(3).permutation(NODES)[:25]),
    "all, backwards": torch.arange(NODES).flip(0),
    "one": torch.tensor([17]),
    "none": torch.empty(0, dtype=torch.int64),
}


def own_rows(values: Tensor, owner: Tensor, rank: int) -> Tensor:
    """What a worker knows."""
    return values[owner == rank]


def asked(train: Tensor, number: int) -> Tensor:
    """Some of the nodes in another order, all of them, or none; some twice."""
    random = np.random.default_rng(number)
    if number == 0 or not len(train):
        return train
    return train[torch.from_numpy(random.integers(0, len(train), number * 7 % 20))]


def every_label_is_right(comm: Comm) -> None:
    """Of single labels and of rows, in the order asked for, of any nodes to train on."""
    wrong = []
    for dealt, owner in OWNERS.items():
        for kind, labels in LABELS.items():
            for order, train in TRAIN.items():
                found = TrainingLabels(PartitionShard(GRAPH, owner, comm), own_rows(labels, owner, comm.rank), train)
                for number in range(4):
                    seeds = asked(train, number + 5 * comm.rank)
                    mine = found.lookup(seeds)
                    if mine.dtype != labels.dtype or not torch.equal(mine, labels[seeds]):
                        wrong.append((dealt, kind, order, number))
    assert wrong == []


def labels_are_fetched_once(comm: Comm) -> None:
    """Those of others' nodes, with 8 bytes for each id; nothing when they are asked for."""
    pairs = []
    for owner in OWNERS.values():
        for labels in LABELS.values():
            for train in TRAIN.values():
                before = comm.ledger.bytes_by_link.copy()
                found = TrainingLabels(PartitionShard(GRAPH, owner, comm), own_rows(labels, owner, comm.rank), train)
                found.lookup(train)
                found.lookup(train)
                added = comm.ledger.bytes_by_link - before
                mine = Counter(owner[train].tolist())
                others = len(train) - mine[comm.rank]
                counts = [tuple(mine[peer] * (peer != rank) for peer in range(WORKERS)) for rank in range(WORKERS)]
                expected = Counter(
                    {
                        Kind.FEATURES: mine[comm.rank] * (WORKERS - 1) * labels[:1].nbytes,
                        Kind.IDS: others * LONG,
                        Kind.METRICS: gathered(counts, WORKERS) // WORKERS,
                    }
                )
                pairs.append((dict(added), {(Link.PEER, kind): count for kind, count in (+expected).items()}))
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


def labels_are_the_workers_own_copy(comm: Comm) -> None:
    """To change what was given changes nothing."""
    owner, labels, train = OWNERS["scattered"], LABELS["int64"], TRAIN["in any order"]
    given = own_rows(labels, owner, comm.rank).clone()
    found = TrainingLabels(PartitionShard(GRAPH, owner, comm), given, train)
    given.zero_()
    comm.barrier()
    assert torch.equal(found.lookup(train), labels[train])


test_three_workers = on_workers(
    named(every_label_is_right, labels_are_fetched_once, labels_are_the_workers_own_copy), WORKERS, run_in_threads
)


@pytest.mark.parametrize("order", TRAIN)
@pytest.mark.parametrize("kind", LABELS)
def test_one_worker_knows_them_all(kind: str, order: str) -> None:
    labels, train, comm = LABELS[kind], TRAIN[order], SingleProcessComm()
    found = TrainingLabels(FullGraphShard(GRAPH, comm), labels, train)
    for number in range(4):
        seeds = asked(train, number)
        assert found.lookup(seeds).dtype == labels.dtype
        assert torch.equal(found.lookup(seeds), labels[seeds])
    assert not comm.ledger.bytes_by_link
