"""`tensor`: every worker aggregates its columns of the features over the whole graph.

Workers exchange column slices instead of neighbours' rows, and all of them aggregate equally many edges times
columns, however skewed the graph is. Ai et al.: NeutronTP, PVLDB 18(2), 2024.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_options
from outgrow.core.errors import InputError
from outgrow.core.ledger import Kind
from outgrow.core.memory_limits import parse_bytes
from outgrow.core.validation import validate_choice, validate_positive
from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.link_options import LinkOptions
from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard, model_topology
from outgrow.graph.graph import Graph
from outgrow.nn.layer import Conv
from outgrow.nn.model import Model
from outgrow.ops import memory_pool
from outgrow.ops.rng import fold_in
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.device import CPU
from outgrow.strategies.base import Execution, Problem, Step, Strategy
from outgrow.strategies.tensor.aggregation import SlicedAggregation
from outgrow.strategies.tensor.chunk_schedule import assign_owners
from outgrow.strategies.tensor.device_copies import DeviceCopies
from outgrow.strategies.tensor.layout import GraphLayout, LayoutOptions, make_layout
from outgrow.strategies.tensor.memory import DISK_LEVELS, OVERLAPPING_CHUNKS
from outgrow.strategies.tensor.model_pass import SlicedModelPass
from outgrow.strategies.tensor.row_files import save_rows_in_files

_OWNED_CHUNKS = 64
"""Chunks of which workers own equal parts where the number of chunks is not known yet."""


@renamed_options(constant="cache_first_aggregate", files="on_disk", nn="nn_device", scratch="scratch_dir")
@check_arguments()
@dataclass(frozen=True, kw_only=True)
class TensorParallel(Strategy):
    """Full-graph training on column slices. One step per epoch, but for links.

    Attributes:
        chunks: Number of chunks of the graph: rows of one are exchanged while another is aggregated; 1 for no
            overlap. None for 4, and, with a limit of memory or with files, for as few more as fit.
        cache_first_aggregate: Whether a constant first aggregate is computed once; else in every epoch.
        memory: The most memory that a worker may hold, such as ``"2GiB"``, of its GPU if it has one, else of its
            process, the interpreter included. What does not fit is stored in files. None for no limit, or for what
            is free on the GPU.
        on_disk: What is in mapped files: ``"nothing"``, ``"edges"`` with their weights, these and ``"slices"``, or
            these and the ``"rows"`` of own nodes that the backward pass reads; ``"auto"`` for the least that makes
            the rest fit into ``memory``.
        scratch_dir: Folder on a disk for these; None for the system's temporary folder.
        nn_device: Where all but aggregation is computed: on the ``"device"``, or, with a GPU, on the
            ``"cpu"``, which then holds the parameters and exchanges the rows. Not for layers that train how
            relations, features or weights of edges count.
        attention: What workers exchange for the attention of decoupled models: ``"scores"`` of nodes, from
            which each computes the attention of all edges, or, as in the paper, the ``"coefficients"`` of
            in-edges of their nodes.
    """

    name = "tensor"
    exact = True

    chunks: int | None = None
    cache_first_aggregate: bool = True
    memory: str | None = None
    on_disk: str = "auto"
    nn_device: str = "device"
    scratch_dir: str | None = None
    attention: str = "scores"

    def __post_init__(self) -> None:
        if self.chunks is not None:
            validate_positive(self.name, chunks=self.chunks)
        validate_choice("nn_device", self.nn_device, dict.fromkeys(("device", "cpu")))
        validate_choice("on_disk", self.on_disk, dict.fromkeys(("auto", *DISK_LEVELS)))
        if self.memory is not None:
            parse_bytes(self.memory)
        validate_choice("attention", self.attention, dict.fromkeys(("scores", "coefficients")))

    @property
    def layout_options(self) -> LayoutOptions:
        """Options that decide what is in files."""
        return LayoutOptions(self.chunks, self.memory, self.on_disk, self.attention, self.scratch_dir)

    @property
    def may_use_files(self) -> bool:
        """Whether edges may be in files."""
        return self.memory is not None or self.on_disk in DISK_LEVELS[1:]

    @property
    def owned_chunks(self) -> int:
        """Number of chunks of which workers own equal parts. Others, of consecutive ones, are nearly as even."""
        return self.chunks or (_OWNED_CHUNKS if self.may_use_files else OVERLAPPING_CHUNKS)

    def shard_graph(
        self,
        graph: Graph,
        comm: Comm,
        model: Model,
        batches: BatchConfig = FULL_GRAPH,
        *,
        links: LinkOptions | None = None,
    ) -> GraphShard:
        """Return a shard where every worker owns an equal part of what each chunk is the first to read."""
        topology = model_topology(graph.topology, model)
        if comm.size == 1:
            return FullGraphShard(topology, comm)
        owner = None
        looped = model.layers_list()[0].spec.self_loops
        if comm.is_rank_zero:
            held = not self.may_use_files
            # A view with self-loops copies all edges, which a memory limit may forbid. Owners only balance
            # work, so the plain edges serve as well.
            view = topology.without_edge_features.view(self_loops=looped and held)
            owner = assign_owners(view.indptr, view.indices, self.owned_chunks, comm.size)
        return PartitionShard(topology, comm.broadcast(owner, Kind.TOPOLOGY), comm, self_loops=looped)

    def parameter_device(self, device: torch.device) -> torch.device:
        """Return the worker's device, or the CPU if ``nn_device`` says so."""
        return device if self.nn_device == "device" else CPU

    def options(self) -> dict[str, object]:
        """Return the options by name."""
        return asdict(self)

    def validate_model(self, model: Model) -> None:
        """Check that all aggregations of a model are sliceable.

        Raises:
            InputError: One is not, or has parameters on another device.
        """
        whole = sorted(
            {type(each.conv).__name__ for each in model.layers_list() if each.conv.with_sliceable_columns() is None}
        )
        if whole:
            raise InputError(
                f"strategy {self.name} cannot train this model",
                needed="layers whose aggregation keeps columns apart, such as GCN, SAGE, GAT or FiLM",
                got=f"{', '.join(whole)}, which may mix them",
                repair="choose strategy full or offload, or other layers",
            )
        convs = [layer.conv for layer in model.layers_list()]
        related = sorted({type(conv).__name__ for conv in convs if _trains_weights_of_edges(conv)})
        if related and self.nn_device == "cpu":
            raise InputError(
                f"strategy {self.name} cannot aggregate on a device what has parameters on the CPU",
                needed="nn_device=device, or layers whose aggregation has no trained weights",
                got=f"nn_device=cpu with {', '.join(related)}",
                repair="leave nn_device out",
            )

    def prepare(self, problem: Problem) -> Execution:
        """Return the execution that trains the problem; layers take the form that keeps columns apart.

        Raises:
            InputError: Steps hide edges, of which something is computed in advance.
        """
        if problem.hides_edges:
            self._validate_hidden_edges()
        for layer in problem.model.layers_list():
            layer.conv = layer.conv.with_sliceable_columns() or layer.conv
        with ExitStack() as stack:
            # If a step of the preparation fails, the stack removes the files; else the execution closes it.
            return _TensorExecution(problem, self, make_layout(problem, self.layout_options, stack), stack.pop_all())

    def _validate_hidden_edges(self) -> None:
        fixed = {"on_disk": self.on_disk in DISK_LEVELS[1:], "attention": self.attention == "coefficients"}
        given = [f"{name}={getattr(self, name)}" for name, refused in fixed.items() if refused]
        if given:
            raise InputError(
                f"strategy {self.name} cannot hide edges with these options",
                needed="edges in memory, and attention computed from scores",
                got=f"hide above 0 with {', '.join(given)}",
                repair="leave them out, set hide=0, or choose strategy full or offload",
            )


