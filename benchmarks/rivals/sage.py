"""SAGE on mini-batches, for libraries of torch layers: what they all do alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
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
    """

    features: Tensor
    labels: Tensor
    train: Tensor

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
) -> dict[str, Any]:
    """Train, with ReLU and dropout between layers, cross-entropy and Adam.

    Args:
        job: The job.
        epochs: Clocks that run since the process began.
        model: Of `make_layers`.
        loader: Gives the batches of an epoch each time it is asked.
        opened: What is to be computed for one of them.
    """
    layers, parameters = model
    optimizer = torch.optim.Adam(layers.parameters(), lr=LEARNING_RATE)
    for _ in range(job.warmup + job.epochs):
        began = time.perf_counter()
        total, seeds = 0.0, 0
        for raw in loader:
            batch = opened(raw)
            loss = functional.cross_entropy(_logits(layers, batch), batch.labels)
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += loss.item() * len(batch.labels)
            seeds += len(batch.labels)
        epochs.ended(time.perf_counter() - began, total / seeds, parameters)
    return epochs.report()


def _logits(layers: nn.ModuleList, batch: Batch) -> Tensor:
    x = batch.features
    for index, (layer, call) in enumerate(zip(layers, batch.calls, strict=True)):
        x = call(layer, x if index == 0 else functional.dropout(torch.relu(x), DROPOUT))
    return x[: len(batch.labels)]
