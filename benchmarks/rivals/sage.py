"""SAGE on mini-batches, for libraries of torch layers: what they all do alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from rivals.batches import DROPOUT, LEARNING_RATE, Task
from rivals.common import Job, set_start
from rivals.epochs import Epochs
from torch import Tensor, nn
from torch.nn import functional

B = TypeVar("B")
Call = Callable[[nn.Module, Tensor], Tensor]
"""What applies a layer: from the rows of its sources to those of its destinations."""


class Nodes(NamedTuple):
    """What is known of all nodes.

    Attributes:
        features: ``[V, D]`` float32.
        labels: ``[V]`` int64.
        train: ``[n]`` int64, nodes to train on.
        val: ``[n]`` int64, nodes to score after an epoch.
    """

    features: Tensor
    labels: Tensor
    train: Tensor
    val: Tensor

    @staticmethod
    def read(folder: Path) -> Nodes:
        """Read what `rivals.batch_data` wrote."""
        return Nodes(*(torch.from_numpy(np.load(folder / f"{name}.npy")) for name in Nodes._fields))


class Batch(NamedTuple):
    """A batch, ready to be computed.

    Attributes:
        features: ``[Vs, D]`` of its nodes.
        labels: ``[n]`` of its seeds, which are the first of the nodes.
        calls: One for each layer.
    """

    features: Tensor
    labels: Tensor
    calls: Sequence[Call]


class Part(NamedTuple):
    """The nodes of a batch of which one layer is computed.

    Attributes:
        sources: ``[Vs]`` ids of all that it reads.
        count: How many it computes; consecutive ids, batch by batch.
        call: Computes them.
    """

    sources: Tensor
    count: int
    call: Call


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How the validation nodes are scored after an epoch.

    Attributes:
        nodes: The nodes.
        ways: By name of the way, what computes logits ``[n, C]`` of the validation nodes.
    """

    nodes: Nodes
    ways: Mapping[str, Callable[[nn.ModuleList], Tensor]]

    @torch.no_grad()
    def run(self, layers: nn.ModuleList, epochs: Epochs) -> None:
        """Score in all ways, and tell the clocks."""
        epochs.stop_watching()
        for way, infer in self.ways.items():
            began = time.perf_counter()
            hits = infer(layers).argmax(1) == self.nodes.labels[self.nodes.val]
            val = hits.double().mean().item()
            epochs.evaluated(way, time.perf_counter() - began, val)


def infer_batches(loader: Iterable[B], opened: Callable[[B], Batch]) -> Callable[[nn.ModuleList], Tensor]:
    """Logits of the seeds of a loader, from the neighbours that it draws."""
    return lambda layers: torch.cat([_logits(layers, opened(raw), training=False) for raw in loader])


def infer_layers(nodes: Nodes, parts: Callable[[], Iterator[Part]]) -> Callable[[nn.ModuleList], Tensor]:
    """Logits of the validation nodes, layer after layer for all nodes, in batches."""

    def infer(layers: nn.ModuleList) -> Tensor:
        x = nodes.features
        for index, layer in enumerate(layers):
            out, first = None, 0
            for sources, count, call in parts():
                y = call(layer, x[sources])
                out = x.new_empty(len(x), y.shape[1]) if out is None else out
                out[first : first + count] = torch.relu_(y) if index < len(layers) - 1 else y
                first += count
            assert out is not None
            assert first == len(x)
            x = out
        return x[nodes.val]

    return infer


def infer_whole(nodes: Nodes, call: Call) -> Callable[[nn.ModuleList], Tensor]:
    """Logits of the validation nodes, layer after layer for all nodes at once."""

    def infer(layers: nn.ModuleList) -> Tensor:
        x = nodes.features
        for index, layer in enumerate(layers):
            x = call(layer, x)
            x = torch.relu_(x) if index < len(layers) - 1 else x
        return x[nodes.val]

    return infer


def make_layers(
    task: Task, make: Callable[[int, int], nn.Module], named: Callable[[Any], dict[str, Tensor]], job: Job
) -> tuple[nn.ModuleList, list[Mapping[str, Tensor]]]:
    """The layers of a library with the parameters that all start from, and those by their common names."""
    layers = nn.ModuleList(make(given, wanted) for given, wanted in pairwise(task.widths()))
    parameters: list[Mapping[str, Tensor]] = [named(layer) for layer in layers]
    set_start(replace(job, folder=task.arrays), parameters)
    return layers, parameters


def drive(
    job: Job,
    epochs: Epochs,
    model: tuple[nn.ModuleList, list[Mapping[str, Tensor]]],
    loader: Iterable[B],
    opened: Callable[[B], Batch],
    evaluation: Evaluation,
) -> dict[str, Any]:
    """Train, with ReLU and dropout between layers, cross-entropy and Adam.

    Args:
        job: The job.
        epochs: Clocks that run since the process began.
        model: Of `make_layers`.
        loader: Gives the batches of an epoch each time it is asked.
        opened: What is to be computed for one of them.
        evaluation: What follows every epoch, and all there is where no epochs are asked for.
    """
    layers, parameters = model
    optimizer = torch.optim.Adam(layers.parameters(), lr=LEARNING_RATE)
    for _ in range(job.warmup + job.epochs):
        began = time.perf_counter()
        total, seeds = 0.0, 0
        for raw in loader:
            batch = opened(raw)
            loss = functional.cross_entropy(_logits(layers, batch, training=True), batch.labels)
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += loss.item() * len(batch.labels)
            seeds += len(batch.labels)
        epochs.ended(time.perf_counter() - began, total / seeds, parameters)
        evaluation.run(layers, epochs)
    if not job.warmup + job.epochs:
        evaluation.run(layers, epochs)
    return epochs.report()


def _logits(layers: nn.ModuleList, batch: Batch, *, training: bool) -> Tensor:
    x = batch.features
    for index, (layer, call) in enumerate(zip(layers, batch.calls, strict=True)):
        x = call(layer, x if index == 0 else functional.dropout(torch.relu(x), DROPOUT, training))
    return x[: len(batch.labels)]
