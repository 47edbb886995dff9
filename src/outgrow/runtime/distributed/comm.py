"""Communication between workers: all-to-all of rows, all-reduce, broadcast. The sender counts each byte.

All workers make the same calls in the same order. With one worker every call is the identity.
"""

from __future__ import annotations

import copy
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from outgrow.core import deprecation, old_names
from outgrow.core.ledger import Kind, Ledger, Link
from outgrow.core.timeline import Timeline
from outgrow.ops.memory_pool import pooled_empty
from outgrow.runtime.distributed.async_exchange import AsyncAllToAll, SplitSizes, communication_errors
from outgrow.runtime.distributed.async_exchange import CommunicationError as CommunicationError
from outgrow.runtime.distributed.serialization import deserialize, split_bytes, to_byte_tensor

# Of the 31-bit tags a communicator uses the lower half, and background ones parts of the upper: messages never mix.
_TAGS = 1 << 30
_BACKGROUND_TAGS = 1 << 25
MAX_BACKGROUND_COMMS = _TAGS // _BACKGROUND_TAGS


class ExchangeHandle(Protocol):
    """An all-to-all in flight."""

    def wait(self) -> Tensor:
        """Return the received rows, ``[R, ...]``, ordered by sending rank."""


@deprecation.renamed_members(**old_names.COMM)
class Comm(ABC):
    """Communicator of one worker.

    Attributes:
        rank: Number of this worker.
        size: Number of workers.
        hosts: Host name of each worker.
        gpu_counts: Number of CUDA devices visible to each worker's process.
        ledger: Counter of the bytes sent.
        device: Device this worker computes on.
    """

    rank: int
    size: int
    hosts: tuple[str, ...]
    gpu_counts: tuple[int, ...]
    ledger: Ledger
    device = torch.device("cpu")
    _local_sums: Sequence[Tensor] = ()

    @abstractmethod
    def all_to_all(
        self, rows: Tensor, split_sizes: SplitSizes, kind: Kind, *, grad_kind: Kind = Kind.GRADIENTS
    ) -> ExchangeHandle:
        """Start sending rows to other workers; return at once. Differentiable: backward returns the gradient.

        Args:
            rows: ``[S, ...]``, ordered by receiving rank, ``split_sizes.send`` rows for each.
            split_sizes: Number of rows to send to, and receive from, each worker.
            kind: Ledger kind of the rows.
            grad_kind: Ledger kind of their gradient.
        """

    @abstractmethod
    def all_reduce(self, values: Tensor, kind: Kind = Kind.METRICS) -> Tensor:
        """Sum values over all workers in place, bit-identical on each; return them."""

    @abstractmethod
    def broadcast(self, value: Any, kind: Kind = Kind.METRICS, *, root: int = 0) -> Any:
        """Return worker ``root``'s object on all workers."""

    @abstractmethod
    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the objects of all workers, by rank, on all workers."""

    @property
    def background_comm(self) -> Comm:
        """The first of `background_comms`."""
        return self.background_comms(1)[0]

    @abstractmethod
    def background_comms(self, count: int) -> Sequence[Comm]:
        """Return more communicators of the same workers, each for one background thread: all-to-all of CPU rows only.

        Args:
            count: At most `MAX_BACKGROUND_COMMS`. Always the same ones.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all workers have called this."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group, after all workers have called this."""

    @cached_property
    def timeline(self) -> Timeline:
        """Timing record of this worker; it belongs to the thread that first accesses it."""
        return Timeline()

    @property
    def local_ranks(self) -> list[int]:
        """Ranks of the workers on this host, including this one, ascending."""
        return [rank for rank, host in enumerate(self.hosts) if host == self.hosts[self.rank]]

    @property
    def local_world_size(self) -> int:
        """Number of workers on this host, including this one."""
        return len(self.local_ranks)

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is rank 0, the worker that writes files and prints."""
        return self.rank == 0

    def all_to_all_counts(self, rows: Tensor, kind: Kind) -> Tensor:
        """Send row ``p`` of ``[P, ...]`` to worker ``p``; wait for and return the row of each worker."""
        return self.all_to_all(rows, SplitSizes((1,) * self.size, (1,) * self.size), kind).wait()

    def all_reduce_gradients(self, model: nn.Module) -> None:
        """Sum the gradients of all parameters over the workers, in one flat buffer per dtype.

        A parameter without a gradient on any worker still has none afterwards.
        """
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._local_sums = [
            self._all_reduce_flat([parameter for parameter in parameters if parameter.dtype == dtype])
            for dtype in dict.fromkeys(parameter.dtype for parameter in parameters)
            if self.size > 1
        ]

    @property
    def has_finite_local_gradient(self) -> bool:
        """Whether this worker's own input to the last `all_reduce_gradients` had a finite sum."""
        return all(bool(each.isfinite()) for each in self._local_sums)

    def _all_reduce_flat(self, parameters: list[nn.Parameter]) -> Tensor:
        """Sum the gradients of parameters of one dtype; return the sum of this worker's own entries."""
        first = parameters[0]
        # The flags share the buffer with the gradients: one message instead of two.
        given = torch.tensor([each.grad is not None for each in parameters], dtype=first.dtype, device=first.device)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([given, *(grad.flatten() for grad in grads)])
        # Before the all-reduce overwrites the buffer; in float32, since half precision would overflow.
        own = flat.sum(dtype=torch.promote_types(flat.dtype, torch.float32))
        self.all_reduce(flat, Kind.PARAMETERS)
        sums = torch.split(flat[len(given) :], [parameter.numel() for parameter in parameters])
        for parameter, anywhere, total in zip(parameters, flat[: len(given)].tolist(), sums, strict=True):
            parameter.grad = total.view_as(parameter) if anywhere else None
        return own

    def broadcast_parameters(self, model: nn.Module) -> None:
        """Copy the parameters and buffers of worker 0 to all workers."""
        if self.size > 1:
            model.load_state_dict(self.broadcast(model.state_dict(), Kind.PARAMETERS))


