"""Whole runs in one task of several workers: what `og.train(..., workers=N)` does there, several times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from hosts import hosts_of_their_own, on_hosts
from outgrow.app.runs.local_workers import TrainingJob
from outgrow.graph.graph import Graph, Split
from outgrow.nn.model import Model
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Strategy
from outgrow.strategies.sampled import Sampled
from outgrow.training.config import TrainConfig
from outgrow.training.trainer import EpochReport
from planted import Planted


class Plan(NamedTuple):
    """What is trained on the graph of a store, and how; where its files go, and whether they are gone on from."""

    store: Path
    model: Model
    config: TrainConfig
    strategy: Strategy
    directory: Path | None = None
    resume: bool = False


class Result(NamedTuple):
    """What came of it: the summary, the validation score of each epoch, the logits of all nodes, and the parameters."""

    summary: dict[str, Any]
    val_scores: list[float | None]
    logits: Tensor
    state_dict: dict[str, Tensor]


def train_in_turn(place: WorkerContext, plans: Mapping[Any, Plan]) -> dict[Any, Result]:
    """The results of some plans, one after the other; empty on workers that do not lead."""
    found = {}
    for name, plan in plans.items():
        told: list[object] = []
        hosts, strategy = place.comm.hosts, plan.strategy
        # The cache of `sampled` is for rows of other hosts: a single worker has none.
        if isinstance(strategy, Sampled) and strategy.cache and len({*hosts}) == 1:
            hosts = tuple(hosts_of_their_own(place.comm))
            strategy = replace(strategy, cache=strategy.cache if place.comm.size > 1 else 0.0)
        job = TrainingJob(**plan._replace(strategy=strategy)._asdict(), needs_checkpoints=False)
        with on_hosts(place.comm, hosts):
            done = job(replace(place, send_message=told.append))
        place.comm.ledger.bytes_by_link.clear()
        place.comm.ledger.counters.clear()
        place.comm.timeline.spans.clear()
        if done is not None:
            scores = [report.val_score for report in told if isinstance(report, EpochReport)]
            found[name] = Result(done.summary, scores, done.logits, done.state_dict)
    return found


def largest_step(curve: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference between two curves of the same length, relative where numbers are above 1."""
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(curve, other, strict=True))


def graph_of(planted: Planted) -> Graph:
    """The planted problem as a graph."""
    rest = {*range(len(planted.labels))} - {*planted.val.tolist()} - {*planted.test.tolist()}
    return Graph(
        name="planted",
        topology=planted.topology,
        features=planted.features,
        labels=planted.labels,
        split=Split(train=planted.val.new_tensor(sorted(rest)), val=planted.val, test=planted.test),
        num_classes=int(planted.labels.max()) + 1,
    )
