"""Bytes that cross links, before anything runs: what the ledger will say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outgrow.core.ledger import Kind, Link
from outgrow.planning.graph_stats.chunk_waves import Matrix
from outgrow.planning.sizes import ModelSizes
from outgrow.planning.workload import PartitionStats, Workload

Bytes = Counter[tuple[Link, Kind]]
ID_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class WorkerLayout:
    """Workers on hosts, which have equally many, in order.

    Attributes:
        workers: Number of workers ``P``.
        hosts: Number of hosts.
    """

    workers: int
    hosts: int = 1

    @property
    def workers_per_host(self) -> int:
        """Workers of a host, at most."""
        return -(-self.workers // self.hosts)

    def link_between(self, one: int, other: int) -> Link:
        """What bytes cross between two workers."""
        return Link.PEER if one // self.workers_per_host == other // self.workers_per_host else Link.NETWORK

    def sum_by_link(self, rows: Matrix) -> dict[Link, int]:
        """What of ``[P, P]`` that the second sends the first crosses each link, in all."""
        found: Counter[Link] = Counter()
        for (one, other), count in np.ndenumerate(rows):
            if one != other and count:
                found[self.link_between(one, other)] += int(count)
        return found

    def all_reduce_bytes(self, num_bytes: int) -> dict[Link, int]:
        """Bytes summed over workers, in a ring: each passes on all parts but one, twice."""
        found: Counter[Link] = Counter()
        for worker in range(self.workers):
            found[self.link_between(worker, (worker + 1) % self.workers)] += (
                2 * num_bytes * (self.workers - 1) // self.workers
            )
        return found

    def broadcast_bytes(self, num_bytes: int) -> dict[Link, int]:
        """Bytes that the first worker gives all others."""
        found: Counter[Link] = Counter()
        for worker in range(1, self.workers):
            found[self.link_between(0, worker)] += num_bytes
        return found


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes by link and kind, over all workers. What they tell each other of losses and of sizes is left out.

    Attributes:
        once: Before the first epoch and after the last one.
        epoch: In each epoch.
        evaluation: Each time that the model is evaluated; that of the restored model at the end is one of these.
    """

    once: Bytes = field(default_factory=Counter)
    epoch: Bytes = field(default_factory=Counter)
    evaluation: Bytes = field(default_factory=Counter)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            once=self.once + other.once, epoch=self.epoch + other.epoch, evaluation=self.evaluation + other.evaluation
        )

    def run_bytes(self, epochs: int, evaluations: int) -> Bytes:
        """All of a run's, with so many evaluations besides that of the restored model."""
        whole: Bytes = Counter(self.once)
        for part, times in ((self.epoch, epochs), (self.evaluation, evaluations + 1)):
            for key, count in part.items():
                whole[key] += times * count
        return +whole


def add_bytes(into: Bytes, kind: Kind, moved: Mapping[Link, int], times: int = 1) -> None:
    """Count what crosses links, so many times."""
    for link, count in moved.items():
        if count * times:
            into[link, kind] += count * times


def training_traffic(
    work: Workload, nodes: Matrix, owner_bytes: int, layout: WorkerLayout, *, logits: bool = True, steps: int = 1
) -> Traffic:
    """What any strategy moves that deals out nodes and sums gradients.

    Args:
        work: What is trained.
        nodes: ``[P]`` int64, nodes of each worker.
        owner_bytes: Of the list of all nodes' owners, as it is sent to a worker.
        layout: Where the workers are.
        logits: Whether the first worker is given those of all nodes in the end.
        steps: Of an epoch.
    """
    traffic, model = Traffic(), work.model
    tensors, numbers = model.parameters
    add_bytes(traffic.once, Kind.PARAMETERS, layout.broadcast_bytes(model.state_bytes))
    add_bytes(traffic.once, Kind.TOPOLOGY, layout.broadcast_bytes(owner_bytes))
    add_bytes(traffic.epoch, Kind.PARAMETERS, layout.all_reduce_bytes((tensors + numbers) * model.number_bytes), steps)
    if not logits:
        return traffic
    to_first = np.zeros((layout.workers, layout.workers), dtype=np.int64)
    to_first[0, 1:] = nodes[1:]
    for kind, width in ((Kind.ACTIVATIONS, work.graph.classes * model.number_bytes), (Kind.IDS, ID_BYTES)):
        add_bytes(traffic.once, kind, layout.sum_by_link(to_first), width)
    return traffic


def shard_traffic(work: Workload, partition: PartitionStats, layout: WorkerLayout, *, steps: int = 1) -> Traffic:
    """What any strategy moves besides that deals out nodes by a partition, and evaluates whole layers in memory."""
    return training_traffic(work, partition.nodes, partition.owner_bytes, layout, steps=steps) + inference_traffic(
        work, partition, layout
    )


def inference_traffic(work: Workload, partition: PartitionStats, layout: WorkerLayout) -> Traffic:
    """What whole layers move whose rows are in memory, each time that the model is evaluated: rows of the halo.

    Raw features, and ids of whose, cross once, where they are sources; each time, what layers send that they have
    computed.
    """
    traffic, model = Traffic(), work.model
    halo = layout.sum_by_link(partition.halo)
    add_bytes(traffic.once, Kind.IDS, halo, ID_BYTES)
    if model.source_is_features:
        add_bytes(traffic.once, Kind.FEATURES, halo, work.graph.features * work.graph.feature_bytes)
    add_bytes(traffic.evaluation, Kind.ACTIVATIONS, halo, halo_numbers(model) * model.number_bytes)
    return traffic


def halo_numbers(model: ModelSizes) -> int:
    """Numbers of a node's rows in all layers that send what they have computed: ``C F + K`` of each."""
    return sum(layer.source_width for layer in model.layers[model.source_is_features :])


def add_feature_requests(traffic: Bytes, rows: Matrix, row_bytes: float, layout: WorkerLayout) -> None:
    """Count rows of features ``[P, P]`` that the first worker asks the second for, and their ids."""
    asked = layout.sum_by_link(rows)
    add_bytes(traffic, Kind.FEATURES, asked, round(row_bytes))
    add_bytes(traffic, Kind.IDS, asked, ID_BYTES)


def sent_row_bytes(work: Workload, entries: float) -> float:
    """Of a row of raw features as it is sent: in its own type or that of the model, whichever is smaller.

    Of a sparse row go its number of entries, and a column number with each.

    Args:
        work: What is trained.
        entries: How many of a row are stored.
    """
    graph = work.graph
    number = min(graph.feature_bytes, work.model.number_bytes)
    return entries * (number + 4 * graph.sparse) + 8 * graph.sparse


def round_rows(rows: NDArray[np.float64]) -> Matrix:
    """Rounded."""
    return np.rint(rows).astype(np.int64)
