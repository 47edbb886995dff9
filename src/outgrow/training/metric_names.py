"""Metrics of nodes by name, such as ``auroc``: what makes them, and whether a higher value is better."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice

if TYPE_CHECKING:
    from torchmetrics import Metric

MULTICLASS, MULTILABEL, REGRESSION = "multiclass", "multilabel", "regression"
_WORDS = {MULTICLASS: "one class per node", MULTILABEL: "several labels per node", REGRESSION: "numbers"}
_CLASSES, _NUMBERS, _OWN = "torchmetrics.classification", "torchmetrics.regression", "outgrow.training.mean_metrics"


class _Recipe(NamedTuple):
    """What makes a metric.

    Attributes:
        module: Module of its class.
        kind: Name of its class.
        options: Arguments of its constructor.
        size: Argument that takes the number of classes or labels; empty for none.
    """

    module: str
    kind: str
    options: Mapping[str, object] = {}
    size: str = ""


class _NamedMetric(NamedTuple):
    """A metric that has a name.

    Attributes:
        recipes: What makes it, by kind of the targets. ``"binary"`` is preferred where there are two classes.
        higher_is_better: Whether a higher value is better.
    """

    recipes: Mapping[str, _Recipe]
    higher_is_better: bool = True


def _per_class(kind: str, average: str, **others: object) -> dict[str, _Recipe]:
    """Return the recipes of a metric that is averaged over classes or labels."""
    options = {"average": average, **others}
    return {
        MULTICLASS: _Recipe(_CLASSES, f"Multiclass{kind}", options, "num_classes"),
        MULTILABEL: _Recipe(_CLASSES, f"Multilabel{kind}", options, "num_labels"),
    }


def _of_curve(binary: str, multiclass: str, multilabel: str) -> dict[str, _Recipe]:
    """Return the recipes of a metric of curves, averaged over classes that have one."""
    return {
        "binary": _Recipe(_CLASSES, binary),
        MULTICLASS: _Recipe(_OWN, multiclass, {"average": "none"}, "num_classes"),
        MULTILABEL: _Recipe(_OWN, multilabel, {"average": "none"}, "num_labels"),
    }


def _of_positives(kind: str) -> dict[str, _Recipe]:
    return {"binary": _Recipe(_CLASSES, f"Binary{kind}")}


def _of_numbers(kind: str, **options: object) -> dict[str, _Recipe]:
    return {REGRESSION: _Recipe(_NUMBERS, kind, options)}


_LOG_LOSS = _NamedMetric(dict.fromkeys((MULTICLASS, MULTILABEL), _Recipe(_OWN, "LogLoss")), False)
NODE_METRICS: Mapping[str, _NamedMetric] = {
    "accuracy": _NamedMetric(_per_class("Accuracy", "micro")),
    "accuracy-balanced": _NamedMetric(_per_class("Recall", "macro")),
    "precision": _NamedMetric(_of_positives("Precision")),
    "recall": _NamedMetric(_of_positives("Recall")),
    "f1": _NamedMetric(_of_positives("F1Score")),
    "precision-macro": _NamedMetric(_per_class("Precision", "macro")),
    "recall-macro": _NamedMetric(_per_class("Recall", "macro")),
    "f1-micro": _NamedMetric(_per_class("F1Score", "micro")),
    "f1-macro": _NamedMetric(_per_class("F1Score", "macro")),
    "f1-weighted": _NamedMetric(_per_class("F1Score", "weighted")),
    "auroc": _NamedMetric(_of_curve("BinaryAUROC", "MeanAUROC", "MeanLabelAUROC")),
    "average-precision": _NamedMetric(
        _of_curve("BinaryAveragePrecision", "MeanAveragePrecision", "MeanLabelAveragePrecision")
    ),
    "mcc": _NamedMetric(
        {
            MULTICLASS: _Recipe(_CLASSES, "MulticlassMatthewsCorrCoef", size="num_classes"),
            MULTILABEL: _Recipe(_CLASSES, "MultilabelMatthewsCorrCoef", size="num_labels"),
        }
    ),
    "kappa": _NamedMetric({MULTICLASS: _Recipe(_CLASSES, "MulticlassCohenKappa", size="num_classes")}),
    "log-loss": _LOG_LOSS,
    "nll": _LOG_LOSS,
    "calibration-error": _NamedMetric(
        {
            MULTICLASS: _Recipe(_CLASSES, "MulticlassCalibrationError", size="num_classes"),
            # Of all labels together, each a prediction of its own.
            MULTILABEL: _Recipe(_CLASSES, "BinaryCalibrationError"),
        },
        higher_is_better=False,
    ),
    "mae": _NamedMetric(_of_numbers("MeanAbsoluteError"), False),
    "mse": _NamedMetric(_of_numbers("MeanSquaredError"), False),
    "rmse": _NamedMetric(_of_numbers("MeanSquaredError", squared=False), False),
    "r2": _NamedMetric(_of_numbers("R2Score")),
    "pearson": _NamedMetric({REGRESSION: _Recipe(_OWN, "MeanPearson", size="num_outputs")}),
}
CURVES = frozenset({"auroc", "average-precision"})
"""Metrics that need nodes of a class, and nodes of others."""

KEEPING = CURVES | {"calibration-error", "pearson"}
"""Metrics that keep the predictions of all nodes."""


def make_named_metric(name: str, target_kind: str, num_outputs: int) -> Metric:
    """Return a new metric.

    Args:
        name: Its name.
        target_kind: What nodes have: see `NodeTask`.
        num_outputs: Number of outputs of the model: classes, labels or numbers.

    Raises:
        InputError: There is no metric of that name, or it is for other targets.
    """
    named = validate_choice("metric", name, NODE_METRICS)
    recipe = named.recipes.get(target_kind)
    if target_kind == MULTICLASS and num_outputs == 2:
        recipe = named.recipes.get("binary", recipe)
    if recipe is None:
        others = [each for each, other in NODE_METRICS.items() if _is_for(other, target_kind, num_outputs)]
        raise InputError(
            f"the metric {name} is not for these targets",
            needed=f"a metric for {_WORDS.get(target_kind, 'this task')}: {', '.join(others) or 'one given as object'}",
            got=f"{name}, for {' or '.join(_describe(named))}",
            repair="choose one of these, or give an object of torchmetrics: og.train(metrics={...})",
        )
    size = {recipe.size: num_outputs} if recipe.size else {}
    # Imported by name: torchmetrics takes a second to import, and runs without metrics need it not.
    made: Metric = getattr(importlib.import_module(recipe.module), recipe.kind)(**recipe.options, **size)
    return made


def _is_for(named: _NamedMetric, target_kind: str, num_outputs: int) -> bool:
    binary = target_kind == MULTICLASS and num_outputs == 2 and "binary" in named.recipes
    return target_kind in named.recipes or binary


def _describe(named: _NamedMetric) -> list[str]:
    words = {**_WORDS, "binary": "one of two classes per node"}
    return [words[kind] for kind in named.recipes]
