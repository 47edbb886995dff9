"""The summary of a run, as ``summary.json`` holds it."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from outgrow.app.runs.provenance import describe_provenance
from outgrow.app.runs.python_model import describe_model
from outgrow.core.ledger import merge_ledgers
from outgrow.core.validation import finite_or_none, replace_non_finite
from outgrow.nn.edge_tasks import EdgeTask
from outgrow.training.link_evaluation import describe_link_ranks
from outgrow.training.trainer import Trainer, TrainResult

if TYPE_CHECKING:
    from outgrow.app.runs.session import Session


def make_summary(session: Session, trainer: Trainer, outcome: TrainResult, peaks: tuple[int, int]) -> dict[str, Any]:
    """Return the content of ``summary.json``. All workers together.

    Args:
        session: The session.
        trainer: Trainer after training.
        outcome: Its result.
        peaks: Peak bytes of this worker in the DEVICE tier, and in host memory besides.
    """
    progress = outcome.progress
    strategy = session.strategy
    problem = trainer.problem
    ledger = merge_ledgers(session.comm.all_gather_object(trainer.ledger))
    seconds = sum(session.comm.all_gather_object(problem.timeline.seconds), Counter[str]())
    of_edges = isinstance(session.task, EdgeTask)
    return {
        "strategy": strategy.name,
        "strategy_options": strategy.options(),
        "trials": list(session.trials),
        "workers": session.comm.size,
        "device": session.comm.device.type,
        "seed": session.config.seed,
        "epochs": progress.finished_epochs,
        "loss": progress.loss,
        "val_score": finite_or_none(outcome.val.score),
        "test_score": finite_or_none(outcome.test.score),
        "val_accuracy": finite_or_none(outcome.val.figures.get(trainer.evaluation.metric, math.nan)),
        "test_accuracy": finite_or_none(outcome.test.figures.get(trainer.evaluation.metric, math.nan)),
        "epoch_seconds": progress.epoch_seconds,
        # The pair of zeros is for a single worker: `max` needs two arguments.
        "peak_bytes": dict(
            zip(("device", "host"), map(max, *session.comm.all_gather_object(peaks), (0, 0)), strict=True)
        ),
        "ledger": ledger.as_dict(),
        "counters": dict(ledger.counters),
        "exact": progress.exact,
        "strategy_facts": problem.run_facts,
        # The previous name, which scripts read.
        "found": problem.run_facts,
        "seconds": dict(seconds),
        "graph": session.graph.name,
        "task": "edges" if of_edges else "nodes" if session.model.decoder is None else "links",
        "task_options": session.task.describe() if isinstance(session.task, EdgeTask) else problem.describe_task(),
        "metric": trainer.evaluation.monitor.name,
        "metric_mode": trainer.evaluation.monitor.mode,
        "scores": {
            name: replace_non_finite(marks.figures) for name, marks in (("val", outcome.val), ("test", outcome.test))
        },
        **describe_link_ranks(session.graph.relation_names, outcome.val, outcome.test),
        "best_epoch": progress.best_epoch,
        "stopped": outcome.stop_reason,
        "parameters": sum(p.numel() for p in session.model.parameters()),
        "train": session.config.as_record(),
        "model": describe_model(session.model),
        "data": dict(session.data),
        "ids": None if session.graph.ids is None else session.graph.ids.describe(),
        **describe_provenance(),
    }
