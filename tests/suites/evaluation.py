"""Evaluations of every kind under every strategy, as workers that are threads have them. Mutants of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.engine.batches import BatchConfig
from outgrow.engine.features.stored_rows import StoredRows
from outgrow.engine.shard import GraphShard
from outgrow.inference import chunked, layer_nodes, sampled
from outgrow.inference.chunked import InferenceMemory
from outgrow.inference.modes import EvaluationOptions
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.evaluation import Metrics, NodeEvaluation
from outgrow.training.model_evaluator import ModelEvaluator
from outgrow.training.progress_events import ProgressReporter
from suites.cases import Case
from suites.exactness import FEW, FOLDER, GRAPHS, part_of, problem_of
from suites.hits import Hits
from thread_group import run_in_threads

STRATEGIES: dict[str, Strategy] = {
    "full": Full(),
    "offload": Offload(chunks=3, scratch_dir=FOLDER),
    "tensor": TensorParallel(),
    "sampled": Sampled(),
    "split": SplitParallel(),
    "migrate": Migrate(),
    "orchestrate": Orchestrate(hot_ratio=0.5, super_batch=2),
}
MODES = ("auto", "exact", "layerwise", "sampled")
CASES = [
    Case("gcn", "weighted"),
    Case("sage-project-first", "isolated", "one-node-part"),
    Case("gat-concatenated", "weighted", task="multi"),
    Case("gat-concatenated", features="sparse"),
    Case("film-with-relations", "weighted"),
    Case("decoupled", "weighted"),
    Case("foreign", "no-edges", "ranges"),
]
AMPLE = InferenceMemory(1 << 30, 1 << 30, 1 << 30)
SCARCE = InferenceMemory(1, 4000, 100)
"""Several chunks of a layer, and rows of layers in files."""
MEMORY = {"ample": AMPLE, "scarce": SCARCE}
EVALUATION_BATCH = 4


class Scores(NamedTuple):
    """What an evaluation gives: validation after an epoch, both sets in the end, and the way of validation."""

    val: Metrics
    final_val: Metrics
    test: Metrics
    mode: str
    feature_bytes: int
    logits: Tensor | None


Key = tuple[str, str, Case]
"""A strategy, a mode and a case."""


def split_of(case: Case) -> tuple[Tensor, Tensor]:
    """Validation and test nodes."""
    nodes = torch.arange(GRAPHS[case.graph].num_nodes)
    return nodes[nodes % 4 == 1], nodes[nodes % 5 == 3]


def evaluate(place: WorkerContext, keys: list[Key]) -> dict[Key, Scores]:
    """The scores of a worker."""
    return {key: _evaluate(place, *key) for key in keys}


def _evaluate(place: WorkerContext, name: str, mode: str, case: Case) -> Scores:
    strategy, comm = STRATEGIES[name], place.comm
    batches = FEW if strategy.uses_minibatches else BatchConfig()
    problem = problem_of(case, part_of(case, comm), batches)
    execution = strategy.prepare(problem)
    evaluation = NodeEvaluation(problem, *split_of(case))
    options = EvaluationOptions(mode, mode, BatchConfig(size=EVALUATION_BATCH, fanout=FEW.fanout))
    sent_before = comm.ledger.bytes_by_link[Link.NETWORK, Kind.FEATURES]
    evaluator = ModelEvaluator(
        problem, evaluation, options, execution, ProgressReporter(), uses_minibatches=strategy.uses_minibatches
    )
    val = evaluator.validate()
    sent = comm.ledger.bytes_by_link[Link.NETWORK, Kind.FEATURES] - sent_before
    final_val, test, logits = evaluator.score_result()
    execution.close()
    return Scores(val, final_val, test, str(problem.run_facts["validation"]), sent, logits)


def scores_of(keys: list[Key], workers: int, memory: InferenceMemory, hosts: int = 2) -> list[dict[Key, Scores]]:
    """The scores of each of some workers, which are threads."""
    # Around the threads: if each patched, the last one to end would restore the patch of another.
    with patch.object(InferenceMemory, "of_worker", lambda *given: memory):
        return run_in_threads(partial(evaluate, keys=keys), workers, hosts=min(hosts, workers))


BROKEN: list[Key] = [("sampled", mode, CASES[0]) for mode in ("exact", "sampled")]
"""Where a mutant should be found, on three workers with little memory."""


@contextmanager
def requests_of_others_are_not_heard() -> Iterator[Hits]:
    """A layer computes what this worker needs of its own nodes, and not what others need of them."""
    hits, right = Hits(), layer_nodes._collect_own

    def collected(shard: GraphShard, nodes: Tensor) -> Tensor:
        found, alone = right(shard, nodes), shard.filter_owned(nodes)
        hits.note(not torch.equal(found, alone))
        return alone if len(alone) else found

    with patch.object(layer_nodes, "_collect_own", collected):
        yield hits


@contextmanager
def stored_rows_come_as_they_lie() -> Iterator[Hits]:
    """Rows of lower layers are read in the order of the nodes, and written as if that were the order of the request."""
    hits, right = Hits(), StoredRows.read_nodes

    def read(self: StoredRows, nodes: Tensor, out: Tensor, to: Tensor | None) -> None:
        ascending = nodes.sort().values
        hits.note(not torch.equal(ascending, nodes))
        right(self, ascending, out, to)

    with patch.object(StoredRows, "read_nodes", read):
        yield hits


@contextmanager
def chunks_have_no_self_loops() -> Iterator[Hits]:
    """Chunks are cut from the graph as it is, whatever the layer needs."""
    hits = Hits()

    def plain(topology: Any, layer: Any) -> Any:
        hits.note(layer.spec.self_loops)
        return topology

    with patch.object(chunked, "sampling_view", plain):
        yield hits


@contextmanager
def draws_depend_on_workers() -> Iterator[Hits]:
    """Each worker draws with a key of its own."""
    hits, right = Hits(), sampled.SampledInference.__init__

    def init(self: Any, model: Any, shard: GraphShard, *given: Any) -> None:
        *others, seed = given
        hits.note(shard.comm.rank > 0)
        right(self, model, shard, *others, seed + shard.comm.rank)

    with patch.object(sampled.SampledInference, "__init__", init):
        yield hits


MUTANTS: dict[str, Callable[[], AbstractContextManager[Hits]]] = {
    "requests_of_others_are_not_heard": requests_of_others_are_not_heard,
    "stored_rows_come_as_they_lie": stored_rows_come_as_they_lie,
    "chunks_have_no_self_loops": chunks_have_no_self_loops,
    "draws_depend_on_workers": draws_depend_on_workers,
}
