"""A session that has ended, as a run to learn from."""

from __future__ import annotations

from outgrow.app.run_learning import TrainedRun
from outgrow.app.runs.directory import read_metrics
from outgrow.app.runs.result import Run
from outgrow.app.runs.session import Session
from outgrow.app.strategy_registry import STRATEGIES, make_strategy
from outgrow.planning.traffic import WorkerLayout


def describe_session(session: Session, run: Run, layout: WorkerLayout) -> TrainedRun:
    """Return what can be learned from a session and its run."""
    files, name = session.directory, run.summary["strategy"]
    # Trials may have led to another strategy than the planned one.
    changed = name != session.strategy.name and name in STRATEGIES
    return TrainedRun(
        graph=session.graph,
        model=session.model,
        config=session.config,
        strategy=make_strategy(STRATEGIES[name], run.summary["strategy_options"]) if changed else session.strategy,
        layout=layout,
        summary=run.summary,
        epochs=[] if files is None else read_metrics(files),
        path=None if files is None else files.path,
    )
