"""Metrics by their definitions, in NumPy: what those of torchmetrics are compared with. Scikit-learn gives the same."""

from __future__ import annotations

import numpy as np


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """``[n, C]`` zeros and ones."""
    return np.eye(classes, dtype=int)[labels]


def f_score(truth: np.ndarray, guess: np.ndarray, average: str, *, of: str = "f1") -> float:
    """F1, precision or recall of ``[n, C]`` zeros and ones; "macro" is over classes that occur."""
    hit, true, guessed = ((each).sum(0).astype(float) for each in (truth * guess, truth, guess))
    if average == "micro":
        hit, true, guessed = (each.sum(keepdims=True) for each in (hit, true, guessed))
    below = {"f1": (true + guessed) / 2, "precision": guessed, "recall": true}[of]
    scores = np.divide(hit, below, out=np.zeros_like(hit), where=below > 0)
    if average == "weighted":
        return float((scores * true).sum() / true.sum())
    return float(scores[true + guessed > 0].mean())


def roc_auc(truth: np.ndarray, score: np.ndarray) -> float:
    """How often a true one has the higher score of a pair; ties count half (Mann and Whitney, 1947)."""
    above = score[truth == 1][:, None] - score[truth == 0][None]
    return float(((above > 0) + 0.5 * (above == 0)).mean())


def average_precision(truth: np.ndarray, score: np.ndarray) -> float:
    """Precision at each threshold, weighted by the recall that it adds."""
    found, before = 0.0, 0.0
    for threshold in np.unique(score)[::-1]:
        taken = score >= threshold
        recall = truth[taken].sum() / truth.sum()
        found += (recall - before) * truth[taken].mean()
        before = recall
    return float(found)


def over_classes(metric: object, truth: np.ndarray, scores: np.ndarray) -> float:
    """The mean of a metric over columns."""
    assert callable(metric)
    return float(np.mean([metric(truth[:, each], scores[:, each]) for each in range(truth.shape[1])]))


def correlation(labels: np.ndarray, guess: np.ndarray, classes: int) -> float:
    """The coefficient of Matthews for any number of classes (Gorodkin, 2004): a correlation of indicators."""
    a, b = (one_hot(each, classes) - one_hot(each, classes).mean(0) for each in (labels, guess))
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def kappa(labels: np.ndarray, guess: np.ndarray, classes: int) -> float:
    """Agreement beyond chance (Cohen, 1960)."""
    chance = (one_hot(labels, classes).mean(0) * one_hot(guess, classes).mean(0)).sum()
    return float(((labels == guess).mean() - chance) / (1 - chance))


def calibration_error(sure: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error (Guo et al., 2017)."""
    place = np.ceil(sure * bins)
    return float(
        sum(abs(sure[place == each].sum() - right[place == each].sum()) for each in np.unique(place)) / len(sure)
    )
