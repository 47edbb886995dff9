"""The bytes that `full` must send, computed from the partition and the widths of the exchanged rows alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from outgrow.core.ledger import Kind, Link
from outgrow.graph.partition.partition import Partition
from outgrow.graph.partition.quality import measure_quality
from outgrow.graph.topology import Topology
from outgrow.nn.model import Model
from outgrow.runtime.distributed.serialization import serialize
from support import destinations_of

LONG = 8


def list_ledger_bytes(ledger: Mapping[str, Mapping[str, int]]) -> dict[tuple[Link, Kind], int]:
    """What crossed by link and kind, of the ledger of a summary; without what workers told each other of losses."""
    every = {(Link(link), Kind(kind)): count for link, kinds in ledger.items() for kind, count in kinds.items()}
    return {key: count for key, count in every.items() if key[1] != Kind.METRICS}


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Numbers in the row of a node that crosses.

    Attributes:
        features: Of its raw features; 0 where the first layer projects before rows travel.
        layers: Of what it sends in each layer that exchanges rows: columns and scores.
        classes: Of its logits.
    """

    features: int
    layers: tuple[int, ...]
    classes: int


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How long a run is, and how wide its numbers are in bytes.

    Attributes:
        epochs: Epochs.
        evaluations: How often the model is evaluated in these.
        number: A parameter, an activation or a gradient.
        feature: A feature as it is stored.
    """

    epochs: int
    evaluations: int
    number: int
    feature: int


def bytes_per_epoch(halo: int, widths: Widths, number: int, *, evaluated: bool) -> dict[Kind, int]:
    """Rows of the halo that cross in an epoch: forward, backward, and forward once more if it is evaluated."""
    once = halo * sum(widths.layers) * number
    return {Kind.ACTIVATIONS: once * (1 + evaluated), Kind.GRADIENTS: once}


def bytes_of_run(
    topology: Topology, partition: Partition, model: Model, widths: Widths, sizes: Sizes
) -> dict[Kind, int]:
    """All bytes of a run, over all workers.

    The last evaluation is that of the restored model, whose logits go to the worker that leads, as do the ids of their
    nodes.
    """
    workers, halo = partition.num_parts, sum(measure_quality(topology, partition).halo)
    away = topology.num_nodes - int(partition.part_sizes[0])
    passes = sizes.epochs + sizes.evaluations + 1
    numbers = sum(1 + parameter.numel() for parameter in model.parameters())
    sums = (sizes.epochs * 3 + sizes.evaluations) * ring(LONG, workers)  # losses, edges, whether to stop
    tallies = (sizes.evaluations + 2) * ring(2 * LONG, workers)
    read = ring(2 * LONG, workers)  # rows of the last layer that are read, and all
    counts = gathered([tuple(row) for row in halo_counts(topology, partition)], workers)
    return {
        Kind.FEATURES: halo * widths.features * sizes.feature,
        Kind.ACTIVATIONS: (halo * sum(widths.layers) * passes + away * widths.classes) * sizes.number,
        Kind.GRADIENTS: halo * sum(widths.layers) * sizes.epochs * sizes.number,
        Kind.PARAMETERS: shared(model.state_dict(), workers) + sizes.epochs * ring(numbers * sizes.number, workers),
        Kind.TOPOLOGY: shared(partition.part, workers),
        Kind.IDS: (halo + away) * LONG,
        Kind.METRICS: sums + tallies + read + counts + gathered(partition.part_sizes.tolist(), workers),
    }


def halo_counts(topology: Topology, partition: Partition) -> list[list[int]]:
    """For each part, how many nodes of each other part have an edge to one of its own."""
    dst = destinations_of(topology.block.edges)
    pairs = torch.stack([partition.part[dst].long(), topology.indices.long()]).unique(dim=1)
    target, source = pairs[0], partition.part[pairs[1]].long()
    counts = torch.zeros(partition.num_parts, partition.num_parts, dtype=torch.int64)
    counts.index_put_((target, source), torch.ones(len(target), dtype=torch.int64), accumulate=True)
    return counts.fill_diagonal_(0).tolist()


def ring(num_bytes: int, workers: int) -> int:
    """A sum over workers: each passes on all parts but one, twice."""
    return workers * (2 * num_bytes * (workers - 1) // workers)


def shared(value: Any, workers: int) -> int:
    """An object that one worker gives to all others."""
    return len(serialize(value)) * (workers - 1)


def gathered(values: list[Any], workers: int) -> int:
    """An object of each worker that all others get: each is as long as the longest."""
    return max(len(serialize(value)) for value in values) * workers * (workers - 1)
