"""A ring on which every sampled edge and every feature can be checked, and a record of what workers compute on it."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from hosts import hosts_of_their_own, on_hosts
from outgrow.engine.batches import BatchConfig
from outgrow.engine.minibatch_loop import MicroBatch, MiniBatchLoop
from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard
from outgrow.nn import GCN, SAGE, Model
from outgrow.nn.tasks import NodeClassification
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem
from outgrow.strategies.sampled import Sampled
from support import topology_of

NODES, NEAR, EPOCHS = 60, 6, 2
BATCHES = BatchConfig(size=14, fanout=(3, 2))
RING = topology_of(NODES, [((v - back) % NODES, v) for v in range(NODES) for back in range(1, NEAR + 1)])
FEATURES = torch.stack([torch.arange(NODES), torch.arange(NODES) ** 2], 1).double()

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sage": ("sage", {}),
    "gcn": ("gcn", {}),
    "one thread": ("sage", {"sampling_threads": 1, "prefetch": 1}),
    "four threads": ("sage", {"sampling_threads": 4, "prefetch": 9}),
    "cache by degree": ("sage", {"cache": 0.25}),
    "cache by presampling": ("sage", {"cache": 0.25, "cache_by": "presampling"}),
}
"""Kind of model and options of the strategy, by name."""
SHARED_HOST = "shared host"


class Seen(NamedTuple):
    """What a worker computed in one step, by the ids of the graph.

    Attributes:
        step: Epoch and number of the step.
        seeds: Seeds of the worker.
        edges: For each layer, pairs of source and destination.
        rows: Nodes of the input, in order.
        features: ``[n, 2]``, their features as they came.
    """

    step: tuple[int, int]
    seeds: list[int]
    edges: list[set[tuple[int, int]]]
    rows: list[int]
    features: Tensor


class Record(NamedTuple):
    """What a worker has seen, and what it counted."""

    seen: list[Seen]
    counters: dict[str, int]
    crossed: dict[Any, int]


def owner_of(node: int, workers: int) -> int:
    """Nodes are dealt out in pairs like cards, so that most neighbours live elsewhere."""
    return node // 2 % workers


def share_of_ring(comm: Comm) -> GraphShard:
    """What a worker holds of the ring."""
    owner = torch.tensor([owner_of(node, comm.size) for node in range(NODES)])
    return FullGraphShard(RING, comm) if comm.size == 1 else PartitionShard(RING, owner, comm)


def model_of(kind: str) -> Model:
    """Two layers; those of GCN want self-loops."""
    torch.manual_seed(0)
    return (GCN if kind == "gcn" else SAGE)(2, 4, 3).double()


def records_of(place: WorkerContext) -> dict[str, Record]:
    """What a worker sees in all cases, all workers on hosts of their own; and in one on a host that they share."""
    with on_hosts(place.comm, hosts_of_their_own(place.comm)):
        found = {name: record(place.comm, *case) for name, case in CASES.items()}
    return {**found, SHARED_HOST: record(place.comm, "sage", {})}


def record(comm: Comm, kind: str, options: dict[str, Any]) -> Record:
    """Train on the ring without an optimizer, and write down what comes by."""
    share, seen, right = share_of_ring(comm), list[Seen](), MiniBatchLoop._train_micro_batch
    problem = Problem.from_node_labels(
        share,
        features=FEATURES,
        labels=torch.arange(NODES) % 3,
        train=torch.arange(0, NODES, 2),
        task=NodeClassification(),
        model=model_of(kind),
        seed=3,
        batches=BATCHES,
    )

    def computed(self: MiniBatchLoop, epoch: int, batch: MicroBatch, x: Tensor) -> Tensor:
        edges = []
        for block in batch.blocks:
            src = block.src_nodes[block.edges.indices.long()].tolist()
            dst = torch.repeat_interleave(block.dst_nodes, block.edges.indptr.diff()).tolist()
            assert len({*zip(src, dst, strict=True)}) == len(src)
            edges.append({*zip(src, dst, strict=True)})
        seen.append(
            Seen((epoch, batch.step), batch.seeds.tolist(), edges, batch.blocks[0].src_nodes.tolist(), x.clone())
        )
        return right(self, epoch, batch, x)

    with patch.object(MiniBatchLoop, "_train_micro_batch", computed):
        execution = Sampled(**options).prepare(problem)
        comm.ledger.bytes_by_link.clear()
        comm.ledger.counters.clear()
        for epoch in range(1, EPOCHS + 1):
            assert sum(each.num_seeds for each in execution.steps(epoch)) == problem.num_train
        execution.close()
    return Record(seen, dict(comm.ledger.counters), dict(comm.ledger.bytes_by_link))
