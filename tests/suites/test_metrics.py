"""Metrics of torchmetrics are those of all rows at once, under every strategy, evaluation and number of workers."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor
from torchmetrics import Metric

from metric_objects import ByPosition, MeanOfMeans
from outgrow.training.metric_names import make_named_metric
from outgrow.training.metrics import quiet_metrics
from suites.cases import OUT, Case
from suites.evaluation import MODES, STRATEGIES, Key, split_of
from suites.exactness import OPAQUE
from suites.metrics import BROKEN, METRIC_CASES, MUTANTS, NAMES, TASKS, Figures, figures_of, metrics_of
from suites.test_evaluation import plain_logits

TOLERANCE = 1e-6
"""Many values of torchmetrics are float32."""
KEYS: list[Key] = [
    (name, mode, case)
    for name in STRATEGIES
    for mode in MODES
    for case in METRIC_CASES
    if not (name == "tensor" and case.conv in OPAQUE)
]
QUICK: list[Key] = [
    (name, mode, METRIC_CASES[0])
    for name, mode in (("full", "auto"), ("offload", "layerwise"), ("sampled", "exact"), ("sampled", "sampled"))
] + [("split", "exact", METRIC_CASES[1])]


@cache
def seen(workers: int, place: str, which: str) -> list[dict[Key, Figures]]:
    return figures_of(QUICK if which == "quick" else KEYS, workers, place)


@cache
def plain_figures(case: Case) -> tuple[dict[str, float], dict[str, float]]:
    """Of validation and test nodes: metrics that were updated once, with the output of the plain model."""
    logits, task = plain_logits(case), TASKS[case.task]
    classes = torch.arange(len(logits)) * 7 % OUT
    labels = classes if case.task == "single" else (classes[:, None] >= torch.arange(OUT)).to(torch.uint8)
    first, second = (_figures(case, *task.metric_input(logits[at], labels[at])) for at in split_of(case))
    return first, second


def _figures(case: Case, preds: Tensor, target: Tensor) -> dict[str, float]:
    metrics: dict[str, Metric] = {
        name: make_named_metric(name, TASKS[case.task].target_kind, OUT) for name in NAMES[case.task]
    }
    metrics |= {"mean-of-means": MeanOfMeans(), "by-position": ByPosition()}
    with quiet_metrics():  # of classes that these few nodes do not have
        for each in metrics.values():
            each.update(preds, target)
        return {name: float(each.compute()) for name, each in metrics.items()}


def differences(found: dict[str, float], right: dict[str, float]) -> dict[str, tuple[float, float]]:
    return {
        name: (found[name], value)
        for name, value in right.items()
        if found[name] != pytest.approx(value, abs=TOLERANCE, nan_ok=True)
    }


workers_and_place = pytest.mark.parametrize(
    ("workers", "place", "which"),
    [
        (1, "combined", "quick"),
        (3, "combined", "quick"),
        (3, "kept", "quick"),
        *(pytest.param(workers, "combined", "all", marks=pytest.mark.slow) for workers in (1, 2, 3)),
    ],
)


@workers_and_place
def test_exact_evaluations_have_the_metrics_of_the_plain_model(workers: int, place: str, which: str) -> None:
    wrong = {}
    for key, found in seen(workers, place, which)[0].items():
        if key[1] != "sampled":
            val, test = plain_figures(key[2])
            bad = differences(found.val, val) | differences(found.final_val, val) | differences(found.test, test)
            wrong |= {key: bad} if bad else {}
    assert not wrong


@workers_and_place
def test_sampled_evaluations_do_not_depend_on_workers_or_strategies(workers: int, place: str, which: str) -> None:
    wrong = {}
    for key, found in seen(workers, place, which)[0].items():
        if key[1] == "sampled":
            alone = seen(1, "combined", which)[0]["sampled", "sampled", key[2]]
            bad = differences(found.val, alone.val) | differences(found.test, alone.test)
            wrong |= {key: bad} if bad else {}
    assert not wrong


@pytest.mark.parametrize(("workers", "place"), [(3, "combined"), (3, "kept")])
def test_all_workers_have_the_same_bits(workers: int, place: str) -> None:
    first, *others = (repr(each) for each in seen(workers, place, "quick"))
    assert set(others) == {first}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    val, test = plain_figures(BROKEN[0][2])
    metrics_of(BROKEN[0][2])
    with MUTANTS[name]() as hits:
        found = figures_of(BROKEN, 3, "combined")[0][BROKEN[0]]
    assert hits.count > 0
    assert differences(found.val, val) or differences(found.test, test)
