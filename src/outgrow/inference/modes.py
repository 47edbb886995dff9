"""How models are evaluated: on samples, exactly on the scored nodes alone, on all nodes, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.engine.batches import BatchConfig
from outgrow.engine.inference import infer_shard
from outgrow.engine.layer_rows import NeededRows
from outgrow.inference.chunked import ChunkedInference, InferenceMemory
from outgrow.inference.layer_nodes import LayerNodes, all_layer_nodes, find_layer_nodes
from outgrow.inference.layer_outputs import layers_fit_in_memory
from outgrow.inference.needed_rows import find_needed_rows
from outgrow.inference.sampled import SampledInference, batches_of_all_before
from outgrow.nn.layer import Layer
from outgrow.strategies.base import Execution, FullGraphExecution, Problem

AUTO, SAMPLED, EXACT, LAYERWISE, NONE = "auto", "sampled", "exact", "layerwise", "none"
EVALUATION_MODES = (AUTO, SAMPLED, EXACT, LAYERWISE, NONE)
_BATCH_SIZE = 1024
WORTH_IT = 0.5
"""Share of the edges of all layers up to which a neighbourhood is computed alone: gathering its rows takes time too."""


class Inference(Protocol):
    """A way to compute the output of some or all own nodes of every worker."""

    def run(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield own nodes, ascending, and their output ``[k, C]`` in memory. All workers together; exhaust it."""


class EvaluationOptions(NamedTuple):
    """Options of evaluation.

    Attributes:
        val: How validation nodes are evaluated after an epoch: one of `EVALUATION_MODES`.
        test: How validation and test nodes are evaluated after training.
        batches: Nodes of a batch, fan-outs, weighting and sampler of ``sampled``.
        sampling: Names of options that are given for ``sampled`` alone.
    """

    val: str
    test: str
    batches: BatchConfig
    sampling: tuple[str, ...] = ()


class ChosenInference(NamedTuple):
    """An inference, and which one it is.

    Attributes:
        mode: One of `EVALUATION_MODES` but ``auto``.
        inference: The inference; None for ``none``.
        description: What is computed, for people.
        num_nodes: Number of own nodes whose output it yields.
        in_memory: Whether it yields the output of all own nodes, in order, and these fit into memory.
    """

    mode: str
    inference: Inference | None
    description: str
    num_nodes: int = 0
    in_memory: bool = False


NO_INFERENCE = ChosenInference(NONE, None, "nothing is scored")


