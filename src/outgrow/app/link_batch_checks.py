"""Checks of the options of links beside the strategy: batches of links, or steps over the whole graph."""

from __future__ import annotations

from outgrow.core.errors import InputError
from outgrow.engine.link_options import ALL
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig
from outgrow.training.link_training import K_VS_ALL


def validate_link_batches(strategy: Strategy, config: TrainConfig, count: int) -> None:
    """Check that links can be trained on in the way of a strategy.

    Args:
        strategy: The strategy.
        config: Options of training.
        count: Number of links to train on, if they are drawn in batches.

    Raises:
        InputError: An option belongs to the other kind of strategies, or a batch cannot be drawn.
    """
    if strategy.uses_minibatches:
        _validate_batches(strategy.name, config, count)
    elif config.exclude is not None:
        raise InputError(
            f"strategy {strategy.name} trains on the whole graph, and excludes nothing by batch",
            needed="hide, the share of the linked pairs whose edges a step hides; or a strategy that draws batches",
            got=f"exclude {config.exclude}",
            repair="give hide, such as hide=0.1, or --strategy sampled with --batch-size",
        )


def _validate_batches(name: str, config: TrainConfig, count: int) -> None:
    given = [f"{option} {getattr(config, option)}" for option in ("link_steps", "hide") if _is_given(config, option)]
    if given:
        raise InputError(
            f"strategy {name} draws batches of links, not steps over the whole graph",
            needed="batch_size for the links of a step, exclude for what layers do not see of them",
            got=" and ".join(given),
            repair="leave link_steps and hide out; or choose strategy full, offload or tensor",
        )
    if config.link_loss == K_VS_ALL or config.negative_sampling == ALL:
        raise InputError(
            f"strategy {name} computes the rows of a batch, not those of all nodes",
            needed="negatives that are drawn: negative_sampling uniform, shared, degree or in-batch",
            got=f"link_loss {config.link_loss}, negative_sampling {config.negative_sampling}: all nodes are scored",
            repair="give --set negative_sampling=shared --set negatives=1000, say; or choose strategy full",
        )
    require_no_temporal_draws(config, "links")
    require_batch_size(config, count, "links")


def require_no_temporal_draws(config: TrainConfig, what: str) -> None:
    """Check that neighbours of the ends of links or edges are drawn whatever their times.

    Raises:
        InputError: They are drawn before a time.
    """
    if config.temporal_strategy is not None:
        raise InputError(
            f"{what} cannot be trained on with temporal draws",
            needed=f"{what} without times of their own: both ends would be drawn at that time",
            got=f"temporal_strategy {config.temporal_strategy}",
            repair="leave temporal_strategy out",
        )


def require_batch_size(config: TrainConfig, count: int, what: str) -> None:
    """Check that there are as many links or edges to train on as a batch has.

    Raises:
        InputError: There are fewer.
    """
    if config.batch_size is not None and config.batch_size > count:
        raise InputError(
            f"a batch is larger than the {what} to train on",
            needed=f"at most {count:,} {what} in a batch",
            got=f"batch_size {config.batch_size:,}",
            repair=f"give a smaller --batch-size (batch_size), or leave it out for all {what} in one step",
        )


def _is_given(config: TrainConfig, name: str) -> bool:
    return bool(getattr(config, name) != TrainConfig.__dataclass_fields__[name].default)
