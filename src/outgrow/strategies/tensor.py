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
from outgrow.core.option_types import require_types
from outgrow.engine.slices.passes import SlicePass
from outgrow.nn.model import Model
from outgrow.ops import buffers
from outgrow.ops.keyed import derive
from outgrow.strategies.base import Execution, Problem, Step, Strategy


@dataclass(frozen=True, kw_only=True)
class TensorParallel(Strategy):
    """Full-graph training on slices of the columns. One step per epoch.

    Attributes:
        constant: Whether a first aggregate that is constant is computed once; else in every epoch.
    """

    name = "tensor"
    exact = True
    partition = "range"

    constant: bool = True

    def __post_init__(self) -> None:
        require_types(asdict(self), get_type_hints(type(self)))

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
        self.goal = problem.goal.to(self.comm.device)
        self.work = SlicePass(problem.model, problem.share, problem.features, constant=options.constant)

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """See `Execution.steps`: one step."""
        if first > 0:
            return
        loss = self.goal.loss(self.work.logits(derive(self.problem.seed, epoch, 0)))
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
