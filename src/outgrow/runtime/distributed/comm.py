"""What workers say to each other: rows by owner, sums, broadcasts. Each byte is counted by the worker that sends it.

All workers make the same calls in the same order, also those that have nothing to send. What one worker alone would
send to itself never travels: every call is the identity there.
"""

from __future__ import annotations

import copy
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from outgrow.core.ledger import Kind, Ledger, Link
from outgrow.core.timeline import Timeline
from outgrow.ops.memory_pool import pooled_empty
from outgrow.runtime.distributed.async_exchange import AsyncAllToAll, SplitSizes, communication_errors
from outgrow.runtime.distributed.async_exchange import CommunicationError as CommunicationError
from outgrow.runtime.distributed.serialization import deserialize, serialize

_TAGS = 1 << 30
_PATIENCE = timedelta(days=7)  # a slow worker is no dead one: heartbeats tell them apart, not this


class ExchangeHandle(Protocol):
    """Rows under way."""

    def wait(self) -> Tensor:
        """``[R, ...]``: the rows, those of worker 0 first."""


class Comm(ABC):
    """One worker's line to the others.

    Attributes:
        rank: Number of this worker.
        size: Number of workers.
        hosts: Name of each worker's host.
        gpu_counts: How many CUDA devices each worker's process sees.
        ledger: Where bytes are counted.
        device: What this worker computes on.
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
        """Send rows to their workers; the call returns at once. Differentiable: the gradient goes the way back.

        Args:
            rows: ``[S, ...]``, as ``route.send`` deals them out.
            split_sizes: Numbers of rows.
            kind: What the rows are.
            grad_kind: What their gradient is.
        """

    @abstractmethod
    def all_reduce(self, values: Tensor, kind: Kind = Kind.METRICS) -> Tensor:
        """Replace values by their sum over all workers, the same bits everywhere; gives them back."""

    @abstractmethod
    def broadcast(self, value: Any, kind: Kind = Kind.METRICS, *, root: int = 0) -> Any:
        """The object that worker ``root`` gives, on all workers."""

    @abstractmethod
    def all_gather_object(self, value: Any) -> list[Any]:
        """The objects of all workers, on all workers."""

    @property
    @abstractmethod
    def background_comm(self) -> Comm:
        """Another line to the same workers, for one thread of its own. Only rows travel on it, and only from memory."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all workers are here."""

    @abstractmethod
    def close(self) -> None:
        """End the group, once all workers are here."""

    @cached_property
    def timeline(self) -> Timeline:
        """Told when what was done; it belongs to the thread that first asks for it."""
        return Timeline()

    @property
    def local_world_size(self) -> int:
        """Workers of this host, this one included."""
        return self.hosts.count(self.hosts[self.rank])

    @property
    def is_rank_zero(self) -> bool:
        """Whether this worker writes the files and speaks for all."""
        return self.rank == 0

    def all_to_all_counts(self, rows: Tensor, kind: Kind) -> Tensor:
        """``[P, ...]``: what each worker tells this one, of ``[P, ...]`` what this one tells each; waits for it."""
        one_each = (1,) * self.size
        return self.all_to_all(rows, SplitSizes(one_each, one_each), kind).wait()

    def all_reduce_gradients(self, model: nn.Module) -> None:
        """Sum the gradients of all parameters over the workers, as one flat buffer for each type.

        A parameter that has a gradient on no worker has none afterwards.
        """
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._local_sums = [
            self._all_reduce_flat([parameter for parameter in parameters if parameter.dtype == dtype])
            for dtype in dict.fromkeys(parameter.dtype for parameter in parameters)
            if self.size > 1
        ]

    @property
    def has_finite_local_gradient(self) -> bool:
        """Whether what this worker gave to `sum_gradients` the last time was finite, as far as its sum tells."""
        return all(bool(each.isfinite()) for each in self._local_sums)

    def _all_reduce_flat(self, parameters: list[nn.Parameter]) -> Tensor:
        """Sum the gradients of parameters of one type; gives the sum of all numbers that this worker had."""
        first = parameters[0]
        given = torch.tensor([each.grad is not None for each in parameters], dtype=first.dtype, device=first.device)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([given, *(grad.flatten() for grad in grads)])
        own = flat.sum(dtype=torch.promote_types(flat.dtype, torch.float32))
        self.all_reduce(flat, Kind.PARAMETERS)
        sums = torch.split(flat[len(given) :], [parameter.numel() for parameter in parameters])
        for parameter, anywhere, total in zip(parameters, flat[: len(given)].tolist(), sums, strict=True):
            parameter.grad = total.view_as(parameter) if anywhere else None
        return own

    def broadcast_parameters(self, model: nn.Module) -> None:
        """Give all workers the parameters and buffers of worker 0."""
        if self.size > 1:
            model.load_state_dict(self.broadcast(model.state_dict(), Kind.PARAMETERS))


