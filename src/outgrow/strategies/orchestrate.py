"""`orchestrate`: the bottom layer is shared between the CPU and the device.

Ai, Wang, Cao, Zhang, et al.: NeutronOrch: rethinking sample-based GNN training under CPU-GPU heterogeneous
environments, PVLDB 17, 2024. While the device trains ``n`` batches, a *super-batch*, the CPU computes the bottom layer
of those *hot* nodes that the next super-batch will use, so that the device need not fetch the raw features of their
neighbourhoods. What it has made of a node is used in all batches of that super-batch, and is at most ``2n - 1`` updates
old then.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import get_type_hints

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.nearest import pick
from outgrow.core.option_types import require_positive, require_types
from outgrow.engine.batches import Batches, count_drawn
from outgrow.engine.micro_batches import Ahead, sampler_of
from outgrow.engine.orchestra.bottom import Device
from outgrow.engine.orchestra.draws import Draw, Drawing, SuperBatches, bottom_counts, hottest, super_batches
from outgrow.engine.orchestra.host import HostSide, Slice, version_of
from outgrow.engine.orchestra.hot_rows import HotTable, Reuse
from outgrow.engine.pipeline import prefetched
from outgrow.engine.rows import RowStore, Waiting, Wanted, row_type
from outgrow.graph.partition.method import WITHOUT_CHUNKS
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops import buffers
from outgrow.ops.keyed import derive
from outgrow.strategies.base import Execution, Problem, Step, Strategy, whole_inference

_BEFORE = (0, -1)  # epochs are numbered from 1
_SPARE = 0.5  # no two batches are of one size
_REUSES = dict.fromkeys(("embedding", "aggregate"))


@dataclass(frozen=True, kw_only=True)
class Orchestrate(Strategy):
    """Training on sampled mini-batches, of which the CPU computes the bottom layer of hot nodes beforehand.

    Attributes:
        partition: How nodes, their features and their seeds are dealt out to workers: see ``outgrow partition``.
        hot_ratio: Share of all nodes that may be hot: those that batches need most often in the bottom layer, counted
            in epochs that are sampled first and not trained.
        super_batch: ``n``, how many batches use what the CPU has made of hot nodes meanwhile.
        reuse: What batches use: ``"embedding"``, the output of the bottom layer, up to ``2n - 1`` updates old; or
            ``"aggregate"``, that of raw features, which has no parameters and does not age.
        hot_gradient: Whether aggregates travel with embeddings, so that hot nodes add to the gradient of the bottom
            layer; else embeddings are constants.
        newest: Whether the CPU uses the newest parameters when it begins a slice; then two runs differ. Else slice
            ``k`` uses those that batch ``k`` of the super-batch begins with.
        threads: Threads of a worker that draw batches; None for half as many as compute.
    """

    name = "orchestrate"
    exact = False
    takes_batches = True

    partition: str = "metis"
    hot_ratio: float = 0.2
    super_batch: int = 4
    reuse: str = "embedding"
    hot_gradient: bool = True
    newest: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        require_types(asdict(self), get_type_hints(Orchestrate))
        pick("partition", self.partition, WITHOUT_CHUNKS)
        pick("reuse", self.reuse, _REUSES)
        require_positive(self.name, super_batch=self.super_batch, threads=self.threads)
        if not 0 <= self.hot_ratio <= 1:
            raise InputError(
                f"option hot_ratio of {self.name} is out of range",
                needed="a share of all nodes, from 0 to 1",
                got=str(self.hot_ratio),
                repair="give 0.2, say; 0 for no hot nodes, as strategy sampled trains",
            )

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def is_exact(self, batches: Batches) -> bool:
        """Without hot nodes it is `sampled`; aggregates of whole neighbourhoods are what the device would compute."""
        return self.hot_ratio == 0 or (self.reuse == "aggregate" and batches.hops(1)[-1] == -1)

    def require_model(self, model: Model) -> None:
        """See `Strategy.require_model`: it needs a layer above the bottom one."""
        super().require_model(model)
        if len(model.stages()) < 2:
            raise InputError(
                f"strategy {self.name} has nothing to share in a model of one layer",
                needed="2 layers at least: the bottom one for the CPU and the device, the others for the device",
                got="1 layer",
                repair="add a layer, or choose strategy sampled",
            )
        first = model.stages()[0]
        if self.reuse == "aggregate" and not (
            first.constant_aggregate and model.encoder is None and model.input_dropout == 0
        ):
            raise InputError(
                "aggregates of this model's bottom layer cannot be reused: they change as it is trained",
                needed="a layer that sums raw features with weights of the graph, and neither dropout nor an encoder "
                "before it",
                got=f"{type(first.conv).__name__}, input_dropout {model.input_dropout}"
                + ("" if model.encoder is None else f", encoder {type(model.encoder).__name__}"),
                repair="choose reuse=embedding; or a model such as sage or gcn, with more hidden columns than features",
            )

    def reused(self, model: Model) -> Reuse:
        """What is made of hot nodes."""
        kept = self.reuse == "aggregate" or self.hot_gradient
        return Reuse(self.reuse == "embedding", kept, kept and model.stages()[0].reads_target)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        return OrchestrateExecution(problem, self)


class OrchestrateExecution:
    """`Orchestrate` at work. Final.

    Args:
        problem: What is trained.
        options: How.
    """

    in_memory = True

    def __init__(self, problem: Problem, options: Orchestrate) -> None:
        self.problem, self.options, self.share = problem, options, problem.share
        self.comm, self.model = problem.share.comm, problem.model
        self.sampler = sampler_of(self.share.topology, self.model, problem.batches, problem.seed)
        given = row_type(self.model, problem.features)
        self.rows = RowStore(self.share, problem.features, given)
        self.host_rows = RowStore(self.share, problem.features, given, comm=self.comm.aside)
        self.device = Device(self.model, self.comm, 2 * options.super_batch - 1)
        self.hotness, self.is_hot = self._found_hot()

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """See `Execution.steps`."""
        buffers.keep_spare(_SPARE)
        batches = self.problem.seeds(epoch)
        drawing = Drawing(self.sampler, epoch, batches, self.share.mine, self.is_hot)
        restart = self.problem.checkpoint_steps
        for part in super_batches(first, len(batches), self.options.super_batch, restart):
            yield from self._part(drawing, part)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """See `Execution.inference`."""
        return whole_inference(self.problem)

    def close(self) -> None:
        """See `Execution.close`."""
        buffers.clear()

    def _part(self, drawing: Drawing, supers: Sequence[range]) -> Generator[Step]:
        """Super-batches of which the first has no hot nodes."""
        ahead = Ahead.of(self.options.threads, 2 * self.options.super_batch)
        every = range(supers[0].start, supers[-1].stop)

        def draw(step: int) -> Draw:
            return drawing.draw(step, all_cold=step in supers[0])

        drawn = prefetched(draw, every, threads=ahead.threads, ahead=ahead.batches)
        with (
            closing(SuperBatches(drawn, [len(each) for each in supers])) as batches,
            closing(self._host_side(drawing, batches)) as host,
            closing(self._with_rows(batches)) as ready,
        ):
            for number, steps in enumerate(supers):
                hot = HotTable([host.take() for _ in supers[number - 1]], len(self.is_hot)) if number else None
                for step in steps:
                    if number + 1 < len(supers):
                        host.give(self._slices(number + 1, steps, step), version_of(self.model, step))
                    yield self._step(drawing.epoch, *next(ready), hot)
            self._tell(host)

    def _slices(self, number: int, before: range, step: int) -> list[Slice]:
        """The CPU's work for a super-batch that may begin before a step of the one before."""
        slices = [Slice(number, before.stop, part, len(before)) for part in range(len(before))]
        if self.options.newest:
            return slices if step == before.start else []
        return [slices[step - before.start]]

    def _with_rows(self, draws: Iterable[Draw]) -> Generator[tuple[Draw, Features]]:
        """Draws with the rows of their cold nodes; those of the next are under way before one is given."""

        def gather(draw: Draw) -> tuple[Draw, Wanted]:
            return draw, self.rows.prepare(draw.cold.src_nodes)

        asked: tuple[Draw, Waiting] | None = None
        with closing(prefetched(gather, draws, threads=1, ahead=1)) as gathered:
            for draw, wanted in gathered:
                following = draw, self.rows.ask(wanted)
                if asked is not None:
                    yield asked[0], asked[1].wait()
                asked = following
        if asked is not None:
            yield asked[0], asked[1].wait()

    def _step(self, epoch: int, draw: Draw, x: Features, hot: HotTable | None) -> Step:
        problem, comm, loss = self.problem, self.comm, torch.zeros((), dtype=torch.float64)
        if len(draw.seeds):
            logits = self.device.logits(draw, x, hot, derive(problem.seed, epoch, draw.step))
            found = problem.batch_loss(logits, problem.own_labels(draw.seeds), draw.num_seeds)
            torch.autograd.backward(found)
            loss += found.detach().cpu()
        comm.sum_gradients(self.model)
        for block in (draw.cold, *draw.above):
            count_drawn(comm.ledger, block.edges)
        return Step(loss=comm.sum_(loss).item(), num_seeds=draw.num_seeds)

    def _host_side(self, drawing: Drawing, batches: SuperBatches) -> HostSide:
        return HostSide(
            self.model,
            self.comm,
            self.host_rows,
            drawing,
            batches,
            hotness=self.hotness,
            reuse=self.options.reused(self.model),
            newest=self.options.newest,
        )

    def _found_hot(self) -> tuple[Tensor, Tensor]:
        """``[V]`` how hot each node is for this worker, and ``[V]`` whether it is hot."""
        ratio, num_nodes = self.options.hot_ratio, self.share.topology.num_nodes
        is_hot = torch.zeros(num_nodes, dtype=torch.bool)
        if ratio == 0:
            return torch.zeros(num_nodes, dtype=torch.int64), is_hot
        seeds = self.problem.seeds
        counts = bottom_counts([Drawing(self.sampler, each, seeds(each), self.share.mine, is_hot) for each in _BEFORE])
        is_hot[hottest(counts, round(ratio * num_nodes / self.comm.size))] = True
        return counts, is_hot

    def _tell(self, host: HostSide) -> None:
        """What there is to know of the last part."""
        facts = {"hot_nodes": int(self.is_hot.sum()), "cpu_seconds": host.busy, "waited_seconds": host.waited}
        self.problem.facts[Orchestrate.name] = facts