class WholeInference:
    """The inference of a strategy, which computes all own nodes. Final.

    Args:
        problem: The problem.
        execution: The execution of the strategy.
    """

    def __init__(self, problem: Problem, execution: Execution) -> None:
        self._owned_nodes = problem.shard.owned_nodes
        self._execution = execution

    def run(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield own nodes, ascending, and their output."""
        for first, out in self._execution.inference():
            yield self._owned_nodes[first : first + len(out)], out


class NeededRowsInference:
    """Layers in memory, of each the rows that scored nodes need, or all where these are most. Final.

    Args:
        problem: The problem.
        nodes: ``[n]`` int64, the own nodes that are scored, ascending.
        needed: The rows of each layer.
    """

    def __init__(self, problem: Problem, nodes: Tensor, needed: NeededRows) -> None:
        self._problem = problem
        self._nodes = nodes
        self._needed = needed

    def run(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the nodes and their output as one piece."""
        problem = self._problem
        out = infer_shard(problem.model, problem.shard, problem.input, needed=self._needed)
        yield self._nodes, out.cpu()


class InferenceChooser:
    """Chooses how to compute the output of some nodes. Final.

    Args:
        problem: The problem.
        execution: The execution of the strategy.
        batches: Options of ``sampled``.
        uses_minibatches: Whether the strategy trains on samples; others have an inference that fits their memory.
    """

    def __init__(self, problem: Problem, execution: Execution, batches: BatchConfig, *, uses_minibatches: bool) -> None:
        self._problem = problem
        self._comm = problem.shard.comm
        self._layers = problem.model.layers_list()
        self._execution = execution
        self._batches = batches
        self.uses_minibatches = uses_minibatches
        self._memory = InferenceMemory.of_worker(self._comm, problem.memory_limit)

    def choose(self, mode: str, nodes: Tensor, *, every_output: bool = True) -> ChosenInference:
        """Return the inference for some nodes. All workers together.

        Args:
            mode: One of `EVALUATION_MODES`.
            nodes: ``[n]`` int64, the own nodes that are scored, ascending.
            every_output: Whether the output of all own nodes is wanted where all layers are computed anyway.
        """
        if mode == NONE:
            return NO_INFERENCE
        if mode == SAMPLED:
            return self._choose_sampled(nodes)
        if self._batches.is_temporal:
            return self._choose_all_before(nodes)
        if mode == AUTO and not every_output and isinstance(self._execution, FullGraphExecution):
            return self._choose_needed_rows(nodes)
        if mode == LAYERWISE or (mode == AUTO and not self.uses_minibatches):
            return self._choose_all_nodes()
        needed = find_layer_nodes(self._problem.shard, self._layers, nodes)
        share = self._share_of_edges(needed)
        if mode == AUTO and share > WORTH_IT and self._fits_in_memory():
            return self._choose_all_nodes()
        return ChosenInference(
            EXACT,
            self._make_chunked(needed),
            f"the neighbourhood of the scored nodes, {share:.1%} of the edges of all layers",
            len(nodes),
        )

    def _choose_sampled(self, nodes: Tensor) -> ChosenInference:
        problem, size = self._problem, self._batches.size or _BATCH_SIZE
        batches = replace(self._batches, size=size)
        return ChosenInference(
            SAMPLED,
            SampledInference(problem.model, problem.shard, problem.feature_rows, nodes, batches, problem.seed),
            f"batches of {size:,}, {batches.describe_sampling()}: approximate",
            len(nodes),
        )

    def _choose_all_before(self, nodes: Tensor) -> ChosenInference:
        problem = self._problem
        batches = batches_of_all_before(self._batches.temporal_strategy)
        return ChosenInference(
            EXACT,
            SampledInference(problem.model, problem.shard, problem.feature_rows, nodes, batches, problem.seed),
            f"all in-edges before the time of each of the scored nodes, in batches of {batches.size}",
            len(nodes),
        )

    def _choose_needed_rows(self, nodes: Tensor) -> ChosenInference:
        problem = self._problem
        needed = find_needed_rows(problem.model, problem.shard, nodes)
        if needed is None:
            return self._choose_all_nodes()
        inference = NeededRowsInference(problem, nodes, needed)
        return ChosenInference(LAYERWISE, inference, "in each layer the nodes that scored ones need", len(nodes))

    def _choose_all_nodes(self) -> ChosenInference:
        num_own = len(self._problem.shard.owned_nodes)
        if not self.uses_minibatches or self._fits_in_memory():
            whole = WholeInference(self._problem, self._execution)
            return ChosenInference(LAYERWISE, whole, "all nodes", num_own, self._execution.in_memory)
        nodes = all_layer_nodes(self._problem.shard, self._layers)
        return ChosenInference(
            LAYERWISE, self._make_chunked(nodes), "all nodes, in chunks from and to storage", num_own
        )

    def _make_chunked(self, nodes: LayerNodes) -> ChunkedInference:
        problem = self._problem
        return ChunkedInference(problem.model, problem.shard, problem.feature_rows, nodes, self._memory)

    def _share_of_edges(self, needed: LayerNodes) -> float:
        """Return the part of the work of all layers that these nodes need, over all workers."""
        every = all_layer_nodes(self._problem.shard, self._layers)
        work = torch.tensor([_weighted_edges(self._layers, each.num_edges) for each in (needed, every)])
        part, whole = self._comm.all_reduce(work.double()).tolist()
        return part / whole if whole else 1.0

    def _fits_in_memory(self) -> bool:
        problem = self._problem
        return layers_fit_in_memory(problem.model, problem.shard, problem.features, self._memory)


def validate_evaluation(options: EvaluationOptions, *, ranks_all_nodes: bool, patience: int | None) -> None:
    """Check that a model can be evaluated in these ways.

    Raises:
        InputError: Links are ranked against all nodes, so these need all of them; fan-outs are missing or not
            needed; or training shall stop by a score that is not computed.
    """
    is_sampled = SAMPLED in (options.val, options.test)
    if is_sampled and options.batches.fanout is None:
        raise InputError(
            "evaluation by samples needs fan-outs",
            needed="how many neighbours to draw for each hop",
            got="none",
            repair="give --fanout or eval_fanout, such as 10,10; or evaluate exactly",
        )
    if options.sampling and not is_sampled:
        raise InputError(
            f"{options.sampling[0]} is for evaluation by samples",
            needed=f"eval={SAMPLED}, or {SAMPLED} for val or test",
            got=f"val={options.val}, test={options.test}",
            repair=f"give eval={SAMPLED}, or leave {options.sampling[0]} out",
        )
    for name, mode in (("val", options.val), ("test", options.test)):
        if options.batches.is_temporal and mode == LAYERWISE:
            raise InputError(
                f"temporal draws cannot be evaluated by {name}={mode}",
                needed="each scored node computed from what was before its time",
                got=f"{name}={mode}, which computes every node once for all times",
                repair=f"give {name}={EXACT} or {name}={SAMPLED}, or leave it out",
            )
        if ranks_all_nodes and mode in (SAMPLED, EXACT):
            raise InputError(
                f"links cannot be evaluated by {name}={mode}",
                needed="the rows of all nodes, since links are ranked against all of them",
                got=f"{name}={mode}",
                repair=f"give {name}={LAYERWISE} or {name}={NONE}, or leave it out; or give a number of "
                "ranking_candidates to draw",
            )
    if options.val == NONE and patience is not None:
        raise InputError(
            "without validation no score can end training early",
            needed="validation, or no patience",
            got=f"val={NONE}, patience {patience}",
            repair="leave patience out, or give another val",
        )


def _weighted_edges(layers: Sequence[Layer], num_edges: Sequence[int]) -> int:
    """Return the numbers that the layers aggregate."""
    return sum(
        edges * layer.spec.aggregate[0] * layer.spec.aggregate[1]
        for layer, edges in zip(layers, num_edges, strict=True)
    )
