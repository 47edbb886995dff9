"""Parts of `orchestrate`, and reuse without a bound, as strategies that train: for NeutronOrch's ablation.

They have no names on the command line. Their classes travel to the workers by value.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import cloudpickle
import torch
from torch import Tensor, nn
from torch.func import functional_call

import outgrow as og
from outgrow.core.block import Block
from outgrow.engine.features.remote import RemoteFeatureStore, input_dtype
from outgrow.engine.minibatch_loop import PrefetchConfig, make_sampler
from outgrow.engine.model_migration import MicroBatchPlan
from outgrow.nn.layer import Features
from outgrow.nn.model import Model, layer_key, src_and_dst_rows
from outgrow.strategies.base import Execution, MiniBatchExecution, Problem, Strategy
from outgrow.strategies.orchestrate.host_side import HostSide, HotSlice, SliceTask
from outgrow.strategies.orchestrate.hot_embeddings import HotEmbeddings
from outgrow.strategies.orchestrate.parameter_history import ParameterVersion
from outgrow.strategies.orchestrate.strategy import OrchestrateExecution

_AHEAD = 4


@dataclass(frozen=True, kw_only=True)
class ByLayer(Strategy):
    """The ablation's step L: the CPU computes the whole bottom layer of each batch, the device all others.

    Nothing is reused, so it computes what `sampled` does. Gradients of the bottom layer are the CPU's work too.
    """

    name = "by-layer"
    exact = True
    uses_minibatches = True

    partition: str = "metis"

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        share = problem.shard
        execution = MiniBatchExecution(
            problem,
            make_sampler(share.topology, problem.model, problem.batches, problem.seed),
            RemoteFeatureStore(share, problem.features, input_dtype(problem.model, problem.features)),
            lambda seeds: MicroBatchPlan.in_one_step(share.filter_owned(seeds)),
            labels=problem.own_labels,
            prefetch=PrefetchConfig.from_options(None, _AHEAD),
        )
        execution.loop.model = _Parted(problem.model, share.comm.device)  # type: ignore[assignment]
        return execution


class _Parted(nn.Module):
    """A model whose bottom layer is computed in memory, with copies of its parameters that pass gradients on."""

    def __init__(self, model: Model, device: torch.device) -> None:
        super().__init__()
        self.model, self.device = model, device

    def forward(self, blocks: Sequence[Block], x: Features, key: int, *, overwrite_input: bool = False) -> Tensor:
        here = torch.device("cpu")
        block, x = blocks[0].to(here), x.to(here)
        layer = self.model.layers_list()[0]
        copies = {name: parameter.to(here) for name, parameter in layer.named_parameters()}
        encoded = self.model.encode_input(x, block.src_nodes, key, overwrite_input=overwrite_input)
        sides = src_and_dst_rows(encoded, block.edges.num_dst)
        bottom: Tensor = functional_call(layer, copies, (block.with_rng_key(layer_key(key, 0)), *sides))
        return self.model.forward_from_second(blocks[1:], bottom.to(self.device), key)


@dataclass(frozen=True, kw_only=True)
class Altered(Strategy):
    """`orchestrate` without its pipeline, or with reuse without a bound.

    Attributes:
        inner: Its options.
        pipeline: Whether the CPU works while the device trains; else the device waits, between super-batches.
        bounded: Whether hot nodes are computed anew for each super-batch; else an embedding is kept from the epoch in
            which its node was first needed, as histories are that nobody renews (the worst case of GNNAutoScale: Fey et
            al., ICML 2021).
    """

    name = "altered"
    exact = False
    uses_minibatches = True

    inner: og.Orchestrate = field(default_factory=og.Orchestrate)
    pipeline: bool = True
    bounded: bool = True
    partition: str = "metis"

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return {**self.inner.options(), "pipeline": self.pipeline, "bounded": self.bounded}

    def validate_model(self, model: Model) -> None:
        """See `Strategy.validate_model`."""
        self.inner.validate_model(model)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        execution = OrchestrateExecution(problem, self.inner)
        host_side = execution.loop.host_side
        if not self.pipeline:
            execution.loop.host_side = host_side = partial(host_side, make_queue=Inline)
        if not self.bounded:
            memory = Memory(problem.shard.topology.num_nodes)
            execution.loop.host_side = lambda *given: Remembering(host_side(*given), memory)  # type: ignore[assignment]
        return execution


class Inline:
    """Work that is done when its result is asked for."""

    def __init__(self, work: Callable[[SliceTask], HotEmbeddings]) -> None:
        self._work, self._given = work, deque[SliceTask]()

    def submit(self, item: SliceTask) -> None:
        """Add work."""
        self._given.append(item)

    def result(self) -> HotEmbeddings:
        """The next result."""
        return self._work(self._given.popleft())

    def close(self) -> None:
        """Forget what was given."""
        self._given.clear()


class Memory:
    """Embeddings that were made once.

    Args:
        num_nodes: ``V``.
    """

    def __init__(self, num_nodes: int) -> None:
        self._known = torch.zeros(num_nodes, dtype=torch.bool)
        self._rows: Tensor | None = None

    def instead_of(self, found: HotEmbeddings) -> HotEmbeddings:
        """The same with what is known of its nodes; what is not known yet is from now on."""
        assert found.embedding is not None
        assert found.aggregate is None, "what is remembered has no gradient"
        if self._rows is None:
            self._rows = found.embedding.new_zeros(len(self._known), found.embedding.shape[1])
        new = ~self._known[found.nodes]
        self._rows[found.nodes[new]] = found.embedding[new]
        self._known[found.nodes] = True
        return found._replace(embedding=self._rows[found.nodes])


class Remembering:
    """A CPU's side whose results are replaced by what they were when they were first made.

    Args:
        inner: The CPU's side.
        memory: Through all epochs.
    """

    def __init__(self, inner: HostSide, memory: Memory) -> None:
        self._inner, self._memory = inner, memory

    def submit_slices(self, slices: Sequence[HotSlice], version: ParameterVersion) -> None:
        """See `HostSide.submit_slices`."""
        self._inner.submit_slices(slices, version)

    def next_slice(self) -> HotEmbeddings:
        """See `HostSide.next_slice`."""
        return self._memory.instead_of(self._inner.next_slice())

    def close(self) -> None:
        """See `HostSide.close`."""
        self._inner.close()


cloudpickle.register_pickle_by_value(sys.modules[__name__])
