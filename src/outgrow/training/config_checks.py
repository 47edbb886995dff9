"""Checks of the ranges of options of training."""

from __future__ import annotations

from typing import Any

from outgrow.core.validation import out_of_range_error, validate_choice
from outgrow.engine.embeddings.row_optimizers import EMBEDDING_OPTIMIZERS

_COUNTS = (
    "epochs",
    "eval_every",
    "eval_batch_size",
    "checkpoint_every",
    "checkpoint_steps",
    "patience",
    "batch_size",
    "negatives",
    "link_steps",
    "accumulate",
)


def validate_ranges(config: Any) -> None:
    """Check that numbers are in their ranges.

    Args:
        config: A `TrainConfig`.

    Raises:
        InputError: One is not.
    """
    for name in _COUNTS:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise out_of_range_error(name, "at least 1", value)
    if not 0 < config.lr < float("inf"):
        raise out_of_range_error("lr", "a positive number", config.lr)
    if config.embedding_lr is not None and not 0 < config.embedding_lr < float("inf"):
        raise out_of_range_error("embedding_lr", "a positive number", config.embedding_lr)
    if config.embedding_optimizer is not None:
        validate_choice("embedding_optimizer", config.embedding_optimizer, dict.fromkeys(EMBEDDING_OPTIMIZERS))
    if not 0 <= config.weight_decay < float("inf"):
        raise out_of_range_error("weight_decay", "zero or a positive number", config.weight_decay)
    if config.clip_grad_norm is not None and not 0 < config.clip_grad_norm < float("inf"):
        raise out_of_range_error("clip_grad_norm", "a positive number", config.clip_grad_norm)
    if config.ema is not None and not 0 < config.ema < 1:
        raise out_of_range_error("ema", "above 0, below 1", config.ema)
    if not 0 <= config.label_smoothing < 1:
        raise out_of_range_error("label_smoothing", "at least 0, below 1", config.label_smoothing)
    for name in ("val_links", "test_links", "hide"):
        if not 0 <= getattr(config, name) < 1:
            raise out_of_range_error(name, "zero or more, below 1", getattr(config, name))
    if config.val_links + config.test_links >= 1:
        raise out_of_range_error(
            "val_links + test_links",
            "below 1, so that links are left to train on",
            config.val_links + config.test_links,
        )
    for name in ("seed", "split_seed"):
        if not 0 <= getattr(config, name) < 1 << 63:
            raise out_of_range_error(name, "from 0 to 2^63 - 1", getattr(config, name))
