"""What each strategy is estimated to take: a pure function of a workload, a machine and the strategy."""

from __future__ import annotations

from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.full import estimate_full
from outgrow.planning.estimators.migrate import estimate_migrate
from outgrow.planning.estimators.offload import estimate_offload
from outgrow.planning.estimators.orchestrate import estimate_orchestrate
from outgrow.planning.estimators.sampled import estimate_sampled
from outgrow.planning.estimators.split import estimate_split
from outgrow.planning.estimators.tensor import estimate_tensor
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
"""The strategies of which something is estimated."""


def estimate_strategy(strategy: Strategy, work: Workload, costs: CostModel) -> Estimate:
    """Seconds of an epoch by part, bytes by link and kind, and the most that a worker holds.

    Args:
        strategy: One of Outgrow's. Of `offload` in chunks that are not given, as few are taken as fit.
        work: What is trained.
        costs: On what machine, by how many workers, with how much memory.

    Raises:
        KeyError: Nothing is known of a link that is crossed.
    """
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
