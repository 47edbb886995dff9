"""Metrics of torchmetrics under every strategy and evaluation, as workers that are threads have them. Mutants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from metric_objects import MULTI, SINGLE, ByPosition, MeanOfMeans
from outgrow.engine.batches import BatchConfig
from outgrow.inference.chunked import InferenceMemory
from outgrow.inference.modes import EvaluationOptions
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.training import metric_states, metrics
from outgrow.training.evaluation import NodeEvaluation
from outgrow.training.metric_fit import make_node_metrics
from outgrow.training.metric_request import MetricRequest
from outgrow.training.metrics import NodeMetric
from outgrow.training.model_evaluator import ModelEvaluator
from outgrow.training.progress_events import ProgressReporter
from suites.cases import OUT, Case
from suites.evaluation import CASES, EVALUATION_BATCH, SCARCE, STRATEGIES, Key, split_of
from suites.exactness import FEW, part_of, problem_of
from suites.hits import Hits
from thread_group import run_in_threads

PLACES = {"kept": metrics.PIECE_NUMBERS, "combined": 2 * OUT + 1}
"""Number of logits from which metrics are updated: rows of these small graphs are all kept, or states are combined."""
METRIC_CASES = [CASES[0], CASES[2]]
"""One class of a node, and several."""
TASKS = {"single": SINGLE, "multi": MULTI}
NAMES = {
    "single": ("f1-macro", "auroc", "average-precision", "mcc", "kappa", "log-loss", "calibration-error"),
    "multi": ("f1-macro", "f1-micro", "auroc", "log-loss", "calibration-error"),
}


class Figures(NamedTuple):
    """All metrics by name: of a validation after an epoch, and of both sets in the end."""

    val: dict[str, float]
    final_val: dict[str, float]
    test: dict[str, float]


@cache
def metrics_of(case: Case) -> list[NodeMetric]:
    """Named ones, and two whose states cannot be combined; made once, since the trial finds some mutants."""
    objects = {"mean-of-means": MeanOfMeans(), "by-position": ByPosition()}
    request = MetricRequest((*NAMES[case.task], *objects), objects)
    labels = torch.empty((0,) if case.task == "single" else (0, OUT), dtype=torch.int64)
    return make_node_metrics(request, TASKS[case.task], labels, OUT)


def figures_of(keys: Sequence[Key], workers: int, place: str, memory: InferenceMemory = SCARCE) -> list[dict[Key, Any]]:
    """The metrics of each of some workers, which are threads."""
    prepared = {case: metrics_of(case) for case in {key[2] for key in keys}}
    with ExitStack() as stack:
        # Around the threads, since they are one process.
        stack.enter_context(patch.object(InferenceMemory, "of_worker", lambda *given: memory))
        stack.enter_context(patch.object(metrics, "PIECE_NUMBERS", PLACES[place]))
        return run_in_threads(partial(_evaluate, keys=keys, prepared=prepared), workers, hosts=min(2, workers))


def _evaluate(place: WorkerContext, keys: Sequence[Key], prepared: dict[Case, list[NodeMetric]]) -> dict[Key, Figures]:
    found = {}
    for name, mode, case in keys:
        strategy = STRATEGIES[name]
        batches = FEW if strategy.uses_minibatches else BatchConfig()
        problem = problem_of(case, part_of(case, place.comm), batches)
        execution = strategy.prepare(problem)
        evaluation = NodeEvaluation(problem, *split_of(case), metrics=prepared[case])
        options = EvaluationOptions(mode, mode, BatchConfig(size=EVALUATION_BATCH, fanout=FEW.fanout))
        evaluator = ModelEvaluator(
            problem, evaluation, options, execution, ProgressReporter(), uses_minibatches=strategy.uses_minibatches
        )
        val = evaluator.validate()
        final_val, test, _ = evaluator.score_result()
        execution.close()
        found[name, mode, case] = Figures(dict(val.figures), dict(final_val.figures), dict(test.figures))
    return found


BROKEN: list[Key] = [("sampled", "exact", METRIC_CASES[0])]
"""Where a mutant should be found, on three workers."""


@contextmanager
def values_of_workers_are_averaged() -> Iterator[Hits]:
    """Each worker's metric is computed of its own rows, and the mean of these is taken."""
    hits, right = Hits(), metrics.MetricAccumulator._combine_parts

    def combine(self: Any, parts: Sequence[Any]) -> dict[str, float]:
        hits.note(len(parts) > 1)
        each = [right(self, [part]) for part in parts]
        return {name: sum(found[name] for found in each) / len(each) for name in each[0]}

    with patch.object(metrics.MetricAccumulator, "_combine_parts", combine):
        yield hits


@contextmanager
def states_of_the_first_worker_stand_for_all() -> Iterator[Hits]:
    """Rank 0 combines its own states alone."""
    hits, right = Hits(), metric_states.combine_states

    def combine(metric: Any, states: Sequence[Any]) -> Any:
        hits.note(len(states) > 1)
        return right(metric, states[:1])

    with patch.object(metric_states, "combine_states", combine):
        yield hits


@contextmanager
def rows_that_are_left_are_lost() -> Iterator[Hits]:
    """Rows that were too few for an update are not added in the end."""
    hits, right = Hits(), metrics.MetricAccumulator._combine_parts

    def combine(self: Any, parts: Sequence[Any]) -> dict[str, float]:
        hits.note(any(len(part.rows) > part.num_used for part in parts))
        return right(self, [part._replace(num_used=len(part.rows)) for part in parts])

    with patch.object(metrics.MetricAccumulator, "_combine_parts", combine):
        yield hits


@contextmanager
def rows_come_as_workers_have_them() -> Iterator[Hits]:
    """Rows of all workers are not put in the order of nodes."""
    hits = Hits()

    def join(self: Any, rows: Sequence[Any]) -> Any:
        nodes, logits, labels = (torch.cat(parts) for parts in zip(*rows, strict=True))
        hits.note(not torch.equal(nodes, nodes.sort().values))
        return self.task.metric_input(logits, labels)

    with patch.object(metrics.MetricAccumulator, "_join_rows", join):
        yield hits


@contextmanager
def means_are_combined_as_means() -> Iterator[Hits]:
    """A state that is a mean is taken for one that can be combined."""
    from torchmetrics.utilities.data import dim_zero_mean

    hits, right = Hits(), metric_states._REDUCTIONS

    def is_equal(found: float, other: float) -> bool:
        hits.note(True)
        return True

    with (
        patch.object(metric_states, "_REDUCTIONS", (*right, dim_zero_mean)),
        patch("outgrow.training.metric_fit._is_same", is_equal),
    ):
        metrics_of.cache_clear()
        yield hits
    metrics_of.cache_clear()


MUTANTS: dict[str, Callable[[], AbstractContextManager[Hits]]] = {
    "values_of_workers_are_averaged": values_of_workers_are_averaged,
    "states_of_the_first_worker_stand_for_all": states_of_the_first_worker_stand_for_all,
    "rows_that_are_left_are_lost": rows_that_are_left_are_lost,
    "rows_come_as_workers_have_them": rows_come_as_workers_have_them,
    "means_are_combined_as_means": means_are_combined_as_means,
}
