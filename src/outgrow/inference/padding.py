"""Empty work for workers that have fewer chunks or batches than others, but take part in their exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from outgrow.nn.layer import Layer
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Comm

T = TypeVar("T")


def pad_to_longest(own: Sequence[T], nothing: T, comm: Comm) -> list[T]:
    """Return the chunks or batches of a worker, as many as the worker with most has, at least one.

    All workers together.

    Args:
        own: Those of this worker.
        nothing: An empty one.
        comm: Communicator of the workers.
    """
    most = max(1, *comm.all_gather_object(len(own)))
    return [*own, *[nothing] * (most - len(own))]


def empty_output(layer: Layer, model: Model) -> Tensor:
    """Return the output ``[0, O]`` of a layer for no nodes, in memory."""
    return torch.empty(0, layer.spec.out_features, dtype=model.dtype)
