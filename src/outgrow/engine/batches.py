"""Which nodes are the seeds of a step, and how many neighbours each hop draws.

The order of the seeds is a keyed permutation of (seed, epoch), so it is the same on any number of workers.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.core.errors import InputError
from outgrow.core.ledger import Ledger
from outgrow.graph.sampling.edge_sampler import Fanout
from outgrow.ops.rng import derive, keyed_order

_ORDER = -1  # no step has this number
_MOST = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class Batches:
    """What mini-batches are made of.

    Attributes:
        size: Seeds of a step over all workers; None for all nodes to train on.
        fanout: For each hop outward from the seeds, what is drawn; None for all neighbours.
        weighted: Whether neighbours are drawn by the weights of edges.
    """

    size: int | None = None
    fanout: tuple[Fanout, ...] | None = None
    weighted: bool = False

    @property
    def everything(self) -> bool:
        """Whether a step is all that there is: all seeds and all neighbours."""
        return self == EVERYTHING

    def hops(self, layers: int) -> tuple[Fanout, ...]:
        """What each hop of a model draws."""
        return (-1,) * layers if self.fanout is None else self.fanout

    def spelled(self) -> str:
        """The hops as they are typed: ``"10,10"``, or ``"4:2,10"`` with relations; ``"all"`` for all neighbours."""
        if self.fanout is None:
            return "all"
        return ",".join(str(hop) if isinstance(hop, int) else ":".join(map(str, hop)) for hop in self.fanout)

    def of_epoch(self, nodes: Tensor, seed: int, epoch: int) -> list[Tensor]:
        """The seeds of each step of an epoch, over all workers; the last step may have fewer.

        Args:
            nodes: ``[n]`` int64, the nodes to train on.
            seed: Seed of the run.
            epoch: Number of the epoch.
        """
        ordered = nodes[keyed_order(nodes, derive(seed, epoch, _ORDER))]
        return [ordered] if self.size is None else list(torch.split(ordered, self.size))


EVERYTHING = Batches()
"""One step of all seeds with all their neighbours."""


def count_drawn(ledger: Ledger, edges: Edges) -> None:
    """Count what a layer computes of a batch: ``sampled_edges``, ``edges_aggregated``, ``rows_computed``."""
    ledger.count("sampled_edges", edges.num_edges)
    ledger.count("edges_aggregated", edges.num_edges)
    ledger.count("rows_computed", edges.num_dst)


def hops_of(given: object) -> tuple[Fanout, ...] | None:
    """Fan-outs from what a user gives: ``"10,10"``, ``"4:2,10"``, a sequence of numbers, or None.

    Raises:
        InputError: Something else, or a number that is neither -1 nor positive.
    """
    if given is None:
        return None
    try:
        hops = tuple(_hop(each) for each in _parts(given, ","))
    except (TypeError, ValueError):
        hops = ()
    numbers = [(hop,) if isinstance(hop, int) else hop for hop in hops]
    if hops and all(each and all(number == -1 or 1 <= number <= _MOST for number in each) for each in numbers):
        return hops
    raise InputError(
        "these are no fan-outs",
        needed="for each hop, outward from the seeds, how many neighbours to draw, -1 for all: such as 10,10; with one "
        "number for each relation: such as 4:2,10",
        got=repr(given),
        repair="give one positive number, or -1, for each layer of the model",
    )


def _hop(given: object) -> Fanout:
    numbers = tuple(_whole(each) for each in (_parts(given, ":") if isinstance(given, str | list | tuple) else [given]))
    return numbers[0] if len(numbers) == 1 else numbers


def _parts(given: object, separator: str) -> Iterable[object]:
    if isinstance(given, str):
        return given.split(separator)
    if isinstance(given, list | tuple):
        return given
    raise TypeError


def _whole(given: object) -> int:
    if isinstance(given, bool):
        raise TypeError
    return int(given) if isinstance(given, str) else operator.index(given)  # type: ignore[arg-type]
