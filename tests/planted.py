"""A small problem that can be learned: two communities, features that hint at them, and most edges inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from outgrow.engine.shard import FullGraphShard
from outgrow.graph.topology import Topology
from outgrow.nn import GAT, GCN, SAGE, Model
from outgrow.nn.tasks import NodeClassification
from outgrow.strategies.base import Problem
from outgrow.training.config import TrainConfig
from outgrow.training.evaluation import NodeEvaluation
from outgrow.training.trainer import Trainer
from support import topology_of

NODES, WIDTH = 120, 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Planted:
    """The graph, what is known of its nodes, and a fresh model for each problem.

    Attributes:
        topology: Its in-edges.
        features: ``[V, D]`` float64.
        labels: ``[V]`` int64.
        val: Validation nodes.
        test: Test nodes.
    """

    topology: Topology
    features: torch.Tensor
    labels: torch.Tensor
    val: torch.Tensor
    test: torch.Tensor

    def trainer(self, problem: Problem, config: TrainConfig, **options: object) -> Trainer:
        """A trainer of a problem on one worker that scores all nodes there are to score."""
        evaluation = NodeEvaluation(problem, self.val, self.test)
        return Trainer(problem, evaluation, config, **options)  # type: ignore[arg-type]

    def problem(self, *, seed: int = 0, kind: str = "gcn") -> Problem:
        """A problem with a model whose parameters depend on the seed alone."""
        return Problem.from_node_labels(
            FullGraphShard(self.topology),
            features=self.features,
            labels=self.labels,
            train=torch.arange(0, NODES, 3),
            task=NodeClassification(),
            model=model_of(kind, seed),
            seed=seed,
        )


def model_of(kind: str, seed: int) -> Model:
    """A model with every kind of dropout that its layers know."""
    torch.manual_seed(seed)
    if kind == "gat":
        model = GAT(WIDTH, 8, 2, heads=2, dropout=0.3, input_dropout=0.2, attention_dropout=0.3)
    elif kind == "sage":
        model = SAGE(WIDTH, 8, 2, dropout=0.3, norm=True)
    else:
        model = GCN(WIDTH, 8, 2, dropout=0.3, input_dropout=0.2)
    return model.double()


def planted() -> Planted:
    """120 nodes; a third each to train on, to validate on and to test on."""
    random = np.random.default_rng(0)
    labels = np.arange(NODES) // (NODES // 2)
    src = random.integers(0, NODES, 900)
    inside = random.random(900) < 0.85
    side = np.where(inside, labels[src], 1 - labels[src])
    dst = side * (NODES // 2) + random.integers(0, NODES // 2, 900)
    features = random.standard_normal((NODES, WIDTH))
    features[:, 0] += labels - 0.5
    return Planted(
        topology=topology_of(NODES, zip(src.tolist(), dst.tolist(), strict=True)),
        features=torch.from_numpy(features),
        labels=torch.from_numpy(labels),
        val=torch.arange(1, NODES, 3),
        test=torch.arange(2, NODES, 3),
    )


def unscored(problem: Problem) -> NodeEvaluation:
    """Nothing to validate on and nothing to test on."""
    nothing = torch.empty(0, dtype=torch.int64)
    return NodeEvaluation(problem, nothing, nothing)
