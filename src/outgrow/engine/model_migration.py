"""Migration of models between workers, with their parameters and gradients.

Chen, He, Qu, Zhang: HopGNN: boosting distributed GNN training efficiency via feature-centric model migration,
2024. Each of ``P`` models has an equal share of the seeds of a batch. In time step ``t``, model ``d`` is on
worker ``(d + t) mod P`` and trains on those of its seeds that this worker owns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from outgrow.core.deprecation import renamed_members, renamed_options
from outgrow.core.ledger import Kind
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm


@renamed_options(strides="hops")
@renamed_members(at_once="in_one_step")
class MicroBatchPlan(NamedTuple):
    """A worker's part of a batch: groups of seeds, computed one after the other.

    Attributes:
        groups: ``[s]`` int64 each: seeds of a time step, from none to all of the batch.
        hops: By how many workers each model moves before the second group, the third, and so on.
    """

    groups: list[Tensor]
    hops: list[int]

    @staticmethod
    def in_one_step(seeds: Tensor) -> MicroBatchPlan:
        """Return a plan of one time step for all seeds."""
        return MicroBatchPlan([seeds], [])


@torch.no_grad()
def send_model(model: nn.Module, comm: Comm, hop: int) -> None:
    """Send parameters and gradients to the worker ``hop`` ranks further, and adopt those received.

    All workers together. A parameter without a gradient still has none after the move.

    Args:
        model: The model on this worker; changed in place.
        comm: Communicator of the workers.
        hop: From 1 to the number of workers less 1.
    """
    target = (comm.rank + hop) % comm.size
    source = (comm.rank - hop) % comm.size
    route = SplitSizes(_one_hot_counts(target, comm.size), _one_hot_counts(source, comm.size))
    parameters = list(model.parameters())
    # A message has one type; mixed precision takes one pair of messages for each.
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
        _send_parameters([parameter for parameter in parameters if parameter.dtype == dtype], comm, route)


def _send_parameters(parameters: list[nn.Parameter], comm: Comm, split_sizes: SplitSizes) -> None:
    """Send parameters of one type, with a flag for each whether it has a gradient."""
    # Two messages in all, however many parameters there are; sizes are the same on all workers.
    flat = torch.cat([parameter.flatten() for parameter in parameters])
    given = flat.new_tensor([parameter.grad is not None for parameter in parameters])
    # Zeros keep the sizes fixed where a gradient is missing; the flag restores None.
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    whole = torch.cat([given, *(grad.flatten() for grad in grads)])
    kinds = {Kind.PARAMETERS: flat, Kind.GRADIENTS: whole}
    under_way = [comm.all_to_all(values[None], split_sizes, kind) for kind, values in kinds.items()]
    values, gradients = (each.wait()[0] for each in under_way)
    sizes = [parameter.numel() for parameter in parameters]
    there = gradients[: len(sizes)].tolist()
    parts = torch.split(values, sizes), torch.split(gradients[len(sizes) :], sizes)
    for parameter, has_gradient, value, gradient in zip(parameters, there, *parts, strict=True):
        parameter.copy_(value.view_as(parameter))
        parameter.grad = gradient.view_as(parameter) if has_gradient else None


def _one_hot_counts(peer: int, size: int) -> tuple[int, ...]:
    return tuple(int(rank == peer) for rank in range(size))