class SingleProcessComm(Comm):
    """Communicator of a single worker: every call is the identity. Final.

    Args:
        ledger: Byte counter; None for a new one.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.rank = 0
        self.size = 1
        self.hosts = (socket.gethostname(),)
        self.gpu_counts = (torch.cuda.device_count(),)
        self.ledger = ledger or Ledger()

    def all_to_all(
        self, rows: Tensor, split_sizes: SplitSizes, kind: Kind, *, grad_kind: Kind = Kind.GRADIENTS
    ) -> ExchangeHandle:
        """Return the same rows."""
        return _LocalRows(rows)

    def all_reduce(self, values: Tensor, kind: Kind = Kind.METRICS) -> Tensor:
        """Return the same values."""
        return values

    def broadcast(self, value: Any, kind: Kind = Kind.METRICS, *, root: int = 0) -> Any:
        """Return the same object."""
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return a list of that object."""
        return [value]

    def background_comms(self, count: int) -> Sequence[Comm]:
        """Return this communicator itself."""
        return [self] * count

    def barrier(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class ProcessGroupComm(Comm):
    """Communicator of the group joined in ``distributed``: `torch.distributed`, or what stands in for it. Final.

    Args:
        distributed: Functions of `torch.distributed`.
        host: Name of this worker's host; None for that of the system.
    """

    def __init__(self, distributed: Any = dist, host: str | None = None) -> None:
        self._dist = distributed
        self.rank = distributed.get_rank()
        self.size = distributed.get_world_size()
        self.ledger = Ledger()
        self.links = [Link.PEER] * self.size
        self._tag, self._first_tag, self._num_tags = 0, 0, _TAGS
        self._background: list[Comm] = []
        self.hosts, self.gpu_counts = zip(
            *self.all_gather_object((host or socket.gethostname(), torch.cuda.device_count())), strict=True
        )
        self.links = [Link.PEER if host == self.hosts[self.rank] else Link.NETWORK for host in self.hosts]
        # The host names themselves were counted before the link of each peer was known.
        self.ledger.bytes_by_link.clear()

    def all_to_all(
        self, rows: Tensor, split_sizes: SplitSizes, kind: Kind, *, grad_kind: Kind = Kind.GRADIENTS
    ) -> ExchangeHandle:
        """Start point-to-point transfers with every peer."""
        return AsyncAllToAll(self, split_sizes, rows, kind, grad_kind).start(rows)

    def start_exchange(self, rows: Tensor, split_sizes: SplitSizes, kind: Kind) -> tuple[list[Any], Tensor]:
        """Post sends and receives; return the works to wait for and the receive buffer.

        Peers are served by ring distance: over a network up to twice as fast as gloo's all-to-all.
        The tag separates exchanges in flight at the same time.
        """
        # NCCL has no tags: two threads on one communicator could match each other's rows.
        assert not (self._first_tag and rows.is_cuda)
        rows = rows.contiguous()
        out = pooled_empty((sum(split_sizes.receive), *rows.shape[1:]), rows)
        outgoing, incoming = (
            split_bytes(part, sizes) for part, sizes in ((rows, split_sizes.send), (out, split_sizes.receive))
        )
        self._tag = (self._tag + 1) % self._num_tags
        tag = self._first_tag + self._tag
        calls: list[dist.P2POp] = []
        for step in range(1, self.size):
            source = (self.rank - step) % self.size
            target = (self.rank + step) % self.size
            if len(incoming[source]):
                calls.append(self._dist.P2POp(self._dist.irecv, incoming[source], source, tag=tag))
            if len(outgoing[target]):
                calls.append(self._dist.P2POp(self._dist.isend, outgoing[target], target, tag=tag))
                self._count_bytes(target, kind, outgoing[target].nbytes)
        with communication_errors():
            works = _post_operations(calls, batched=rows.is_cuda)
        incoming[self.rank].copy_(outgoing[self.rank])
        return works, out

    def all_reduce(self, values: Tensor, kind: Kind = Kind.METRICS) -> Tensor:
        """Sum in place, counted as a ring: each worker forwards all chunks but one, twice."""
        next_rank = (self.rank + 1) % self.size
        self._count_bytes(next_rank, kind, 2 * values.nbytes * (self.size - 1) // self.size)
        with self.timeline.span("sum over workers"), communication_errors():
            self._dist.all_reduce(values)
        return values

    def broadcast(self, value: Any, kind: Kind = Kind.METRICS, *, root: int = 0) -> Any:
        """Broadcast the pickled object; its length first, so that receivers can allocate."""
        data = to_byte_tensor(value) if self.rank == root else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(data)])
        with communication_errors():
            self._dist.broadcast(length, root)
            whole = data if self.rank == root else torch.empty(int(length), dtype=torch.uint8)
            self._dist.broadcast(whole, root)
        if self.rank == root:
            for peer in range(self.size):
                self._count_bytes(peer, kind, whole.nbytes)
            return value
        return deserialize(whole.numpy().data)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Gather the pickled objects, padded to the longest: all-gather needs equal shapes."""
        data = to_byte_tensor(value)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with communication_errors():
            self._dist.all_gather(lengths, torch.tensor([len(data)]))
            longest = max(int(length) for length in lengths)
            parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
            self._dist.all_gather(parts, torch.nn.functional.pad(data, (0, longest - len(data))))
        for peer in range(self.size):
            self._count_bytes(peer, Kind.METRICS, longest)
        return [deserialize(part[: int(length)].numpy().data) for part, length in zip(parts, lengths, strict=True)]

    def background_comms(self, count: int) -> Sequence[Comm]:
        """Return copies of this communicator, each with a part of the other half of the tags."""
        assert count <= MAX_BACKGROUND_COMMS
        # Creates the cached timeline before the copies, so that all share it.
        self.timeline  # noqa: B018
        while len(self._background) < count:
            other = copy.copy(self)
            other._tag, other._num_tags = 0, _BACKGROUND_TAGS
            other._first_tag = _TAGS + len(self._background) * _BACKGROUND_TAGS
            self._background.append(other)
        return self._background[:count]

    def barrier(self) -> None:
        """Wait on the group's barrier."""
        with communication_errors():
            self._dist.barrier()

    def close(self) -> None:
        """Wait for all workers, then destroy the group."""
        self.barrier()
        self._dist.destroy_process_group()

    def _count_bytes(self, peer: int, kind: Kind, num_bytes: int) -> None:
        if peer != self.rank and num_bytes:
            self.ledger.add_bytes(self.links[peer], kind, num_bytes)


class _LocalRows:
    """Handle of rows that stay in this process."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def wait(self) -> Tensor:
        return self.rows


def _post_operations(operations: list[dist.P2POp], *, batched: bool) -> list[Any]:
    """Start operations and return their works. NCCL needs them as one batch, and has no tags."""
    if batched:
        return dist.batch_isend_irecv(operations) if operations else []
    return [call.op(call.tensor, call.peer, call.group, call.tag) for call in operations]
