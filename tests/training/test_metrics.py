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
from torch import Tensor

import plain_metrics as plain
from metric_objects import Bootstrapped, ByPosition, MeanOfMeans, Overwritten, Raising
from outgrow.core.errors import InputError
from outgrow.nn.tasks import MultiLabel, NodeTask, SingleLabel
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.training import metric_states
from outgrow.training import metrics as metrics_module
from outgrow.training.metric_fit import make_node_metrics
from outgrow.training.metric_names import NODE_METRICS, make_named_metric
from outgrow.training.metric_request import MetricRequest, parse_metrics
from outgrow.training.metrics import MetricAccumulator, NodeMetric, quiet_metrics

ROWS, CLASSES = 60, 4
SINGLE, MULTI = SingleLabel(), MultiLabel()


def rows_of(task: NodeTask, classes: int = CLASSES, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Logits that know something of the labels, some of them with ties."""
    random = np.random.default_rng(3)
    labels = torch.from_numpy(random.integers(0, classes, rows))
    logits = torch.from_numpy(random.normal(0, 1, (rows, classes)).round(1))
    if task is MULTI:
        labels = torch.from_numpy(random.integers(0, 2, (rows, classes)).astype(np.uint8))
        return logits + labels, labels
    logits[torch.arange(rows), labels] += 0.7
    return logits, labels


def made(names: object, task: NodeTask = SINGLE, classes: int = CLASSES) -> list[NodeMetric]:
    return make_node_metrics(parse_metrics(names), task, rows_of(task, classes)[1][:0], classes)


def value_of(names: object, task: NodeTask = SINGLE, classes: int = CLASSES) -> float:
    accumulator = MetricAccumulator(comm=SingleProcessComm(), task=task, metrics=made(names, task, classes))
    accumulator.update(torch.arange(ROWS), *rows_of(task, classes))
    [value] = accumulator.compute().values()
    return value


def probabilities(task: NodeTask, classes: int = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    """Labels and probabilities."""
    logits, labels = rows_of(task, classes)
    chances = torch.sigmoid(logits) if task is MULTI else torch.softmax(logits, 1)
    return labels.numpy(), chances.numpy()


Reference = Callable[[np.ndarray, np.ndarray], float]


def of_guesses(average: str, of: str = "f1") -> Reference:
    def reference(y: np.ndarray, p: np.ndarray) -> float:
        truth, guess = (plain.one_hot(each, p.shape[1]) for each in (y, p.argmax(1)))
        return plain.f_score(truth, guess, average, of=of)

    return reference


def of_labels(average: str, of: str = "f1") -> Reference:
    return lambda y, p: plain.f_score(y.astype(int), (p > 0.5).astype(int), average, of=of)


def of_positives(of: str) -> Reference:
    return lambda y, p: plain.f_score(y[:, None], p.argmax(1)[:, None], "micro", of=of)


def log_loss(y: np.ndarray, p: np.ndarray) -> float:
    return float(-np.log(p[np.arange(len(y)), y]).mean())


BY_CLASS: dict[str, Reference] = {
    "accuracy-balanced": of_guesses("macro", "recall"),
    "precision-macro": of_guesses("macro", "precision"),
    "recall-macro": of_guesses("macro", "recall"),
    "f1-micro": of_guesses("micro"),
    "f1-macro": of_guesses("macro"),
    "f1-weighted": of_guesses("weighted"),
    "auroc": lambda y, p: plain.over_classes(plain.roc_auc, plain.one_hot(y, CLASSES), p),
    "average-precision": lambda y, p: plain.over_classes(plain.average_precision, plain.one_hot(y, CLASSES), p),
    "mcc": lambda y, p: plain.correlation(y, p.argmax(1), CLASSES),
    "kappa": lambda y, p: plain.kappa(y, p.argmax(1), CLASSES),
    "log-loss": log_loss,
    "nll": log_loss,
    "calibration-error": lambda y, p: plain.calibration_error(p.max(1), p.argmax(1) == y),
}
BINARY: dict[str, Reference] = {
    "precision": of_positives("precision"),
    "recall": of_positives("recall"),
    "f1": of_positives("f1"),
    "auroc": lambda y, p: plain.roc_auc(y, p[:, 1]),
    "average-precision": lambda y, p: plain.average_precision(y, p[:, 1]),
    "f1-macro": of_guesses("macro"),
}
BY_LABEL: dict[str, Reference] = {
    "accuracy": lambda y, p: float((y == (p > 0.5)).mean()),
    "accuracy-balanced": of_labels("macro", "recall"),
    "precision-macro": of_labels("macro", "precision"),
    "recall-macro": of_labels("macro", "recall"),
    "f1-micro": of_labels("micro"),
    "f1-macro": of_labels("macro"),
    "f1-weighted": of_labels("weighted"),
    "auroc": lambda y, p: plain.over_classes(plain.roc_auc, y, p),
    "average-precision": lambda y, p: plain.over_classes(plain.average_precision, y, p),
    "mcc": lambda y, p: plain.correlation(y.ravel(), (p.ravel() > 0.5).astype(int), 2),
    "log-loss": lambda y, p: float(-np.log(np.where(y == 1, p, 1 - p)).mean()),
    "calibration-error": lambda y, p: plain.calibration_error(p.ravel(), y.ravel()),
}


@pytest.mark.parametrize("name", BY_CLASS)
def test_of_classes_as_by_defined(name: str) -> None:
    assert value_of(name) == pytest.approx(BY_CLASS[name](*probabilities(SINGLE)), abs=1e-6)


@pytest.mark.parametrize("name", BINARY)
def test_of_two_classes_as_by_defined(name: str) -> None:
    assert value_of(name, SINGLE, 2) == pytest.approx(BINARY[name](*probabilities(SINGLE, 2)), abs=1e-6)


@pytest.mark.parametrize("name", BY_LABEL)
def test_of_several_labels_as_by_defined(name: str) -> None:
    assert value_of(name, MULTI) == pytest.approx(BY_LABEL[name](*probabilities(MULTI)), abs=1e-6)


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


class Numbers(NodeTask):
    """Numbers to predict, as a task of the user's could have them."""

    metric, target_kind, larger_is_better = "error", "regression", False

    def loss(self, logits_VC: Tensor, labels_N: Tensor, total: int, rows_N: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def metric_counts(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        raise NotImplementedError

    def metric_from_counts(self, counts_T: Tensor) -> float:
        raise NotImplementedError

    def metric_input(self, logits_NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Without nodes whose number is unknown."""
        known = ~labels_N.isnan()
        return logits_NC[known, 0], labels_N[known]

    def predict(self, logits_NC: Tensor) -> Tensor:
        return logits_NC[:, 0]


OF_NUMBERS: dict[str, Reference] = {
    "mae": lambda y, p: float(abs(y - p).mean()),
    "mse": lambda y, p: float(((y - p) ** 2).mean()),
    "rmse": lambda y, p: float(np.sqrt(((y - p) ** 2).mean())),
    "r2": lambda y, p: float(1 - ((y - p) ** 2).sum() / ((y - y.mean()) ** 2).sum()),
    "pearson": lambda y, p: float(np.corrcoef(y, p)[0, 1]),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("least", [1, 1 << 20])
def test_of_numbers_as_defined(name: str, least: int) -> None:
    random = np.random.default_rng(5)
    targets = random.normal(0, 1, ROWS)
    guesses = targets + random.normal(0, 0.5, ROWS)
    targets[::7] = np.nan
    labels, logits = torch.from_numpy(targets), torch.from_numpy(guesses)[:, None]
    task = Numbers()
    accumulator = MetricAccumulator(
        comm=SingleProcessComm(), task=task, metrics=make_node_metrics(parse_metrics(name), task, labels[:0], 1)
    )
    with patch.object(metrics_module, "PIECE_NUMBERS", least):
        for part in torch.arange(ROWS).split(9):
            accumulator.update(part, logits[part], labels[part])
        known = ~np.isnan(targets)
        assert accumulator.compute()[name] == pytest.approx(OF_NUMBERS[name](targets[known], guesses[known]), rel=1e-6)


def test_objects_for_numbers() -> None:
    task, labels = Numbers(), torch.empty(0, dtype=torch.float64)
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
        ({"f1": torchmetrics.F1Score(task="multiclass", num_classes=7)}, SINGLE, CLASSES, "number of classes"),
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
