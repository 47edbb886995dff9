"""Metrics by name are what their definitions say."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
import torch

import plain_metrics as plain
from metric_objects import CLASSES, MULTI, ROWS, SINGLE, probabilities, value_of
from outgrow.nn.tasks import NodeRegression
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.training import metrics as metrics_module
from outgrow.training.metric_fit import make_node_metrics
from outgrow.training.metric_request import parse_metrics
from outgrow.training.metrics import MetricAccumulator

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


OF_NUMBERS: dict[str, Reference] = {
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
    task = NodeRegression()
    accumulator = MetricAccumulator(
        comm=SingleProcessComm(), task=task, metrics=make_node_metrics(parse_metrics(name), task, labels[:0], 1)
    )
    with patch.object(metrics_module, "PIECE_NUMBERS", least):
        for part in torch.arange(ROWS).split(9):
            accumulator.update(part, logits[part], labels[part])
        known = ~np.isnan(targets)
        assert accumulator.compute()[name] == pytest.approx(OF_NUMBERS[name](targets[known], guesses[known]), rel=1e-6)
