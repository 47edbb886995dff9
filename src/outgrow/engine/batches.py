"""Mini-batches: the seeds of each step, and the number of neighbours that each hop samples.

The order of the seeds is a keyed permutation of (seed, epoch), so it is the same on any number of workers.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.core.errors import InputError
from outgrow.core.ledger import Ledger
from outgrow.graph.sampling.edge_sampler import NEIGHBOR, Fanout
from outgrow.ops.backend import as_tensor
from outgrow.ops.rng import fold_in, keyed_permutation, permute_range

_ORDER = -1  # no step has this number
_MOST = (1 << 31) - 1


class SamplingOptions(TypedDict, total=False):
    """How neighbours are sampled: see `BatchConfig`."""

    weighted: bool
    sampler: str
    temporal_strategy: str | None


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Configuration of mini-batches.

    Attributes:
        size: Seeds of a step over all workers; None for all nodes to train on.
        fanout: Neighbours sampled in each hop outward from the seeds; None for all neighbours.
        weighted: Whether neighbours are sampled by the weights of edges.
        sampler: One of `outgrow.graph.sampling.edge_sampler.SAMPLERS`. For ``fastgcn`` a fan-out is the number of
            nodes drawn for a hop.
        temporal_strategy: One of `outgrow.graph.sampling.temporal_sampler.TEMPORAL_STRATEGIES`: only in-edges before
            the time of a seed are sampled around it; None for all.
    """

    size: int | None = None
    fanout: tuple[Fanout, ...] | None = None
    weighted: bool = False
    sampler: str = NEIGHBOR
    temporal_strategy: str | None = None

    @property
    def is_temporal(self) -> bool:
        """Whether only in-edges before the time of a seed are sampled around it."""
        return self.temporal_strategy is not None

    @property
    def is_full_graph(self) -> bool:
        """Whether a step has all seeds and all neighbours."""
        return self == FULL_GRAPH

    def fanout_per_hop(self, layers: int) -> tuple[Fanout, ...]:
        """Return the fan-out of each hop of a model."""
        return (-1,) * layers if self.fanout is None else self.fanout

    def describe(self) -> str:
        """Return the fan-outs as typed by a user: ``"10,10"``, ``"4:2,10"`` with relations, or ``"all"``."""
        if self.fanout is None:
            return "all"
        return ",".join(str(hop) if isinstance(hop, int) else ":".join(map(str, hop)) for hop in self.fanout)

    @property
    def sampling_options(self) -> SamplingOptions:
        """How neighbours are sampled, as the samplers take it."""
        return {
            "weighted": self.weighted,
            "sampler": self.sampler,
            "temporal_strategy": self.temporal_strategy,
        }

    def describe_sampling(self) -> str:
        """Return how neighbours are sampled, for people: ``"fan-outs 10,10 by weight, sampler labor"``."""
        by_weight = " by weight" if self.weighted else ""
        sampler = "" if self.sampler == NEIGHBOR else f", sampler {self.sampler}"
        before = f", before the time of each seed ({self.temporal_strategy})" if self.is_temporal else ""
        return f"fan-outs {self.describe()}{by_weight}{sampler}{before}"

    def num_steps(self, num_seeds: int) -> int:
        """Return the number of steps of an epoch, as `seeds_of_epoch` divides ``num_seeds`` nodes."""
        return 1 if self.size is None else max(1, -(-num_seeds // self.size))

    def seeds_of_epoch(self, nodes: Tensor, seed: int, epoch: int) -> list[Tensor]:
        """Return the seeds of each step of an epoch, over all workers; the last step may have fewer.

        Args:
            nodes: ``[n]`` int64, the nodes to train on.
            seed: Seed of the run.
            epoch: Number of the epoch.
        """
        # Shuffled before they are divided among workers, so that batches do not depend on their number.
        ordered = nodes[keyed_permutation(nodes, fold_in(seed, epoch, _ORDER))]
        return [ordered] if self.size is None else list(torch.split(ordered, self.size))


FULL_GRAPH = BatchConfig()
"""One step of all seeds with all their neighbours."""


def draw_order(first: int, last: int, count: int, seed: int, epoch: int) -> Tensor:
    """Return the numbers below ``count`` at places ``first`` to ``last - 1`` of an epoch's order; no list is made."""
    return as_tensor(permute_range(first, last, count, fold_in(seed, epoch, _ORDER)))


def count_sampled_layer(ledger: Ledger, edges: Edges) -> None:
    """Count the work of a layer on a batch: ``sampled_edges``, ``edges_aggregated``, ``rows_computed``."""
    ledger.add_count("sampled_edges", edges.num_edges)
    ledger.add_count("edges_aggregated", edges.num_edges)
    ledger.add_count("rows_computed", edges.num_dst)


def parse_fanouts(value: object) -> tuple[Fanout, ...] | None:
    """Parse fan-outs given as ``"10,10"``, ``"4:2,10"``, a sequence of numbers, or None.

    Raises:
        InputError: Something else, or a number that is neither -1 nor positive.
    """
    if value is None:
        return None
    try:
        hops = tuple(_parse_hop(each) for each in _split_parts(value, ","))
    except (TypeError, ValueError):
        hops = ()
    numbers = [(hop,) if isinstance(hop, int) else hop for hop in hops]
    if hops and all(each and all(number == -1 or 1 <= number <= _MOST for number in each) for each in numbers):
        return hops
    raise InputError(
        "these are no fan-outs",
        needed="for each hop, outward from the seeds, how many neighbours to draw, -1 for all: such as 10,10; with one "
        "number for each relation: such as 4:2,10",
        got=repr(value),
        repair="give one positive number, or -1, for each layer of the model",
    )


def _parse_hop(value: object) -> Fanout:
    numbers = tuple(
        _parse_int(each) for each in (_split_parts(value, ":") if isinstance(value, str | list | tuple) else [value])
    )
    return numbers[0] if len(numbers) == 1 else numbers


def _split_parts(value: object, separator: str) -> Iterable[object]:
    if isinstance(value, str):
        return value.split(separator)
    if isinstance(value, list | tuple):
        return value
    raise TypeError


def _parse_int(value: object) -> int:
    # True is an int for ``operator.index``, but no number of neighbours.
    if isinstance(value, bool):
        raise TypeError
    return int(value) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]
