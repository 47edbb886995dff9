"""Options of the loop that describe a task of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outgrow.core.errors import InputError
from outgrow.nn.tasks import MultiLabel, NodeClassification, NodeRegression
from outgrow.training.config import TrainConfig

TASK_OPTIONS = {
    "class_weight": NodeClassification.kind,
    "label_smoothing": NodeClassification.kind,
    "pos_weight": MultiLabel.kind,
    "loss": NodeRegression.kind,
}
"""The task that each option belongs to."""


def given_task_options(config: TrainConfig) -> dict[str, Any]:
    """Return the options of tasks of nodes that are given."""
    return {name: value for name in TASK_OPTIONS if (value := getattr(config, name)) not in (None, 0.0)}


def require_options_of(given: Mapping[str, Any], kinds: Sequence[str]) -> None:
    """Check that options belong to one of some tasks.

    Raises:
        InputError: An option belongs to another task.
    """
    for option in given:
        if TASK_OPTIONS[option] not in kinds:
            raise InputError(
                f"option {option} belongs to another task",
                needed=f"{option} with task {TASK_OPTIONS[option]}",
                got=f"{option} with task {' and '.join(dict.fromkeys(kinds))}",
                repair=f"leave {option} out, or give --task {TASK_OPTIONS[option]}",
            )
