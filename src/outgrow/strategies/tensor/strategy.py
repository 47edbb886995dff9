"""`tensor`: feature slices move, not nodes. Every worker aggregates its columns over the whole graph.

No worker waits for the neighbours of another's nodes, and all of them aggregate equally many edges times columns,
however skewed the graph. Ai et al.: NeutronTP, PVLDB 18(2), 2024.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_type_hints

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.ledger import Kind
from outgrow.core.memory_limits import parse_bytes
from outgrow.core.validation import pick, require_positive, require_types
from outgrow.engine.batches import EVERYTHING, Batches
from outgrow.engine.layer_plan import traits_of, without_parameters
from outgrow.engine.shard import Part, Share, Whole
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.ops import memory_pool
from outgrow.ops.rng import derive
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.scratch_dir import scratch_folder
from outgrow.runtime.system.device import CPU, held_bytes
from outgrow.runtime.system.process_memory import return_freed_memory
from outgrow.strategies.base import Execution, Problem, Step, Strategy
from outgrow.strategies.tensor.aggregation import Sums
from outgrow.strategies.tensor.chunk_schedule import dealt
from outgrow.strategies.tensor.mapped_graph import Files
from outgrow.strategies.tensor.memory import PER_EDGE, Needs, held_by, needs_of
from outgrow.strategies.tensor.model_pass import SlicePass

_MIB = 1 << 20
_CHUNK_BYTES = 32 << 20
"""Most memory for edges that are on their way into files."""
_FILES = ("nothing", "edges", "slices")
"""What may be in files, each with those before it."""


@dataclass(frozen=True, kw_only=True)
class TensorParallel(Strategy):
    """Full-graph training on slices of the columns. One step per epoch.

    Attributes:
        chunks: Into how many chunks the graph is cut, of which rows travel while others are aggregated; 1 for none.
        constant: Whether a first aggregate that is constant is computed once; else in every epoch.
        memory: The most memory that a worker may hold, such as ``"2GiB"``, the interpreter included; on a CPU. What
            does not fit is in files. None for no limit.
        files: What is in mapped files: ``"nothing"``, ``"edges"`` with their weights, or these and ``"slices"``;
            ``"auto"`` for as little as fits into ``memory``.
        scratch: Folder on a disk for these; None for the system's folder of temporary files.
        nn: Where all but aggregation is computed: on the ``"device"``, or, beside a GPU, on the ``"cpu"``, where the
            parameters are then, and from where rows travel. Not for layers with trained weights of relations.
        attention: What workers tell each other of the attention of decoupled models: ``"scores"`` of nodes, from which
            each computes that of all edges, or, as in the paper, the ``"coefficients"`` of the edges to their nodes.
    """

    name = "tensor"
    exact = True

    chunks: int = 4
    constant: bool = True
    memory: str | None = None
    files: str = "auto"
    nn: str = "device"
    scratch: str | None = None
    attention: str = "scores"

    def __post_init__(self) -> None:
        require_types(asdict(self), get_type_hints(TensorParallel))
        require_positive(self.name, chunks=self.chunks)
        pick("nn", self.nn, dict.fromkeys(("device", "cpu")))
        pick("files", self.files, dict.fromkeys(("auto", *_FILES)))
        if self.memory is not None:
            parse_bytes(self.memory)
        pick("attention", self.attention, dict.fromkeys(("scores", "coefficients")))

    def share(self, graph: Graph, comm: Comm, model: Model, batches: Batches = EVERYTHING) -> Share:
        """See `Strategy.share`: of what each chunk is the first to read, every worker owns an equal part."""
        if comm.size == 1:
            return Whole(graph.topology, comm)
        owner, looped = None, model.stages()[0].widths.self_loops
        if comm.leads:
            held = self.memory is None and self.files in ("auto", "nothing")
            view = graph.topology.view(self_loops=looped and held)
            owner = dealt(view.indptr, view.indices, self.chunks, comm.size)
        return Part(graph.topology, comm.broadcast(owner, Kind.TOPOLOGY), comm, self_loops=looped)

    def home(self, device: torch.device) -> torch.device:
        """See `Strategy.home`."""
        return device if self.nn == "device" else CPU

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def require_model(self, model: Model) -> None:
        """See `Strategy.require_model`: all its aggregations must be sliceable."""
        whole = sorted({type(each.conv).__name__ for each in model.stages() if not each.conv.aggregation.sliceable})
        if whole:
            raise InputError(
                f"strategy {self.name} cannot train this model",
                needed="layers whose aggregation keeps columns apart, such as those of og.nn",
                got=f"{', '.join(whole)}, which may mix them",
                repair="choose strategy full or offload, or other layers",
            )
        related = sorted({type(each.conv).__name__ for each in model.stages() if each.conv.num_relations})
        if related and self.nn == "cpu":
            raise InputError(
                f"strategy {self.name} cannot aggregate on a device what has parameters on the CPU",
                needed="nn=device, or layers whose aggregation has no trained weights",
                got=f"nn=cpu with {', '.join(related)}",
                repair="leave nn out",
            )

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        with ExitStack() as stack:
            return _Execution(problem, self, _files(problem, self, stack), stack.pop_all())


def chunks_of(num_edges: int) -> int:
    """In how many chunks edges are brought from files, at least."""
    return -(-num_edges * PER_EDGE // _CHUNK_BYTES)


def _files(problem: Problem, options: TensorParallel, stack: ExitStack) -> Files | None:
    """Where what is not in memory is; None if all is."""
    share, fixed = problem.share, all(without_parameters(each) for each in problem.model.stages())
    if options.files in _FILES[1:]:
        _require_fixed(options, problem.model)
    chunks = max(options.chunks, chunks_of(share.topology.num_edges))
    level = _FILES[0] if options.files == "auto" else options.files
    if options.memory is not None:
        _require_cpu(options, share)
        possible = _FILES if fixed else _FILES[:1]
        asked = possible if options.files == "auto" else (options.files,)
        level = _level(options.memory, asked, _needs(problem, chunks), problem.facts)
    if level == _FILES[0]:
        return None
    _require_cpu(options, share)
    num_edges = share.topology.num_edges + share.topology.num_nodes
    per_edge = 16 + 2 * problem.number_bytes
    parent = None if options.scratch is None else Path(options.scratch)
    folder = stack.enter_context(scratch_folder(parent, num_edges * per_edge))
    return Files(folder, share.topology, chunks=chunks, spills=level == _FILES[2])


def _needs(problem: Problem, chunks: int) -> Needs:
    """What the worker needs that needs most."""
    share = problem.share
    return_freed_memory()
    beside = problem.bytes_beside  # first, since a goal holds memory from when it is made
    base, number_bytes = held_bytes(share.comm.device) + beside, problem.number_bytes
    traits = traits_of(problem.model, problem.features, cache=True)
    held = held_by(share, problem.features, number_bytes)
    mine = needs_of(held, traits, base=base, number_bytes=number_bytes, chunks=chunks)
    return Needs(*(max(each) for each in zip(*share.comm.gather(tuple(mine)), strict=True)))


def _level(memory: str, asked: Sequence[str], needs: Needs, facts: dict[str, object]) -> str:
    """As little in files, of what is asked for, as fits into the memory.

    Raises:
        InputError: Nothing of it does.
    """
    budget = parse_bytes(memory)
    for level, needed in zip(_FILES, needs, strict=True):
        if level in asked and needed <= budget:
            facts.update(memory_bytes=budget, estimated_bytes=needed, in_files=level)
            return level
    least = -(-needs[_FILES.index(asked[-1])] // _MIB)
    raise InputError(
        "the memory is too small for this graph and model",
        needed=f"{least:,} MiB for each worker, with {asked[-1]} in files",
        got=memory,
        repair=f"give --memory {least}MiB or more, more workers, or choose strategy offload",
    )


def _require_cpu(options: TensorParallel, share: Share) -> None:
    if share.comm.device.type != "cpu":
        raise InputError(
            f"strategy {options.name} keeps to a limit of memory on CPUs only",
            needed="no memory and no files, or device cpu",
            got=f"memory {options.memory}, files {options.files} on {share.comm.device.type}",
            repair="leave them out, or choose strategy offload",
        )


def _require_fixed(options: TensorParallel, model: Model) -> None:
    others = [each.conv for each in model.stages() if not without_parameters(each)]
    if others:
        raise InputError(
            f"strategy {options.name} needs the weights of all edges of this model in memory",
            needed="sums with fixed weights, such as those of gcn, sage, gin or decoupled; or enough memory",
            got=", ".join(sorted({type(conv).__name__ for conv in others})),
            repair="choose strategy offload, more memory or another model",
        )


class _Execution:
    in_memory = True

    def __init__(self, problem: Problem, options: TensorParallel, files: Files | None, stack: ExitStack) -> None:
        self.problem, self.comm, self._stack = problem, problem.share.comm, stack
        home = options.home(self.comm.device)
        self.goal = problem.goal.to(home)
        shares = options.attention == "coefficients"
        share, timeline = problem.share, problem.timeline
        sums = Sums(share, timeline, chunks=options.chunks, files=files, home=home, shares_weights=shares)
        self.work = SlicePass(problem.model, share, problem.features, sums, constant=options.constant)

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """See `Execution.steps`: one step."""
        if first > 0:
            return
        key, timeline = derive(self.problem.seed, epoch, 0), self.problem.timeline
        with timeline.span("forward"):
            loss = self.goal.loss(self.work.logits(key), key)
        with timeline.span("backward"):
            torch.autograd.backward(loss)
        self.comm.sum_gradients(self.problem.model)
        total = self.comm.sum_(loss.detach().double().cpu()).item()
        yield Step(loss=total, num_seeds=self.problem.num_train)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """See `Execution.inference`."""
        with torch.no_grad():
            logits = self.work.logits(None)
        yield 0, logits.cpu()

    def close(self) -> None:
        """See `Execution.close`."""
        self._stack.close()
        memory_pool.clear()
