"""Outgrow, as `og.train` runs it: the library's own problem, strategy and trainer, without evaluation."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rivals.common import (
    HEADS,
    LEARNING_RATE,
    SPARSE,
    Arrays,
    Csr,
    Job,
    Meter,
    main,
    read_arrays,
    read_relation,
    read_relations,
    read_sparse_features,
    set_start,
    widths,
)

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded
# Epochs are timed with the kernels that a run has for most of its time: warm-up waits for their form for all threads.
os.environ.setdefault("OUTGROW_COMPILE_PROCESSES", "0")

if TYPE_CHECKING:
    from pathlib import Path

    from outgrow.graph.graph import Graph
    from outgrow.nn.model import Model
    from outgrow.ops.sparse import SparseRows
    from outgrow.training.trainer import EpochReport, Trainer


class Done(Exception):
    """All epochs are measured: what `og.train` does after training is left out."""


class _Listener:
    """Passes the trainer's own times on to the meter."""

    def __init__(self, meter: Meter, epochs: int) -> None:
        self.meter, self.epochs = meter, epochs

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch has ended."""
        self.meter.epoch(report.seconds, report.loss)
        if report.epoch == self.epochs:
            raise Done


def make_graph(name: str, arrays: Arrays, classes: int) -> Graph:
    """The arrays as a graph of the library."""
    import torch

    import outgrow as og
    from outgrow.graph.topology import Topology

    empty = torch.empty(0, dtype=torch.int64)
    return og.Graph(
        name=name,
        topology=Topology(indptr=torch.from_numpy(arrays.indptr), indices=torch.from_numpy(arrays.indices)),
        features=torch.from_numpy(arrays.features),
        labels=torch.from_numpy(arrays.labels),
        split=og.Split(train=torch.from_numpy(arrays.train), val=empty, test=empty),
        num_classes=classes,
    )


def build_model(job: Job) -> Model:
    """The library's own model, with the parameters that all start from."""
    import outgrow as og

    sizes = widths(job.folder)
    makers: dict[str, Callable[[], Any]] = {
        "gcn": lambda: og.nn.GCN(*sizes, layers=2, dropout=0.0),
        "sage": lambda: og.nn.SAGE(*sizes, layers=2, dropout=0.0),
        "gin": lambda: og.nn.GIN(*sizes, layers=2, dropout=0.0),
        "gat": lambda: og.nn.GAT(*sizes, layers=2, dropout=0.0, heads=HEADS, out_heads=1),
        "rgcn": lambda: _build_relational(job, sizes),
    }
    model: Model = makers[job.model]()
    set_start(job, [_named(job.model, layer.conv) for layer in model.layers_list()])
    return model


def _build_relational(job: Job, sizes: tuple[int, int, int]) -> Model:
    import outgrow as og

    relations, bases = read_relations(job.folder)
    sparse = (job.folder / SPARSE).exists()
    return og.nn.RGCN(*sizes, num_relations=relations, bases=bases, sparse_input=sparse, layers=2, dropout=0.0)


def _named(model: str, conv: Any) -> dict[str, Any]:
    """Parameters of a convolution by their common names, as views of ``[in, out]``."""
    if model == "rgcn":
        return name_relational(conv)
    if model == "gcn":
        return {"weight": conv.project.weight, "bias": conv.bias}
    if model == "sage":
        return {"itself": conv.itself.weight, "neighbour": conv.neighbour.weight, "bias": conv.itself.bias}
    if model == "gin":
        return {
            "eps": conv.eps,
            "first": conv.first.weight,
            "first_bias": conv.bias,
            "second": conv.second.weight,
            "second_bias": conv.second.bias,
        }
    return {
        "weight": conv.project.weight,
        "source": conv.source_score,
        "target": conv.target_score,
        "bias": conv.bias,
    }


def name_relational(conv: Any) -> dict[str, Any]:
    """Parameters of R-GCN by their common names; of the bases ``[B, in, out]``."""
    basis_DBO = conv.basis.weight.view(conv.spec.in_features, conv.bases, conv.spec.out_features)
    return {
        "basis": basis_DBO.transpose(0, 1),
        "share": conv.share,
        "itself": conv.itself.weight,
        "bias": conv.itself.bias,
    }


def build_trainer(job: Job) -> Trainer:
    """The trainer of a job on the arrays that `rivals.data` or `rivals.real_data` wrote."""
    graph = read_graph(job.folder, widths(job.folder)[2])
    if job.model == "rgcn":
        graph = add_relations(graph, job)
    return make_trainer(job, graph, build_model(job))


def read_graph(folder: Path, classes: int) -> Graph:
    """The graph in a folder, with the features as it has them: sparse ones in compressed rows."""
    sparse = read_sparse_features(folder / SPARSE)
    graph = make_graph("training", read_arrays(folder, without="" if sparse is None else "features"), classes)
    return graph if sparse is None else replace(graph, features=make_sparse_rows(sparse))


def add_relations(graph: Graph, job: Job) -> Graph:
    """The graph with the relations of its edges."""
    import torch

    relation = torch.from_numpy(read_relation(job.folder))
    names = tuple(f"relation {number}" for number in range(read_relations(job.folder).relations))
    return replace(graph, topology=replace(graph.topology, relation=relation), relation_names=names)


def make_sparse_rows(features: Csr) -> SparseRows:
    """The features as a matrix of the library."""
    import torch

    from outgrow.ops.sparse import SparseRows

    indptr, indices, values = (torch.from_numpy(part) for part in features[:3])
    return SparseRows(indptr=indptr, indices=indices, values=values, num_columns=features.num_columns)


def make_trainer(job: Job, graph: Graph, model: Model) -> Trainer:
    """The trainer that `og.train` would make, with nothing to evaluate on."""
    from outgrow.app.runs.session import make_problem
    from outgrow.runtime.system.device import use_device
    from outgrow.training.config import TrainConfig
    from outgrow.training.evaluation import NodeEvaluation
    from outgrow.training.trainer import Trainer

    config = TrainConfig(epochs=job.warmup + job.epochs, lr=LEARNING_RATE)
    problem = make_problem(graph, model, config.seed)
    use_device(job.device, problem.shard.comm)
    model.to(problem.shard.comm.device)
    return Trainer(problem, NodeEvaluation(problem, graph.split.val, graph.split.test), config)


def measure(job: Job, trainer: Trainer, strategy: Any = None) -> dict[str, Any]:
    """Train all epochs of a job, with a strategy or by `full`, and report."""
    from outgrow.engine import full_graph
    from outgrow.strategies.full import Full

    if job.form == "recompute":
        assert callable(full_graph.cached_first_aggregate)
        full_graph.cached_first_aggregate = lambda *given: None  # the constant first aggregate is computed every epoch
        strategy = strategy or Full(first_aggregate="each-step")
    meter = Meter()
    trainer.add_callbacks(_Listener(meter, job.warmup + job.epochs))
    try:
        trainer.run(strategy or Full())
    except Done:
        return meter.report(job)
    raise AssertionError("the trainer has not told of its last epoch")


def work(job: Job) -> dict[str, Any]:
    """Train; see `rivals.common.main`."""
    return measure(job, build_trainer(job))


if __name__ == "__main__":
    main(work, ("outgrow", "numba", "scipy"))
