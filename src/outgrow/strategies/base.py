"""What a strategy is, and what the trainer sees of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from outgrow.core.ledger import Ledger
from outgrow.graph.csc import Topology
from outgrow.nn.heads import Task
from outgrow.nn.layer import Features
from outgrow.nn.model import Model


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """What is trained: a model on the nodes of a graph.

    Attributes:
        topology: In-edges of all nodes.
        features: ``[V, D]``, as `engine.inference.features_for` gives them.
        labels: ``[V]`` integer, or ``[V, C]`` zeros and ones.
        train: ``[n]`` int64 node ids to train on.
        task: What the logits mean.
        model: The model; its parameters are changed in place.
        seed: Seed of every random draw.
    """

    topology: Topology
    features: Features
    labels: Tensor
    train: Tensor
    task: Task
    model: Model
    seed: int


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step is due: every parameter's ``.grad`` holds the global gradient.

    Attributes:
        loss: Loss of the step, over all workers.
        num_seeds: Labelled nodes that it is the mean of.
    """

    loss: float
    num_seeds: int


class Execution(Protocol):
    """A strategy at work on a problem."""

    def steps(self, epoch: int, first: int = 0) -> Iterator[Step]:
        """The steps of an epoch from step ``first`` on. The trainer steps the optimizer at each yield, then resumes."""

    def close(self) -> None:
        """Release what the execution holds."""


class Strategy(ABC):
    """A way to train. Its constructor takes its options.

    Attributes:
        name: Name on the command line.
        exact: Whether the gradient equals the reference's up to floating-point reassociation.
    """

    name: str
    exact: bool

    @abstractmethod
    def prepare(self, problem: Problem, ledger: Ledger) -> Execution:
        """Get ready to train; what crosses links and what is computed is counted in ``ledger``."""
