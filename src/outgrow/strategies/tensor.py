"""`tensor`: feature slices move, not nodes. Every worker aggregates its columns over the whole graph.

No worker waits for the neighbours of another's nodes, and all of them aggregate equally many edges times columns,
however skewed the graph. Ai et al.: NeutronTP, PVLDB 18(2), 2024.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from typing import get_type_hints

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.nearest import pick
from outgrow.core.option_types import require_positive, require_types
from outgrow.core.types import Kind
from outgrow.engine.share import Part, Share, Whole
from outgrow.engine.slices.lane import dealt
from outgrow.engine.slices.passes import SlicePass
from outgrow.engine.slices.sums import Sums
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.ops import buffers
from outgrow.ops.keyed import derive
from outgrow.runtime.comm import Comm
from outgrow.strategies.base import Execution, Problem, Step, Strategy


@dataclass(frozen=True, kw_only=True)
class TensorParallel(Strategy):
    """Full-graph training on slices of the columns. One step per epoch.

    Attributes:
        chunks: Into how many chunks the graph is cut, of which rows travel while others are aggregated; 1 for none.
        constant: Whether a first aggregate that is constant is computed once; else in every epoch.
        attention: What workers tell each other of the attention of decoupled models: ``"scores"`` of nodes, from which
            each computes that of all edges, or, as in the paper, the ``"coefficients"`` of the edges to their nodes.
    """

    name = "tensor"
    exact = True

    chunks: int = 4
    constant: bool = True
    attention: str = "scores"

    def __post_init__(self) -> None:
        require_types(asdict(self), get_type_hints(TensorParallel))
        require_positive(self.name, chunks=self.chunks)
        pick("attention", self.attention, dict.fromkeys(("scores", "coefficients")))

    def share(self, graph: Graph, comm: Comm, *, self_loops: bool) -> Share:
        """See `Strategy.share`: of what each chunk is the first to read, every worker owns an equal part."""
        if comm.size == 1:
            return Whole(graph.topology, comm)
        owner = None
        if comm.leads:
            view = graph.topology.with_self_loops if self_loops else graph.topology
            owner = dealt(view.indptr, view.indices, self.chunks, comm.size)
        return Part(graph.topology, comm.broadcast(owner, Kind.TOPOLOGY), comm, self_loops=self_loops)

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

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        return _Execution(problem, self)


class _Execution:
    in_memory = True

    def __init__(self, problem: Problem, options: TensorParallel) -> None:
        self.problem, self.comm = problem, problem.share.comm
        self.goal = problem.goal().to(self.comm.device)
        shares = options.attention == "coefficients"
        sums = Sums(problem.share, problem.timeline, chunks=options.chunks, shares_weights=shares)
        self.work = SlicePass(problem.model, problem.share, problem.features, sums, constant=options.constant)

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """See `Execution.steps`: one step."""
        if first > 0:
            return
        key = derive(self.problem.seed, epoch, 0)
        loss = self.goal.loss(self.work.logits(key), key)
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
        buffers.clear()
