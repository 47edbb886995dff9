"""Strategies: ways to train the same model on the same graph (layer 4).

The names here are those that a user's own strategy needs; each is imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outgrow.engine.features.remote import RemoteFeatureStore as RemoteFeatureStore
    from outgrow.engine.features.remote import input_dtype as input_dtype
    from outgrow.engine.full_graph import full_forward as full_forward
    from outgrow.engine.minibatch_loop import PrefetchConfig as PrefetchConfig
    from outgrow.engine.minibatch_loop import make_sampler as make_sampler
    from outgrow.engine.model_migration import MicroBatchPlan as MicroBatchPlan
    from outgrow.ops.rng import fold_in as fold_in
    from outgrow.strategies.base import Execution as Execution
    from outgrow.strategies.base import FullGraphExecution as FullGraphExecution
    from outgrow.strategies.base import MiniBatchExecution as MiniBatchExecution
    from outgrow.strategies.base import Problem as Problem
    from outgrow.strategies.base import Step as Step
    from outgrow.strategies.base import Strategy as Strategy
    from outgrow.strategies.base import full_inference as full_inference

_HOME = {
    "Execution": "outgrow.strategies.base",
    "FullGraphExecution": "outgrow.strategies.base",
    "MicroBatchPlan": "outgrow.engine.model_migration",
    "MiniBatchExecution": "outgrow.strategies.base",
    "PrefetchConfig": "outgrow.engine.minibatch_loop",
    "Problem": "outgrow.strategies.base",
    "RemoteFeatureStore": "outgrow.engine.features.remote",
    "Step": "outgrow.strategies.base",
    "Strategy": "outgrow.strategies.base",
    "fold_in": "outgrow.ops.rng",
    "full_forward": "outgrow.engine.full_graph",
    "full_inference": "outgrow.strategies.base",
    "input_dtype": "outgrow.engine.features.remote",
    "make_sampler": "outgrow.engine.minibatch_loop",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'outgrow.strategies' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
