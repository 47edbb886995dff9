"""The registry of estimators: an estimate is a pure function of the workload, the machine and the strategy."""

from __future__ import annotations

from dataclasses import replace

from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.full import estimate_full
from outgrow.planning.estimators.migrate import estimate_migrate
from outgrow.planning.estimators.offload import estimate_offload
from outgrow.planning.estimators.orchestrate import estimate_orchestrate
from outgrow.planning.estimators.sampled import estimate_sampled
from outgrow.planning.estimators.split import estimate_split
from outgrow.planning.estimators.tensor import estimate_tensor
from outgrow.planning.evaluation_time import evaluation_parts
from outgrow.planning.link_costs import add_link_costs
from outgrow.planning.workload import Workload
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel

KNOWN = (Full, TensorParallel, Offload, Sampled, SplitParallel, Migrate, Orchestrate)
"""Strategies with an estimator."""


def estimate_strategy(strategy: Strategy, work: Workload, costs: CostModel) -> Estimate:
    """Estimate the seconds of an epoch by part, the bytes by link and kind, and the peak memory of a worker.

    Args:
        strategy: One of Outgrow's strategies. If the chunks of `offload` are not set, the fewest that fit are chosen.
        work: The graph and the model.
        costs: The cost model: machine, workers and memory.

    Raises:
        KeyError: The profile has no rate of a link that is crossed.
    """
    found = _estimate_layers(strategy, work, costs)
    found = replace(found, evaluation=evaluation_parts(found, work, costs))
    found = found if work.links is None else add_link_costs(found, work, costs)
    return found.correct(costs.corrections)


def _estimate_layers(strategy: Strategy, work: Workload, costs: CostModel) -> Estimate:
    match strategy:
        case Full():
            return estimate_full(strategy, work, costs)
        case TensorParallel():
            return estimate_tensor(strategy, work, costs)
        case Offload():
            return estimate_offload(strategy, work, costs)
        case Sampled():
            return estimate_sampled(strategy, work, costs)
        case SplitParallel():
            return estimate_split(strategy, work, costs)
        case Migrate():
            return estimate_migrate(strategy, work, costs)
        case Orchestrate():
            return estimate_orchestrate(strategy, work, costs)
        case _:
            raise TypeError(f"no estimate of {type(strategy).__name__}")
