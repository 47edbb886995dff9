"""The bytes that `tensor` must send, computed from the number of each worker's nodes and the widths of rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.nn.model import Model
from suites.traffic import LONG, Sizes, gathered, ring, shared

CLASSES = 2


class Sliced(NamedTuple):
    """Rows of all nodes that a split or a gather carries.

    Attributes:
        channels: Channels.
        columns: Columns, which are dealt out to the workers.
    """

    channels: int
    columns: int

    def numbers(self, nodes: Sequence[int]) -> int:
        """``sum_i nodes_i * C * (D - D_i)``: all but what stays with its worker."""
        workers = len(nodes)
        widths = [self.columns * (i + 1) // workers - self.columns * i // workers for i in range(workers)]
        kept = sum(count * width for count, width in zip(nodes, widths, strict=True))
        return self.channels * (sum(nodes) * self.columns - kept)


class Everywhere(NamedTuple):
    """Scores of all nodes that go to all workers."""

    scores: int

    def numbers(self, nodes: Sequence[int]) -> int:
        """``V * K * (P - 1)``."""
        return sum(nodes) * self.scores * (len(nodes) - 1)


Move = Sliced | Everywhere


@dataclass(frozen=True, kw_only=True)
class Moves:
    """What moves in a run.

    Attributes:
        features: Features as they are stored: split once, before the first epoch.
        aggregates: Constant aggregates: gathered once.
        dropped: Features with dropout: split in each pass.
        trained: What moves in each pass, and whose gradient goes back.
        untrained: What moves in each pass and has no gradient.
    """

    features: tuple[Move, ...] = ()
    aggregates: tuple[Move, ...] = ()
    dropped: tuple[Move, ...] = ()
    trained: tuple[Move, ...]
    untrained: tuple[Move, ...] = ()


def both_ways(*shapes: tuple[int, int]) -> tuple[Move, ...]:
    """A split and a gather of each shape."""
    return tuple(Sliced(*shape) for shape in shapes for _ in range(2))


def numbers(moves: Sequence[Move], nodes: Sequence[int]) -> int:
    """How many numbers cross."""
    return sum(move.numbers(nodes) for move in moves)


def bytes_per_epoch(moves: Moves, nodes: Sequence[int], number: int, *, evaluated: bool) -> dict[Kind, int]:
    """What each epoch moves: forward, backward, and forward once more if it is evaluated."""
    passes = 1 + evaluated
    found = {
        Kind.FEATURES: passes * numbers(moves.dropped, nodes) * number,
        Kind.ACTIVATIONS: passes * numbers(moves.trained + moves.untrained, nodes) * number,
        Kind.GRADIENTS: numbers(moves.trained, nodes) * number,
    }
    return {kind: count for kind, count in found.items() if count}


def bytes_of_run(owner: Tensor, workers: int, model: Model, moves: Moves, sizes: Sizes) -> dict[Kind, int]:
    """All bytes of a run, over all workers.

    The last evaluation is that of the restored model, whose logits go to the worker that leads, as do the ids of their
    nodes. Where nodes are no ranges all workers tell all others which they own.

    Args:
        owner: The worker of each node.
        workers: Number of workers.
        model: The model.
        moves: What moves.
        sizes: How long the run is, and how wide its numbers are.
    """
    nodes = owner.bincount(minlength=workers).tolist()
    away, passes = sum(nodes[1:]), sizes.epochs + sizes.evaluations + 1
    once = numbers(moves.features, nodes) * sizes.feature + numbers(moves.aggregates, nodes) * sizes.number
    each = numbers(moves.trained + moves.untrained, nodes)
    parameters = sum(1 + parameter.numel() for parameter in model.parameters()) * sizes.number
    found = {
        Kind.FEATURES: once + passes * numbers(moves.dropped, nodes) * sizes.number,
        Kind.ACTIVATIONS: (passes * each + away * CLASSES) * sizes.number,
        Kind.GRADIENTS: sizes.epochs * numbers(moves.trained, nodes) * sizes.number,
        Kind.PARAMETERS: shared(model.state_dict(), workers) + sizes.epochs * ring(parameters, workers),
        Kind.TOPOLOGY: shared(owner, workers),
        Kind.IDS: (away + (0 if in_ranges(owner) else sum(nodes) * (workers - 1))) * LONG,
        Kind.METRICS: metrics(owner, workers, sizes),
    }
    return {kind: count for kind, count in found.items() if count}


def in_ranges(owner: Tensor) -> bool:
    """Whether each worker owns a range of nodes, in the order of the workers."""
    return bool((owner.diff() >= 0).all())


def metrics(owner: Tensor, workers: int, sizes: Sizes) -> int:
    """Losses, scores and edges counted, and what workers tell each other of their nodes."""
    sums = (sizes.epochs * 3 + sizes.evaluations) * ring(LONG, workers)
    tallies = (sizes.evaluations + 2) * ring(2 * LONG, workers)
    owned = [(owner == worker).nonzero()[:, 0].tolist() for worker in range(workers)]
    told = [(own[0], len(own), own == list(range(own[0], own[0] + len(own)))) for own in owned]
    return sums + tallies + gathered(told, workers) + gathered([len(own) for own in owned], workers)
