"""``strategy="auto"``: the strategy that a plan chooses, and one sentence on why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, NoReturn

from outgrow.app.compatibility import require_batches
from outgrow.app.memory_check import other_bytes, require_room
from outgrow.app.plan.machine_profiles import machine_for
from outgrow.app.plan.question import COUNTED_EDGES, Site, question_for
from outgrow.app.plan.table import numbered, sentence
from outgrow.app.runs.workers import Workers
from outgrow.app.strategy_registry import strategy_of
from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.registry import estimate
from outgrow.planning.planner import Plan, Question, fits, pace_of, plan, unmeasured
from outgrow.planning.traffic import Place
from outgrow.runtime.system.environment import group_hosts
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.offload.strategy import Offload
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
        InputError: No such strategy, an option that it does not take, or none fits; or the one that is meant cannot
            train this, or needs more memory than there is.
    """
    if choice != "auto" or options:
        meant, reason = strategy_of(choice, options, batches=not config.batches.everything)
        require_batches(graph, model, meant, config)
        require_room(meant, graph, model, config, workers=crew.workers, device=crew.device)
        return meant, reason
    return chosen_for(graph, model, config, crew)


def strategy_asked(
    choice: str, options: Mapping[str, object], graph: Graph, model: Model, config: TrainConfig, workers: Workers
) -> tuple[Strategy, str]:
    """`strategy_for` what was typed: with a limit of memory alone, the choice is left to a plan that keeps to it."""
    memory = options.get("memory")
    ways = {} if choice == "auto" and set(options) == {"memory"} else options
    crew = Crew.of(workers, None if memory is None else str(memory))
    return strategy_for(choice, ways, graph, model, config, crew)


def chosen_for(graph: Graph, model: Model, config: TrainConfig, crew: Crew) -> tuple[Strategy, str]:
    """The strategy with the shortest epoch, of those that train the same and fit; and one sentence on why.

    Of one worker memory decides alone: nothing that is done to move less is worth it where nothing moves.

    Raises:
        InputError: None fits; with numbered fixes.
    """
    if model.decoder is not None:
        usual = _usual(config, crew)
        return usual, f"strategy {usual.name}: models of links are not planned"
    if crew.workers == 1 and crew.memory is not None and graph.num_edges > COUNTED_EDGES:
        usual = _usual_with_room(graph, model, config, crew)
        return usual, f"strategy {usual.name}: memory is limited, and nothing travels between workers"
    place = Place(workers=crew.workers, hosts=crew.hosts)
    profile, measured = machine_for(None, place, crew.device)
    unknown = unmeasured(place, profile)
    if unknown is not None:
        usual = _usual_with_room(graph, model, config, crew)
        return usual, f"strategy {usual.name}: {unknown}"
    asked = question_for(graph, model, config, Site(profile, [place], crew.memory))
    if crew.workers == 1 and profile.device.shared:
        asked = _without(other_bytes(asked.work, pace_of(asked, place)), asked)
    if crew.workers == 1 and crew.memory is None:
        usual, pace = _usual(config, crew), pace_of(asked, place)
        alone = estimate(usual, asked.work, pace)
        if fits(alone, pace):
            return usual, _held(alone, pace.memory)
    found = plan(asked)
    best = found.chosen
    if best is None or best.estimate is None:
        _refuse(found, crew)
    strategy = best.estimate.strategy
    if crew.workers == 1:
        return strategy, _held(best.estimate, found.memory)
    told = sentence(found)
    return strategy, told if measured else f"{told}, on a typical machine: outgrow calibrate measures this one"


def _held(found: Estimate, memory: int) -> str:
    held = f"{found.peak_bytes / _GIB:,.2f} GiB of {memory / _GIB:,.2f} estimated"
    return f"strategy {found.strategy.name}: it fits into memory, {held}"


def _usual(config: TrainConfig, crew: Crew) -> Strategy:
    """What is trained by where nothing is compared."""
    if not config.batches.everything:
        return Sampled()
    return Full() if crew.memory is None else Offload(memory=crew.memory)


def _usual_with_room(graph: Graph, model: Model, config: TrainConfig, crew: Crew) -> Strategy:
    usual = _usual(config, crew)
    require_room(usual, graph, model, config, workers=crew.workers, device=crew.device)
    return usual


def _without(other: int, asked: Question) -> Question:
    """On a machine of which so much memory is taken."""
    device = asked.profile.device
    left = replace(device, memory_bytes=max(0, device.memory_bytes - other))
    return replace(asked, profile=replace(asked.profile, device=left))


def _refuse(found: Plan, crew: Crew) -> NoReturn:
    """No strategy can train this: say what each would need, and what would do."""
    needs = [f"{each.name}: {each.why_not}" for each in found.candidates if each.estimate is not None]
    raise InputError(
        "no strategy can train this model on this graph here",
        needed="; ".join(needs or [f"{each.name}: {each.why_not}" for each in found.candidates]),
        got=f"{found.memory / _GIB:,.2f} GiB for each of {crew.workers} workers",
        repair=f"one of: {numbered(found)}",
    )
