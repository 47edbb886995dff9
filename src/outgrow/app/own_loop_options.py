"""Which options a training loop of the user's own may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from outgrow.core.errors import InputError
from outgrow.training.config import TrainConfig
from outgrow.training.link_training import LINK_TRAINING_OPTIONS
from outgrow.training.loop_options import open_option_names


def refuse_loop_options(config: TrainConfig, options: Mapping[str, object]) -> None:
    """Refuse what `og.train` takes and `prepare` leaves to the user's loop; unknown names are refused later."""
    of_loop = {each.name for each in fields(TrainConfig)} | open_option_names(config.optimizer, config.schedule)
    for name, value in options.items():
        if name in _OF_TRAIN or (name in of_loop and name not in _OF_STEPS):
            raise InputError(
                f"{name} is an option of the loop, which is your own",
                needed="options of batches, evaluation, precision and the task",
                got=f"{name}={value!r}",
                repair=f"leave {name} out, or use og.train",
            )


_OF_TRAIN = ("workers", "out", "resume", "progress", "callbacks", "allow_changed_data")
_OF_STEPS = (
    *("seed", "batch_size", "fanout", "weighted", "sampler", "temporal_strategy", "precision", "inexact"),
    *("embedding_optimizer", "embedding_lr"),
    *("eval", "val", "test", "eval_fanout", "eval_batch_size", "metrics"),
    *("task", "targets", "class_weight", "label_smoothing", "pos_weight", "loss"),
    *LINK_TRAINING_OPTIONS,
    *("val_links", "test_links", "split_seed", "link_relations"),
    *("rank_self", "ranking_candidates"),
)
"""Fields of `TrainConfig` that steps and evaluations depend on."""
