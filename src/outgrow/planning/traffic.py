"""Bytes that cross each link, computed before anything runs; the ledger of a run counts the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outgrow.core.ledger import Kind, Link
from outgrow.planning.graph_stats.chunk_waves import Matrix
from outgrow.planning.model_sizes import LayerSizes
from outgrow.planning.workload import PartitionStats, Workload

Bytes = Counter[tuple[Link, Kind]]
ID_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class WorkerLayout:
    """Workers on hosts: consecutive workers share a host, and all hosts have equally many.

    Attributes:
        workers: Number of workers ``P``.
        hosts: Number of hosts.
    """

    workers: int
    hosts: int = 1

    @property
    def workers_per_host(self) -> int:
        """Workers on each host, rounded up."""
        return -(-self.workers // self.hosts)

    def link_between(self, one: int, other: int) -> Link:
        """Return the link between two workers: PEER within a host, NETWORK between hosts."""
        return Link.PEER if one // self.workers_per_host == other // self.workers_per_host else Link.NETWORK

    def sum_by_link(self, rows: Matrix) -> dict[Link, int]:
        """Add up ``rows`` ``[P, P]``, which the second worker sends to the first, by the link that they cross."""
        found: Counter[Link] = Counter()
        # The diagonal stays on its worker, so it crosses no link.
        for (one, other), count in np.ndenumerate(rows):
            if one != other and count:
                found[self.link_between(one, other)] += int(count)
        return found

    def pairs_by_link(self) -> dict[Link, int]:
        """Return how many ordered pairs of workers each link joins."""
        return self.sum_by_link(np.ones((self.workers, self.workers), dtype=np.int64))

    def all_reduce_bytes(self, num_bytes: int) -> dict[Link, int]:
        """Return the bytes of a ring all-reduce of ``num_bytes``."""
        found: Counter[Link] = Counter()
        # Reduce-scatter and all-gather: in each, a worker sends all parts but one to its successor. Only the worker
        # at the end of a host sends over the network.
        for worker in range(self.workers):
            found[self.link_between(worker, (worker + 1) % self.workers)] += (
                2 * num_bytes * (self.workers - 1) // self.workers
            )
        return found

    def broadcast_bytes(self, num_bytes: int) -> dict[Link, int]:
        """Return the bytes of sending ``num_bytes`` from the first worker to every other."""
        found: Counter[Link] = Counter()
        for worker in range(1, self.workers):
            found[self.link_between(0, worker)] += num_bytes
        return found


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes by link and kind, over all workers, without messages of constant size (losses, sizes).

    Attributes:
        once: Bytes before the first epoch and after the last one, and what the first epoch has more than others.
        epoch: Bytes of each epoch.
        evaluation: Bytes of each evaluation, also of that of the restored model at the end.
    """

    once: Bytes = field(default_factory=Counter)
    epoch: Bytes = field(default_factory=Counter)
    evaluation: Bytes = field(default_factory=Counter)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            once=self.once + other.once, epoch=self.epoch + other.epoch, evaluation=self.evaluation + other.evaluation
        )

    def run_bytes(self, epochs: int, evaluations: int) -> Bytes:
        """Return the bytes of a whole run; ``evaluations`` does not count that of the restored model."""
        whole: Bytes = Counter(self.once)
        for part, times in ((self.epoch, epochs), (self.evaluation, evaluations + 1)):
            for key, count in part.items():
                whole[key] += times * count
        # The unary plus drops zero entries, which the ledger of a run does not have either.
        return +whole


def add_bytes(into: Bytes, kind: Kind, moved: Mapping[Link, int], times: int = 1) -> None:
    """Add ``times`` bytes of one kind for each of ``moved``."""
    for link, count in moved.items():
        if count * times:
            into[link, kind] += count * times


def training_traffic(
    work: Workload, nodes: Matrix, owner_bytes: int, layout: WorkerLayout, *, logits: bool = True, steps: int = 1
) -> Traffic:
    """Return the traffic of any strategy that partitions nodes and sums gradients.

    Args:
        work: The graph and the model.
        nodes: ``[P]`` int64, nodes of each worker.
        owner_bytes: Size of the list of all nodes' owners, as it is sent to a worker.
        layout: The workers.
        logits: Whether the first worker collects the logits of all nodes at the end.
        steps: Steps in an epoch.
    """
    traffic = Traffic()
    model = work.model
    tensors, numbers = model.parameters
    # The first worker reads the graph and initialises the model; it sends both to all others.
    add_bytes(traffic.once, Kind.PARAMETERS, layout.broadcast_bytes(model.state_bytes))
    add_bytes(traffic.once, Kind.TOPOLOGY, layout.broadcast_bytes(owner_bytes))
    # A flag for each tensor precedes the gradients: whether the worker has one (`Comm.all_reduce_gradients`).
    add_bytes(traffic.epoch, Kind.PARAMETERS, layout.all_reduce_bytes((tensors + numbers) * model.number_bytes), steps)
    if not logits:
        return traffic
    # Every other worker sends the logits of its nodes with their ids, since its nodes need not be consecutive.
    to_first = np.zeros((layout.workers, layout.workers), dtype=np.int64)
    to_first[0, 1:] = nodes[1:]
    for kind, width in ((Kind.ACTIVATIONS, work.graph.classes * model.number_bytes), (Kind.IDS, ID_BYTES)):
        add_bytes(traffic.once, kind, layout.sum_by_link(to_first), width)
    if model.embedding_numbers:
        # Likewise the vectors of nodes, which are shared out evenly.
        row_bytes = model.embedding_numbers * model.number_bytes // max(1, work.graph.nodes)
        for kind, width in ((Kind.PARAMETERS, row_bytes), (Kind.IDS, ID_BYTES)):
            add_bytes(traffic.once, kind, layout.sum_by_link(to_first), width)
    return traffic


