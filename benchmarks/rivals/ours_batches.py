"""Outgrow's sampler, and its strategy `sampled` as `og.train` runs it.

The form says how it evaluates after an epoch: ``exact`` (what `eval` is by default), ``sampled``, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rivals.batches import DROPOUT, EXACT, LEARNING_RATE, SAMPLED, SAMPLING, Graph, Hop, Sampled, Task, sample
from rivals.common import Job, main, set_start
from rivals.epochs import Epochs
from rivals.ours import Done, read_graph  # sets up the threads, so it comes before whatever loads torch

if TYPE_CHECKING:
    from outgrow.core.block import Block
    from outgrow.training.trainer import EpochReport, Trainer


_EVALUATIONS: dict[str, Callable[[Task], dict[str, Any]]] = {
    "": lambda task: {},
    EXACT: lambda task: {},
    SAMPLED: lambda task: {"eval": SAMPLED, "eval_batch_size": task.eval_batch_size},
}


class _Batches:
    """Batches of consecutive seeds, drawn by as many threads and as far ahead as in training."""

    def __init__(self, task: Task, graph: Graph, seeds: NDArray[np.int64], fanout: Sequence[int]) -> None:
        import torch

        from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
        from outgrow.graph.topology import Topology

        topology = Topology(indptr=torch.from_numpy(graph.indptr), indices=torch.from_numpy(graph.indices))
        self.sampler = NeighborSampler([topology] * len(fanout), fanout, task.seed)
        self.seeds = torch.from_numpy(seeds).split(task.batch_size)

    def __iter__(self) -> Iterator[list[Block]]:
        from outgrow.engine.prefetch import prefetch_results
        from outgrow.ops.backend import num_threads
        from outgrow.strategies.sampled import Sampled as Strategy

        steps = range(len(self.seeds))
        with closing(prefetch_results(self._draw, steps, threads=num_threads(), max_ahead=Strategy.prefetch)) as drawn:
            yield from drawn

    def _draw(self, step: int) -> list[Block]:
        return self.sampler.sample_blocks(self.seeds[step], 1, step)


def _describe(blocks: list[Block]) -> Sampled:
    return Sampled(
        num_edges=sum(block.edges.num_edges for block in blocks),
        num_nodes=len(blocks[0].src_nodes),
        hops=lambda count: [_hop(block) for block in reversed(blocks)],
    )


def _hop(block: Block) -> Hop:
    edges, sources = block.edges, block.src_nodes.numpy()
    return Hop(block.dst_nodes.numpy(), edges.indptr.numpy(), sources[edges.indices.numpy()])


class _Listener:
    """Passes the trainer's own times on to the clocks, with the parameters of each epoch."""

    def __init__(self, job: Job, epochs: Epochs, parameters: list[dict[str, Any]]) -> None:
        self.job, self.epochs, self.parameters = job, epochs, parameters

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch has ended."""
        self.epochs.ended(report.seconds, report.loss, self.parameters)
        if report.val_score is not None:
            self.epochs.evaluated(self.job.form, report.evaluation_seconds, report.val_score)
        if report.epoch == self.job.warmup + self.job.epochs:
            raise Done


def _trainer(job: Job, task: Task) -> tuple[Trainer, list[dict[str, Any]]]:
    """The trainer that `og.train` would make, without test nodes, and the parameters of each layer."""
    import torch

    import outgrow as og
    from outgrow.app.runs.session import make_problem
    from outgrow.training.config import TrainConfig
    from outgrow.training.evaluation import NodeEvaluation
    from outgrow.training.trainer import Trainer

    sizes, (fanout,) = task.widths(), task.fanouts
    graph = read_graph(task.arrays, sizes[-1])
    layers = len(sizes) - 1
    model = og.nn.SAGE(sizes[0], sizes[1], sizes[-1], layers=layers, dropout=DROPOUT, sparse_input=graph.sparse)
    convolutions: list[Any] = [layer.conv for layer in model.layers_list()]
    parameters = [
        {"itself": conv.itself.weight, "neighbour": conv.neighbour.weight, "bias": conv.itself.bias}
        for conv in convolutions
    ]
    set_start(replace(job, folder=task.arrays), parameters)
    config = TrainConfig(
        epochs=job.warmup + job.epochs,
        lr=LEARNING_RATE,
        seed=task.seed,
        batch_size=task.batch_size,
        fanout=fanout,
        **_EVALUATIONS[job.form](task),
    )
    val = torch.from_numpy(np.load(task.arrays / "val.npy")) if job.form else graph.split.val
    problem = make_problem(graph, model, config.seed, batches=config.batch_config)
    return Trainer(problem, NodeEvaluation(problem, val, graph.split.test), config), parameters


def work(job: Job) -> dict[str, Any]:
    """Sample or train; see `rivals.common.main`."""
    task = Task.read(job)
    if job.model == SAMPLING:
        graph = Graph.read(task.arrays)
        return sample(job, task, graph, partial(_Batches, task, graph), _describe)
    from outgrow.strategies.sampled import Sampled as Strategy

    epochs = Epochs(job)
    trainer, parameters = _trainer(job, task)
    trainer.add_callbacks(_Listener(job, epochs, parameters))
    try:
        trainer.run(Strategy())
    except Done:
        return {**epochs.report(), "facts": dict(trainer.problem.run_facts)}
    raise AssertionError("the trainer has not told of its last epoch")


if __name__ == "__main__":
    main(work, ("outgrow", "numba", "scipy"))
