"""Metrics of torchmetrics: as they are defined, whatever pieces and workers rows are split into."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st

from metric_objects import (
    CLASSES,
    MULTI,
    ROWS,
    SINGLE,
    Bootstrapped,
    ByPosition,
    MeanOfMeans,
    Overwritten,
    Raising,
    made,
    rows_of,
    value_of,
)
from outgrow.core.errors import InputError
from outgrow.nn.tasks import NodeRegression, NodeTask
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.training import metric_states
from outgrow.training import metrics as metrics_module
from outgrow.training.metric_fit import make_node_metrics
from outgrow.training.metric_names import NODE_METRICS, make_named_metric
from outgrow.training.metric_request import MetricRequest, parse_metrics
from outgrow.training.metrics import MetricAccumulator, NodeMetric, quiet_metrics


def test_a_class_without_nodes_does_not_count() -> None:
    """torchmetrics has 0 for it, so that a perfect model would not have 1."""
    labels = torch.arange(30) % 3
    logits = 8.0 * torch.nn.functional.one_hot(labels, CLASSES).double()
    accumulator = MetricAccumulator(comm=SingleProcessComm(), task=SINGLE, metrics=made("auroc,average-precision"))
    accumulator.update(torch.arange(30), logits, labels)
    assert accumulator.compute() == {"auroc": 1.0, "average-precision": 1.0}


@pytest.mark.parametrize("name", NODE_METRICS)
def test_names_know_which_direction_is_better(name: str) -> None:
    """As torchmetrics says where it does."""
    named = NODE_METRICS[name]
    kind = next(iter({*named.recipes} - {"binary"}), "multiclass")
    metric = make_named_metric(name, kind, 2 if kind == "multiclass" else CLASSES)
    assert metric.higher_is_better in (named.higher_is_better, None)


OBJECTS: dict[str, Callable[[], torchmetrics.Metric]] = {
    "F1Score": lambda: torchmetrics.F1Score(task="multiclass", num_classes=CLASSES, average="macro"),
    "AUROC": lambda: torchmetrics.AUROC(task="multiclass", num_classes=CLASSES),
    "AUROC in bins": lambda: torchmetrics.AUROC(task="multiclass", num_classes=CLASSES, thresholds=20),
    "CalibrationError": lambda: torchmetrics.CalibrationError(task="multiclass", num_classes=CLASSES),
    "HingeLoss": lambda: torchmetrics.HingeLoss(task="multiclass", num_classes=CLASSES),
    "MeanOfMeans": MeanOfMeans,
    "Overwritten": Overwritten,
    "ByPosition": ByPosition,
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_give_what_they_give_of_all_rows_at_once(name: str) -> None:
    logits, labels = rows_of(SINGLE)
    alone = OBJECTS[name]()
    alone.update(logits.softmax(1), labels)
    whole = MetricAccumulator(comm=SingleProcessComm(), task=SINGLE, metrics=made({"it": OBJECTS[name]()}))
    with patch.object(metrics_module, "PIECE_NUMBERS", 1):
        for first, last in ((40, ROWS), (0, 7), (7, 8), (8, 39), (39, 40)):
            whole.update(torch.arange(first, last), logits[first:last], labels[first:last])
    assert whole.compute()["it"] == pytest.approx(float(alone.compute()), rel=1e-6)


def test_objects_for_numbers() -> None:
    task, labels = NodeRegression(), torch.empty(0, dtype=torch.float64)
    with quiet_metrics():  # of the memory that it takes
        rho = torchmetrics.SpearmanCorrCoef()
    given = {"rho": rho, "ccc": torchmetrics.ConcordanceCorrCoef()}
    found = make_node_metrics(parse_metrics(given), task, labels, 1)
    assert [each.takes_pieces for each in found] == [True, False]
    with pytest.raises(InputError, match="for one class per node"):
        make_node_metrics(parse_metrics("kappa"), task, labels, 1)
    with pytest.raises(InputError, match="the metric r2 failed"):
        make_node_metrics(parse_metrics("r2"), task, labels, 1, num_rows=1)


FLOAT32 = ("auroc", "average-precision", "calibration-error", "mcc", "kappa", "f1-macro", "accuracy-balanced")
"""What torchmetrics computes in float32, of counts or of pairs in any order."""
SPLIT_NAMES = "f1-macro,auroc,average-precision,mcc,kappa,log-loss,calibration-error,accuracy-balanced"


def combined(parts: list[MetricAccumulator]) -> dict[str, float]:
    """What rank 0 computes of the parts of workers, which its communicator gives it."""

    gathered = list[Any]()
    with patch.object(metric_states, "gather_to_rank_zero", lambda comm, part: gathered.append(part) or gathered):
        for part in reversed(parts):
            found = part.compute()
    return found


@pytest.fixture(scope="module")
def prepared() -> dict[str, list[NodeMetric]]:
    objects = {name: OBJECTS[name]() for name in ("HingeLoss", "MeanOfMeans", "ByPosition")}
    named = made(SPLIT_NAMES)
    return {"single": named + made(objects), "multi": made("f1-macro,auroc,mcc,log-loss,calibration-error", MULTI)}


@settings(max_examples=40, deadline=None)
@given(
    owners=st.lists(st.integers(0, 3), min_size=2, max_size=ROWS),
    pieces=st.lists(st.integers(0, ROWS), max_size=6),
    multi=st.booleans(),
    least=st.integers(1, 80),
)
def test_any_split_of_the_rows_gives_the_same(
    prepared: dict[str, list[NodeMetric]], owners: list[int], pieces: list[int], multi: bool, least: int
) -> None:
    """Workers without rows, pieces without rows, any order of pieces, and updates of few or many rows."""
    task, metrics = (MULTI, prepared["multi"]) if multi else (SINGLE, prepared["single"])
    logits, labels = (each[: len(owners)] for each in rows_of(task))
    owner = torch.tensor(owners)

    def values(workers: int) -> dict[str, float]:
        parts = [MetricAccumulator(comm=SingleProcessComm(), task=task, metrics=metrics) for _ in range(workers)]
        for number, part in enumerate(parts):
            nodes = (owner % workers == number).nonzero()[:, 0]
            for piece in reversed(torch.tensor_split(nodes, sorted(pieces))):
                part.update(piece, logits[piece], labels[piece])
        return combined(parts)

    with patch.object(metrics_module, "PIECE_NUMBERS", least * CLASSES):
        found = values(4)
    for name, value in values(1).items():
        assert found[name] == pytest.approx(value, abs=1e-6 if name in FLOAT32 else 1e-12, nan_ok=True), name


def test_nothing_to_score_is_no_number() -> None:
    accumulator = MetricAccumulator(comm=SingleProcessComm(), task=SINGLE, metrics=made("auroc,log-loss"))
    assert all(math.isnan(value) for value in accumulator.compute().values())


def test_metrics_that_were_used_before_begin_again() -> None:
    used = OBJECTS["F1Score"]()
    used.update(torch.tensor([0, 0, 0]), torch.tensor([1, 2, 3]))
    before = float(used.compute())
    assert value_of({"f1": used}) == value_of({"f1": OBJECTS["F1Score"]()})
    assert float(used.compute()) == before


def test_binary_objects_get_the_probability_of_the_second_class() -> None:
    given = torchmetrics.AUROC(task="binary")
    assert value_of({"auc": given}, SINGLE, 2) == value_of("auroc", SINGLE, 2)


def test_collections_of_torchmetrics_are_metrics_by_name() -> None:
    pair = torchmetrics.MetricCollection({"f1": OBJECTS["F1Score"](), "auc": OBJECTS["AUROC"]()})
    assert [each.name for each in made(pair)] == ["auc", "f1"]


@pytest.mark.parametrize(
    ("names", "task", "classes", "says"),
    [
        ("aurok", SINGLE, CLASSES, "did you mean auroc"),
        ("mse", SINGLE, CLASSES, "for numbers"),
        ("f1", SINGLE, CLASSES, "one of two classes"),
        ("kappa", MULTI, CLASSES, "several labels per node"),
        ({"f1": torchmetrics.F1Score(task="multiclass", num_classes=7)}, SINGLE, CLASSES, "as many classes"),
        ({"f1": torchmetrics.F1Score(task="binary")}, SINGLE, CLASSES, "same shape"),
        ({"error": torchmetrics.MeanSquaredError()}, SINGLE, CLASSES, "same shape"),
        ({"curve": torchmetrics.ROC(task="binary")}, SINGLE, 2, "a tuple"),
        (
            {"f1": torchmetrics.F1Score(task="multiclass", num_classes=CLASSES, average="none")},
            SINGLE,
            CLASSES,
            "tensor",
        ),
        ({"it": Raising()}, SINGLE, CLASSES, "ZeroDivisionError: not today"),
        ({"it": Bootstrapped()}, SINGLE, CLASSES, "draws random numbers"),
        ({"accuracy": MeanOfMeans()}, SINGLE, CLASSES, "accuracy is taken"),
        ({"it": torchmetrics.F1Score}, SINGLE, CLASSES, "no metric of torchmetrics"),
        ({"it": 3}, SINGLE, CLASSES, "no metric of torchmetrics"),
        ({"loss": MeanOfMeans()}, SINGLE, CLASSES, "cannot be read"),
        ("auroc,auroc", SINGLE, CLASSES, "different names"),
        ("auroc,,f1-macro", SINGLE, CLASSES, "cannot be read"),
        (7, SINGLE, CLASSES, "cannot be read"),
    ],
)
def test_what_does_not_fit_is_refused(names: object, task: NodeTask, classes: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        made(names, task, classes)


def test_a_trial_changes_no_random_draws() -> None:
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    with pytest.raises(InputError):
        made({"it": Bootstrapped()})
    made("auroc,log-loss,calibration-error")
    assert torch.equal(torch_before, torch.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()  # type: ignore[index]


def test_names_of_the_own_metric_need_nothing() -> None:
    assert made("accuracy") == []
    assert made("") == []
    assert parse_metrics(None) == MetricRequest()
