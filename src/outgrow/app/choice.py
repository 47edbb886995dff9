"""``strategy="auto"``: the strategy that a plan chooses, and one sentence on why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from outgrow.app.crew import Workers
from outgrow.app.plan_table import sentence
from outgrow.app.planning import machine_for, plan_for, question_for
from outgrow.app.strategies import strategy_of
from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.planning.fixes import fixes
from outgrow.planning.planner import Plan
from outgrow.planning.traffic import Place
from outgrow.runtime.elastic import group_hosts
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.sampled import Sampled
from outgrow.training.config import TrainConfig

_GIB = 1 << 30


class Crew(NamedTuple):
    """Who trains.

    Attributes:
        workers: How many.
        hosts: On how many hosts.
        device: What they compute on.
        memory: Most memory of one worker, such as ``"2GiB"``; None for what the machine has.
    """

    workers: int
    hosts: int
    device: str
    memory: str | None = None

    @staticmethod
    def of(workers: Workers, memory: str | None = None) -> Crew:
        """These workers, on this host or on those of their group."""
        return Crew(workers.number, min(group_hosts(), workers.number), workers.device, memory)


def strategy_for(
    choice: str | Strategy, options: Mapping[str, object], graph: Graph, model: Model, config: TrainConfig, crew: Crew
) -> tuple[Strategy, str]:
    """The strategy that is meant, and one sentence on why.

    Args:
        choice: ``"auto"``, a name, or a strategy.
        options: Of the strategy, by name. With ``"auto"`` they say which is meant: see `strategy_of`.
        graph: What is trained on.
        model: What is trained.
        config: In what batches.
        crew: Who trains.

    Raises:
        InputError: No such strategy, an option that it does not take, or none fits.
    """
    if choice != "auto" or options:
        return strategy_of(choice, options, batches=not config.batches.everything)
    return chosen_for(graph, model, config, crew)


def chosen_for(graph: Graph, model: Model, config: TrainConfig, crew: Crew) -> tuple[Strategy, str]:
    """The strategy with the shortest epoch, of those that train the same and fit; and one sentence on why.

    Of one worker memory decides alone: nothing that is done to move less is worth it where nothing moves.

    Raises:
        InputError: None fits; with numbered fixes.
    """
    if model.decoder is not None:
        usual = _usual(config)
        return usual, f"strategy {usual.name}: models of links are not planned"
    places = [Place(workers=crew.workers, hosts=crew.hosts)]
    profile, measured = machine_for(None, places[0], crew.device)
    found = plan_for(graph, model, config, profile, places, crew.memory)
    best = found.chosen
    if best is None or best.estimate is None:
        return _by_default(found, config, crew) or _refuse(graph, model, config, crew, found)
    strategy = best.estimate.strategy
    if crew.workers == 1:
        held = f"{best.estimate.peak_bytes / _GIB:,.2f} GiB of {found.memory / _GIB:,.2f} estimated"
        return strategy, f"strategy {strategy.name}: it fits into memory, {held}"
    told = sentence(found)
    return strategy, told if measured else f"{told}, on a typical machine: outgrow calibrate measures this one"


def _by_default(found: Plan, config: TrainConfig, crew: Crew) -> tuple[Strategy, str] | None:
    """Where links between hosts were never measured."""
    unknown = [each for each in found.candidates if each.estimate is None and "nothing is known" in each.why_not]
    if not unknown or crew.memory is not None:
        return None
    usual = _usual(config)
    return usual, f"strategy {usual.name}: {unknown[0].why_not}"


def _usual(config: TrainConfig) -> Strategy:
    return Full() if config.batches.everything else Sampled()


def _refuse(graph: Graph, model: Model, config: TrainConfig, crew: Crew, found: Plan) -> tuple[Strategy, str]:
    """No strategy can train this: say what each would need, and what would do."""
    places = [Place(workers=crew.workers, hosts=crew.hosts)]
    numbered = fixes(question_for(graph, model, config, found.profile, places, crew.memory))
    raise InputError(
        "no strategy can train this model on this graph here",
        needed="; ".join(f"{each.name}: {each.why_not}" for each in found.candidates if each.estimate is not None)
        or "; ".join(f"{each.name}: {each.why_not}" for each in found.candidates),
        got=f"{found.memory / _GIB:,.2f} GiB for each of {crew.workers} workers",
        repair="one of: " + "; ".join(f"{number}. {fix}" for number, fix in enumerate(numbered, 1)),
    )
