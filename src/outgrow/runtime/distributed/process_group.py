"""Process groups of torch: a new one, or one beside that which a program has already."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from outgrow.core.errors import WorkerError
from outgrow.runtime.distributed.async_exchange import communication_errors
from outgrow.runtime.distributed.comm import Comm, ProcessGroupComm
from outgrow.runtime.system.environment import has_own_group, mark_own_group

_PATIENCE = timedelta(days=7)  # practically no timeout: a slow worker is not dead, and heartbeats detect dead ones


def require_no_failed_training() -> None:
    """Check that no earlier training of this process has failed: the other workers may still wait for it.

    Raises:
        WorkerError: One has.
    """
    if has_own_group():
        raise WorkerError(
            "this process cannot train again",
            needed="a process whose earlier trainings have ended well",
            got="the process group of one that has failed",
            repair="start all workers again",
        )


def join_process_group(rank: int, size: int, store: Store) -> Comm:
    """Join the process group and return its communicator.

    If this process is in a group already, by ``init_process_group``, the communicator has a group of its own
    with the same workers, and that of the program stays as it is.

    Args:
        rank: Number of this worker.
        size: Number of workers.
        store: Rendezvous store, which no other group has used.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.device_count() and dist.is_nccl_available() else "gloo"
    with communication_errors():
        if dist.is_initialized():
            return ProcessGroupComm(_GroupFunctions(dist.new_group(backend=backend, timeout=_PATIENCE)))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
        mark_own_group(True)
        return ProcessGroupComm()


class _GroupFunctions:
    """The functions of `torch.distributed` that a communicator calls, for another group than the default one.

    Args:
        group: Group of all workers, in which ranks are those of the default group.
    """

    isend = staticmethod(dist.isend)
    irecv = staticmethod(dist.irecv)

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.get_rank = partial(dist.get_rank, group)
        self.get_world_size = partial(dist.get_world_size, group)
        self.all_reduce = partial(dist.all_reduce, group=group)
        self.broadcast = partial(dist.broadcast, group=group)
        self.all_gather = partial(dist.all_gather, group=group)
        self.barrier = partial(dist.barrier, group=group)
        self.destroy_process_group = partial(dist.destroy_process_group, group)

    def P2POp(self, operation: Callable[..., Any], tensor: Tensor, peer: int, *, tag: int) -> dist.P2POp:
        """Return an operation in the group; `ProcessGroupComm` passes its group on."""
        return dist.P2POp(operation, tensor, peer, self._group, tag)