def shard_traffic(work: Workload, partition: PartitionStats, layout: WorkerLayout, *, steps: int = 1) -> Traffic:
    """Return `training_traffic` and `inference_traffic` of a strategy that trains on the shards of a partition."""
    return training_traffic(work, partition.nodes, partition.owner_bytes, layout, steps=steps) + inference_traffic(
        work, partition, layout
    )


def inference_traffic(work: Workload, partition: PartitionStats, layout: WorkerLayout) -> Traffic:
    """Return the traffic of evaluating whole layers in memory: the rows of the halo.

    The ids of the halo, and its raw features where they are sources, cross once; computed rows cross in each
    evaluation.
    """
    traffic = Traffic()
    model = work.model
    halo = layout.sum_by_link(partition.halo)
    # Ids cross once: afterwards both sides keep the order of the rows.
    add_bytes(traffic.once, Kind.IDS, halo, ID_BYTES)
    if model.source_is_features:
        add_bytes(traffic.once, Kind.FEATURES, halo, work.graph.features * work.graph.feature_bytes)
    add_halo_rows(traffic.evaluation, Kind.ACTIVATIONS, work, partition, layout)
    return traffic


def add_halo_rows(
    into: Bytes,
    kind: Kind,
    work: Workload,
    partition: PartitionStats,
    layout: WorkerLayout,
    *,
    constant: tuple[bool, ...] = (False, True),
) -> None:
    """Add the rows that halo nodes have in all layers that send computed rows: ``C F + K`` numbers for each layer.

    Where only some numbers of a row are used of a node type, only those are sent. ``constant`` says whether layers
    count whose output is constant, and others.
    """
    model = work.model
    # A first layer that takes raw features sends none: features of the halo are copied before training.
    for layer in model.layers[model.source_is_features :]:
        if not layer.reads_sources or layer.is_constant not in constant:
            continue
        numbers = layout.sum_by_link(count_sent_numbers(layer, partition.halo, partition.typed_halo))
        add_bytes(into, kind, numbers, model.number_bytes)


def count_sent_numbers(layer: LayerSizes, rows: Matrix, typed_rows: Matrix | None) -> Matrix:
    """Return ``[P, P]`` int64: the numbers of source rows that cross between workers, those that are used of each type.

    Args:
        layer: The layer.
        rows: ``[P, P]`` rows that the second worker sends to the first.
        typed_rows: ``[T, P, P]`` these by type; None if types are not told apart, and rows have the mean width.
    """
    if not layer.type_widths or typed_rows is None:
        whole: Matrix = np.rint(rows * layer.sent_width).astype(np.int64)
        return whole
    numbers: Matrix = np.tensordot(np.array(layer.type_widths), typed_rows, 1)
    return numbers


def fetch_messages(layout: WorkerLayout) -> int:
    """Return the messages of a batch's feature fetch, request and reply; none within one host."""
    return 2 if layout.hosts > 1 else 0


def add_feature_requests(traffic: Bytes, rows: Matrix, row_bytes: float, layout: WorkerLayout) -> None:
    """Add the feature rows ``[P, P]`` of the second worker's nodes that the first needs, and the ids in its requests.

    Workers of one host read each other's rows without a request.
    """
    requested = layout.sum_by_link(rows)
    requested.pop(Link.PEER, None)
    add_bytes(traffic, Kind.FEATURES, requested, round(row_bytes))
    add_bytes(traffic, Kind.IDS, requested, ID_BYTES)


def sent_row_bytes(work: Workload, entries: float) -> float:
    """Return the bytes of a row of raw features as it is sent: in its own dtype or the model's, whichever is smaller.

    A sparse row is sent as its number of entries (8 bytes), and a column number (4 bytes) with each entry; a row of
    blocks with a byte that tells its block.

    Args:
        work: The graph and the model.
        entries: Stored entries of a row.
    """
    graph = work.graph
    # The sender converts wide features before they cross, so the link never carries the wider type.
    number = min(graph.feature_bytes, work.model.number_bytes)
    return entries * (number + 4 * graph.sparse) + 8 * graph.sparse + graph.in_blocks


def round_rows(rows: NDArray[np.float64]) -> Matrix:
    """Round to the nearest integers."""
    return np.rint(rows).astype(np.int64)