def _trains_weights_of_edges(conv: Conv) -> bool:
    """Whether what weighs the edges has parameters, of relations, features or given weights."""
    return bool(conv.num_relations or conv.edge_dim) or (conv.reads_weights and not conv.spec.static_edge_weight)


class _TensorExecution:
    in_memory = True

    def __init__(self, problem: Problem, options: TensorParallel, layout: GraphLayout, stack: ExitStack) -> None:
        self.problem = problem
        self.comm = problem.shard.comm
        self._stack = stack
        row_device = options.parameter_device(self.comm.device)
        self.objective = problem.objective.to(row_device)
        shares = options.attention == "coefficients"
        shard = problem.shard
        timeline = problem.timeline
        sums = SlicedAggregation(
            shard,
            timeline,
            chunks=layout.chunks,
            mapped_graph=layout.mapped_graph,
            row_device=row_device,
            shares_weights=shares,
        )
        caches = options.cache_first_aggregate and not problem.hides_edges
        self.model_pass = SlicedModelPass(
            problem.model, shard, problem.all_features, sums, cache_first_aggregate=caches
        )

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """Yield the steps of a full-graph epoch: one, or as many as links are trained on in."""
        for number in range(first, self.problem.num_steps):
            yield self._run_step(epoch, number)

    def _run_step(self, epoch: int, number: int) -> Step:
        problem = self.problem
        objective = self.objective.for_step(problem.seed, epoch, number)
        if not objective.num_targets:
            return Step(loss=0.0, num_seeds=0)
        key = fold_in(problem.seed, epoch, number)
        timeline = problem.timeline
        # Until after the backward pass, which reads the blocks of the step.
        with self.model_pass.aggregation.hide_edges(objective.hidden):
            with timeline.span("forward"), self._save_rows():
                loss = objective.loss(self.model_pass.compute_logits(key), key)
            with timeline.span("backward"):
                torch.autograd.backward(loss)
        self.comm.all_reduce_gradients(problem.model)
        total = self.comm.all_reduce(loss.detach().double().cpu()).item()
        return Step(loss=total, num_seeds=objective.num_targets)

    def _save_rows(self) -> AbstractContextManager[object]:
        files = self.model_pass.aggregation.mapped_graph
        return save_rows_in_files(files, self.model_pass.constants, DeviceCopies(self.comm))

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the logits of all own nodes as one piece."""
        with torch.no_grad():
            logits = self.model_pass.compute_logits(None)
        yield 0, logits.cpu()

    def close(self) -> None:
        """Release what the execution holds."""
        self._stack.close()
        memory_pool.release_idle_memory()
