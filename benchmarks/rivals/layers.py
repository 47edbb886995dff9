"""The driver of libraries of torch layers: two layers of a kind, from the parameters that all start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rivals.common import HEADS, Arrays, Job, set_start, train
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A layer of a library.

    Attributes:
        make: The layer of an input width, an output width (all heads together) and a number of heads.
        named: Its parameters by their common names, as views of ``[in, out]``.
        activation: What follows the first layer.
    """

    make: Callable[[int, int, int], nn.Module]
    named: Callable[[Any], dict[str, Tensor]]
    activation: Callable[[Tensor], Tensor] = torch.relu


def drive(
    job: Job, kind: Kind, sizes: tuple[int, int, int], call: Callable[[nn.Module, Tensor], Tensor], arrays: Arrays
) -> dict[str, Any]:
    """Train two layers on the whole graph.

    Args:
        job: The job.
        kind: The layer.
        sizes: Input, hidden and output width.
        call: Output of a layer for its input ``[V, D]``, on the library's own graph.
        arrays: Features, labels and training nodes.

    Returns:
        The report, see `rivals.common.train`.
    """
    wide, hidden, classes = sizes
    first, second = kind.make(wide, hidden, HEADS), kind.make(hidden, classes, 1)
    set_start(job, [kind.named(first), kind.named(second)])
    model, x = nn.ModuleList([first, second]).to(job.device), torch.from_numpy(arrays.features).to(job.device)
    return train(job, model, lambda: call(second, kind.activation(call(first, x))), arrays)


def mlp(given: int, wanted: int) -> nn.Sequential:
    """The two projections of GIN."""
    return nn.Sequential(nn.Linear(given, wanted), nn.ReLU(), nn.Linear(wanted, wanted))


def named_mlp(layers: Any) -> dict[str, Tensor]:
    """Parameters of `mlp` by their common names."""
    first, _, second = layers
    return {
        "first": first.weight.T,
        "first_bias": first.bias,
        "second": second.weight.T,
        "second_bias": second.bias,
    }
