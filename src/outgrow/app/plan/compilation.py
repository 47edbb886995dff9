"""Seconds of compiling kernels in plans: from what runs on this machine have taken, which are logged after training."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from outgrow.app.plan.machine_profiles import PlannedMachine, compile_log_path
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.ops.kernel_cache import loop_mode, state_folder
from outgrow.planning.hardware.compile_log import (
    CompiledRun,
    RunKind,
    add_compiled_run,
    expect_compile_seconds,
    read_compile_log,
    write_compile_log,
)
from outgrow.planning.planner import Plan, PlannerQuery, make_plan
from outgrow.planning.traffic import WorkerLayout
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig

_FEWEST_EPOCHS = 2
"""Epochs that need all kernels, where all nodes are trained at once: the second computes from what the first kept."""


class TrainedProblem(NamedTuple):
    """What is trained, and how.

    Attributes:
        graph: The graph.
        model: The model.
        config: Options of the training loop.
    """

    graph: Graph
    model: Model
    config: TrainConfig

    def describe_kind(self, strategy: Strategy, layout: WorkerLayout, device: str) -> RunKind:
        """Return what decides which kernels a run needs."""
        graph, model, config = self
        batches = config.batch_config
        parts = (*(layer.conv for layer in model.layers_list()), *([] if model.decoder is None else [model.decoder]))
        classes = ", ".join(dict.fromkeys(type(part).__name__ for part in parts))
        like = f"{classes}; {strategy.name}, {device}, loops {loop_mode()}"
        # Widths of layers are constants of kernels, and sizes decide on how many threads they run.
        details = (
            (graph.name, graph.num_nodes, graph.num_edges, graph.num_features),
            (str(model), str(model.decoder)),
            (batches, config.evaluation, config.uses_bfloat16, str(config.optimizer), config.hide),
            layout.workers,
        )
        return RunKind(like=like, digest=hashlib.sha256(repr((like, details)).encode()).hexdigest()[:32])


def plan_with_compilation(query: PlannerQuery, problem: TrainedProblem, machine: PlannedMachine) -> Plan:
    """Make a plan that says the seconds of compiling, if it is for this machine."""
    if machine.run_log is None:
        return make_plan(query)
    runs, folder, device = read_compile_log(compile_log_path()), state_folder(), query.profile.device.kind

    def expect_seconds(strategy: Strategy, layout: WorkerLayout) -> float | None:
        return expect_compile_seconds(runs, problem.describe_kind(strategy, layout, device), folder)

    return make_plan(replace(query, compile_seconds=expect_seconds))


def log_compilation(
    problem: TrainedProblem, strategy: Strategy, layout: WorkerLayout, summary: Mapping[str, Any]
) -> None:
    """Log what compiling took in a run that has ended, unless it was too short to need all of its kernels."""
    if len(summary["epoch_seconds"]) < (1 if strategy.uses_minibatches else _FEWEST_EPOCHS):
        return
    # The run has ended well: plans without what it could teach say that nothing is known. There may be no home.
    with suppress(OSError, RuntimeError):
        path = compile_log_path()
        run = CompiledRun(
            kind=problem.describe_kind(strategy, layout, summary["device"]),
            folder=str(state_folder()),
            kernels=summary["compiled_kernels"],
            seconds=summary["compile_seconds"],
        )
        write_compile_log(path, add_compiled_run(read_compile_log(path), run))
