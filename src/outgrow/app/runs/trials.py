"""Trials: the first steps of a run, trained by each of some strategies that estimates cannot tell apart.

All of them compute the same steps, so each goes on where the one before has stopped, and the run goes on by the
fastest: nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from outgrow.app.auto_strategy import StrategyChoice
from outgrow.app.runs.result import Run
from outgrow.app.runs.session import Session
from outgrow.app.runs.signals import catch_interruption
from outgrow.app.strategy_registry import changed_options, format_options
from outgrow.nn.model import Model
from outgrow.nn.node_embedding import find_embeddings
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig
from outgrow.training.progress_events import ProgressReporter
from outgrow.training.strategy_trial import EPOCHS, collect_trainer_state, try_strategy

MOST_RIVALS = 3
"""Strategies, or options of one, beside the planned one that are tried: each is prepared anew."""
WORTH_SECONDS = 60.0
"""Least estimated seconds of a run that is worth trials, which take some seconds to prepare."""


def list_rivals(
    choice: StrategyChoice, model: Model, config: TrainConfig, callbacks: Sequence[object] = ()
) -> tuple[Strategy, ...]:
    """Return the strategies to try in a new run beside the planned one; none where trials are not worth it.

    Args:
        choice: The planned strategy, and those that estimates cannot tell from it.
        model: The model to train.
        config: Options of the training loop.
        callbacks: Callbacks of the user.
    """
    tried = choice.rivals[:MOST_RIVALS]
    # Callbacks of the user are told of one course of training; vectors of nodes lie where a strategy wants them.
    told_once = callbacks or find_embeddings(model)
    too_few = config.epochs <= EPOCHS * (1 + len(tried))
    too_short = config.epochs * choice.epoch_seconds < WORTH_SECONDS
    return () if told_once or too_few or too_short else tried


def run_with_trials(session: Session, *, resume: bool) -> Run:
    """Train a session by the fastest of its strategies, or resume it by the one that was chosen before."""
    if not session.rivals or resume:
        return session.run(resume=resume)
    session.prepare_worker()
    with catch_interruption(session.grace_seconds) as interruption:
        chosen, state = _choose_by_trial(session, session.should_stop or interruption.is_set)
    if interruption.is_set():
        # The signal has come already: the run ends after its next epoch.
        chosen = replace(chosen, should_stop=lambda: True)
    return chosen.run(resume=False, state=state)


def _choose_by_trial(session: Session, is_interrupted: Callable[[], bool]) -> tuple[Session, dict[str, Any]]:
    """Train the first steps by the session's strategy and by each rival. All workers together.

    Args:
        session: The session.
        is_interrupted: Called after each trial; true on some worker ends the trials.

    Returns:
        The session that goes on, by the fastest strategy, and the state to go on from.
    """
    comm = session.comm
    state: dict[str, Any] | None = None
    trials: list[dict[str, Any]] = []
    strategies = (session.strategy, *session.rivals)
    for strategy in strategies:
        tried = replace(session, strategy=strategy, rivals=())
        with ExitStack() as stack:
            trainer = tried.open_trainer(stack, lambda: False, state=state)
            # Workers wait for each other in every step; the slowest decides.
            seconds = max(comm.all_gather_object(try_strategy(trainer, strategy)))
            state = collect_trainer_state(trainer)
        trials.append({"strategy": strategy.name, "options": strategy.options(), "step_seconds": seconds})
        if any(comm.all_gather_object(is_interrupted())):
            break
    assert state is not None
    best = min(range(len(trials)), key=lambda number: trials[number]["step_seconds"])
    chosen = replace(session, strategy=strategies[best], rivals=(), trials=tuple(trials))
    if comm.is_rank_zero:
        ProgressReporter(session.progress_callbacks).show_note(_describe(strategies, trials, best))
        if session.directory is not None:
            record = session.directory.config
            goes_on = {"name": chosen.strategy.name, "options": chosen.strategy.options()}
            session.directory.write_json("config.json", {**record, "strategy": goes_on})
    return chosen, state


def _describe(strategies: Sequence[Strategy], trials: list[dict[str, Any]], best: int) -> str:
    names = [_describe_strategy(each) for each in strategies]
    times = ", ".join(f"{name} {each['step_seconds'] * 1e3:,.3g} ms" for name, each in zip(names, trials, strict=False))
    return f"tried for some steps: {times} a step; the run goes on by strategy {names[best]}"


def _describe_strategy(strategy: Strategy) -> str:
    options = format_options(changed_options(strategy))
    return f"{strategy.name} ({options})" if options else strategy.name