class SingleProcessComm(Comm):
    """One worker: nothing travels. Final.

    Args:
        ledger: Where strategies count; None for a new one.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.rank, self.size = 0, 1
        self.hosts, self.gpu_counts = (socket.gethostname(),), (torch.cuda.device_count(),)
        self.ledger = ledger or Ledger()

    def all_to_all(
        self, rows: Tensor, split_sizes: SplitSizes, kind: Kind, *, grad_kind: Kind = Kind.GRADIENTS
    ) -> ExchangeHandle:
        """The same rows."""
        return _LocalRows(rows)

    def all_reduce(self, values: Tensor, kind: Kind = Kind.METRICS) -> Tensor:
        """The same values."""
        return values

    def broadcast(self, value: Any, kind: Kind = Kind.METRICS, *, root: int = 0) -> Any:
        """The same object."""
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        """That object."""
        return [value]

    @property
    def background_comm(self) -> Comm:
        """The same line."""
        return self

    def barrier(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to end."""


class ProcessGroupComm(Comm):
    """The workers of the process group that `join` made. Final."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.ledger, self.links = Ledger(), [Link.PEER] * self.size
        self._tag, self._first_tag = 0, 0
        self.hosts, self.gpu_counts = zip(
            *self.all_gather_object((socket.gethostname(), torch.cuda.device_count())), strict=True
        )
        self.links = [Link.PEER if host == self.hosts[self.rank] else Link.NETWORK for host in self.hosts]
        self.ledger.bytes_by_link.clear()  # the names were sent before it was known over which link

    def all_to_all(
        self, rows: Tensor, split_sizes: SplitSizes, kind: Kind, *, grad_kind: Kind = Kind.GRADIENTS
    ) -> ExchangeHandle:
        """See `Comm.all_to_all`."""
        return AsyncAllToAll(self, split_sizes, rows, kind, grad_kind).start(rows)

    def start_exchange(self, rows: Tensor, split_sizes: SplitSizes, kind: Kind) -> tuple[list[Any], Tensor]:
        """Send rows; gives what is to be waited for, and where rows will lie.

        Pairs of workers exchange theirs, each the next ones first: over a network that is up to twice as fast as gloo's
        own all-to-all. A tag tells apart what is under way at the same time.
        """
        assert not (self._first_tag and rows.is_cuda)
        rows = rows.contiguous()
        out = pooled_empty((sum(split_sizes.receive), *rows.shape[1:]), rows)
        outgoing, incoming = (
            _split_bytes(part, sizes) for part, sizes in ((rows, split_sizes.send), (out, split_sizes.receive))
        )
        self._tag = (self._tag + 1) % _TAGS
        tag = self._first_tag + self._tag
        calls: list[dist.P2POp] = []
        for step in range(1, self.size):
            source, target = (self.rank - step) % self.size, (self.rank + step) % self.size
            if len(incoming[source]):
                calls.append(dist.P2POp(dist.irecv, incoming[source], source, tag=tag))
            if len(outgoing[target]):
                calls.append(dist.P2POp(dist.isend, outgoing[target], target, tag=tag))
                self._count_bytes(target, kind, outgoing[target].nbytes)
        with communication_errors():
            works = _post_operations(calls, batched=rows.is_cuda)
        incoming[self.rank].copy_(outgoing[self.rank])
        return works, out

    def all_reduce(self, values: Tensor, kind: Kind = Kind.METRICS) -> Tensor:
        """See `Comm.all_reduce`. Counted as a ring carries it: each worker passes on all parts but one, twice."""
        next_one = (self.rank + 1) % self.size
        self._count_bytes(next_one, kind, 2 * values.nbytes * (self.size - 1) // self.size)
        with self.timeline.span("sum over workers"), communication_errors():
            dist.all_reduce(values)
        return values

    def broadcast(self, value: Any, kind: Kind = Kind.METRICS, *, root: int = 0) -> Any:
        """See `Comm.broadcast`."""
        mine = _to_byte_tensor(value) if self.rank == root else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(mine)])
        with communication_errors():
            dist.broadcast(length, root)
            whole = mine if self.rank == root else torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(whole, root)
        if self.rank == root:
            for peer in range(self.size):
                self._count_bytes(peer, kind, whole.nbytes)
            return value
        return deserialize(whole.numpy().data)

    def all_gather_object(self, value: Any) -> list[Any]:
        """See `Comm.all_gather_object`."""
        mine = _to_byte_tensor(value)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with communication_errors():
            dist.all_gather(lengths, torch.tensor([len(mine)]))
            longest = max(int(length) for length in lengths)
            parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(parts, torch.nn.functional.pad(mine, (0, longest - len(mine))))
        for peer in range(self.size):
            self._count_bytes(peer, Kind.METRICS, longest)
        return [deserialize(part[: int(length)].numpy().data) for part, length in zip(parts, lengths, strict=True)]

    @cached_property
    def background_comm(self) -> Comm:
        """See `Comm.background_comm`."""
        self.timeline  # noqa: B018  the same on both lines
        other = copy.copy(self)
        other._tag, other._first_tag = 0, _TAGS
        return other

    def barrier(self) -> None:
        """See `Comm.barrier`."""
        with communication_errors():
            dist.barrier()

    def close(self) -> None:
        """See `Comm.close`."""
        self.barrier()
        dist.destroy_process_group()

    def _count_bytes(self, peer: int, kind: Kind, num_bytes: int) -> None:
        if peer != self.rank and num_bytes:
            self.ledger.add_bytes(self.links[peer], kind, num_bytes)


def join_process_group(rank: int, size: int, store: Store) -> Comm:
    """Join the group of workers.

    Args:
        rank: Number of this worker.
        size: Number of workers.
        store: Where they meet; it was not used by another group.
    """
    with communication_errors():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.device_count() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
        return ProcessGroupComm()


class _LocalRows:
    """Rows that need not travel."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def wait(self) -> Tensor:
        return self.rows


def _post_operations(operations: list[dist.P2POp], *, batched: bool) -> list[Any]:
    """What is to be waited for. NCCL wants to know all at once, and then does them at the same time; it has no tags."""
    if batched:
        return dist.batch_isend_irecv(operations) if operations else []
    return [call.op(call.tensor, call.peer, tag=call.tag) for call in operations]


def _split_bytes(rows: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    """The bytes of each worker's rows: what carries them need not know their type."""
    row_bytes = rows[:1].nbytes
    flat = rows.view(-1).view(torch.uint8) if rows.numel() else rows.new_empty(0, dtype=torch.uint8)
    return list(torch.split(flat, [size * row_bytes for size in sizes]))


def _to_byte_tensor(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(serialize(value)), dtype=torch.uint8)
