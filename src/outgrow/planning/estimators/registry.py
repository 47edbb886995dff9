"""What each strategy is estimated to take: a pure function of a workload, a machine and the strategy."""

from __future__ import annotations

from outgrow.planning.cost_model import Pace
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.full import estimate_of_full
from outgrow.planning.estimators.migrate import estimate_of_migrate
from outgrow.planning.estimators.offload import estimate_of_offload
from outgrow.planning.estimators.orchestrate import estimate_of_orchestrate
from outgrow.planning.estimators.sampled import estimate_of_sampled
from outgrow.planning.estimators.split import estimate_of_split
from outgrow.planning.estimators.tensor import estimate_of_tensor
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


def estimate(strategy: Strategy, work: Workload, pace: Pace) -> Estimate:
    """Seconds of an epoch by part, bytes by link and kind, and the most that a worker holds.

    Args:
        strategy: One of Outgrow's. Of `offload` in chunks that are not given, as few are taken as fit.
        work: What is trained.
        pace: On what machine, by how many workers, with how much memory.

    Raises:
        KeyError: Nothing is known of a link that is crossed.
    """
    match strategy:
        case Full():
            return estimate_of_full(strategy, work, pace)
        case TensorParallel():
            return estimate_of_tensor(strategy, work, pace)
        case Offload():
            return estimate_of_offload(strategy, work, pace)
        case Sampled():
            return estimate_of_sampled(strategy, work, pace)
        case SplitParallel():
            return estimate_of_split(strategy, work, pace)
        case Migrate():
            return estimate_of_migrate(strategy, work, pace)
        case Orchestrate():
            return estimate_of_orchestrate(strategy, work, pace)
        case _:
            raise TypeError(f"no estimate of {type(strategy).__name__}")
