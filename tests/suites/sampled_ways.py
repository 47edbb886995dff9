"""Strategies of mini-batches with every sampler, for the exactness suite."""

from __future__ import annotations

from dataclasses import replace

from outgrow.engine.batches import BatchConfig
from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR, WITH_REPLACEMENT
from outgrow.graph.sampling.temporal_sampler import LAST, UNIFORM
from outgrow.strategies.base import Strategy
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel

FEW = BatchConfig(size=7, fanout=(3, 2, 4))
COLD = Orchestrate(hot_ratio=0.0)
SAMPLED_BY = {
    "labor": replace(FEW, sampler=LABOR),
    "labor-by-weight": replace(FEW, sampler=LABOR, weighted=True),
    "replaced": replace(FEW, sampler=WITH_REPLACEMENT),
    "temporal": replace(FEW, temporal_strategy=UNIFORM),
    "temporal-last": replace(FEW, fanout=((1, 2, 1), -1, 4), temporal_strategy=LAST),
    "fastgcn": replace(FEW, fanout=(15, 12, 20), sampler=FASTGCN),
}
"""Batches by samplers other than the default, as ways name them."""
SAMPLED_WAYS: dict[str, tuple[Strategy, BatchConfig]] = {
    f"{name}-{sampler}": (strategy, batches)
    for name, strategy in (
        ("sampled", Sampled()),
        ("split", SplitParallel()),
        ("migrate", Migrate(move_model=True, merge=False)),
        ("orchestrate", COLD),
    )
    for sampler, batches in SAMPLED_BY.items()
    if strategy.draws_by_time or not batches.is_temporal
}
