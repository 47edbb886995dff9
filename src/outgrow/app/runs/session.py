"""Training session: trains a model on a graph as one worker, and writes the files of the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from outgrow.app.compatibility import select_read_features
from outgrow.app.edge_task import make_edge_training
from outgrow.app.link_run import is_exact, open_link_problem
from outgrow.app.loggers.tensorboard import TensorBoard
from outgrow.app.messages import log_warning
from outgrow.app.metric_checks import choose_metrics
from outgrow.app.model_probe import probe_model
from outgrow.app.node_task import make_node_task
from outgrow.app.runs.directory import HintsWriter, RunDirectory
from outgrow.app.runs.memory_monitor import MemoryMonitor, make_worker_record
from outgrow.app.runs.node_problem import make_problem
from outgrow.app.runs.provenance import describe_provenance
from outgrow.app.runs.python_model import describe_model
from outgrow.app.runs.result import Run
from outgrow.app.runs.signals import GRACE_SECONDS, catch_interruption
from outgrow.app.runs.trace import chrome_trace
from outgrow.app.targets import select_graph_targets
from outgrow.app.worker_device import use_checked_device
from outgrow.core.compile_clock import CompileTally, compile_clock
from outgrow.core.errors import TrainingError
from outgrow.core.ledger import merge_ledgers
from outgrow.core.validation import finite_or_none, replace_non_finite
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import find_feature_file
from outgrow.nn.edge_tasks import EdgeTask
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeTask
from outgrow.ops.linear import use_bfloat16_matmul
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.system.device import CPU
from outgrow.runtime.system.process_memory import LARGE_BYTES, return_freed_memory, trim_memory
from outgrow.strategies.base import Problem, Strategy
from outgrow.training.callbacks import Callback
from outgrow.training.config import TrainConfig
from outgrow.training.evaluation import Evaluation, NodeEvaluation
from outgrow.training.link_evaluation import describe_link_ranks
from outgrow.training.loop_options import make_row_optimizer
from outgrow.training.progress_events import ProgressCallback, ProgressReporter
from outgrow.training.strategy_trial import adopt_trainer_state
from outgrow.training.trainer import Trainer, TrainResult

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True, kw_only=True, eq=False)
class Session:
    """Run about to start, on one of its workers.

    Attributes:
        graph: Graph to train on.
        model: Model to train; its parameters are changed in place.
        config: Options of the training loop.
        strategy: Training strategy.
        directory: Run directory, which worker 0 writes; None to keep no files.
        callbacks: Displays, called on worker 0.
        user_callbacks: Callbacks of the user, called on the workers that they are for.
        progress_callbacks: Called with progress events, on worker 0.
        comm: Communicator of the workers.
        device: Device that workers compute on: see `choose_device`.
        should_stop: Called after every epoch; true stops training. None to stop after Ctrl-C.
        warn: Called with a message before memory is full, on every worker, and for unusable checkpoints.
        data: Fingerprint of the graph's contents, which checkpoints record; empty if there are none.
        grace_seconds: How long training may go on after a signal that asks to end it.
        metrics: Metrics that were given as objects, by name; ``config`` names these and the others.
        task: Task of a model of nodes or edges; None for the one that the options of the loop name.
        rivals: Strategies that estimates cannot tell from ``strategy``: the first steps are trained by each, and a
            new run goes on by the fastest.
        trials: What trials have shown, for the summary.
        compile_tally: Counts the kernels that are compiled for the run, in its trials too.
    """

    graph: Graph
    model: Model
    config: TrainConfig
    strategy: Strategy
    directory: RunDirectory | None = None
    callbacks: tuple[Callback, ...] = ()
    user_callbacks: tuple[Callback, ...] = ()
    progress_callbacks: tuple[ProgressCallback, ...] = ()
    comm: Comm = field(default_factory=SingleProcessComm)
    device: str = "auto"
    should_stop: Callable[[], bool] | None = None
    warn: Callable[[str], None] = log_warning
    data: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: float = GRACE_SECONDS
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    task: NodeTask | EdgeTask | None = None
    rivals: tuple[Strategy, ...] = ()
    trials: tuple[dict[str, Any], ...] = ()
    compile_tally: CompileTally = field(default_factory=lambda: CompileTally(compile_clock))

    def prepare_worker(self) -> None:
        """Choose the device of this worker, and return freed memory to the system. Before memory is measured.

        Raises:
            InputError: The strategy cannot train on so many workers or hosts, or there is no such device.
        """
        comm = self.comm
        # Once more: nodes of torchrun's group may turn out to be one host.
        self.strategy.validate_workers(comm.size, len({*comm.hosts}))
        use_checked_device(self.device, comm)
        # Memory that loading the graph freed but the allocator kept would count as memory of the training.
        return_freed_memory(LARGE_BYTES)
        trim_memory()

    @contextmanager
    def open_problem(self, reporter: ProgressReporter) -> Iterator[tuple[Problem, Evaluation]]:
        """Context of the training problem and its evaluation; the model is on the device. All workers together."""
        comm = self.comm
        with ExitStack() as stack:
            stack.enter_context(self.graph.files.check_sizes_on_exit())
            stack.enter_context(use_bfloat16_matmul(self.config.uses_bfloat16))
            # Under torchrun each process has initialised a model of its own.
            comm.broadcast_parameters(self.model)
            # Registered before the move, so that parameters return to the CPU even if the move fails halfway.
            stack.callback(self.model.to, CPU)
            self.model.to(self.strategy.parameter_device(comm.device))
            reporter.start_phase("dealing out nodes" if comm.size > 1 else "reading")
            problem, evaluation = self._make_problem()
            # Sharding leaves large temporary arrays behind.
            trim_memory()
            yield problem, evaluation

    def run(self, *, resume: bool, state: dict[str, Any] | None = None) -> Run:
        """Train, from the last checkpoint if ``resume``, and write the files of the run.

        Args:
            resume: Whether to resume from the last checkpoint.
            state: State of another trainer of this run to go on from; None for none.
        """
        self.prepare_worker()
        comm, directory = self.comm, self.directory
        with (
            MemoryMonitor(comm, self.strategy, self.warn) as memory,
            catch_interruption(self.grace_seconds) as interruption,
            ExitStack() as stack,
        ):
            trainer = self.open_trainer(stack, self.should_stop or interruption.is_set, resume=resume, state=state)
            outcome = self._train_model(trainer)
        # The next three lines communicate: every worker must reach them, in this order.
        summary = self._make_summary(trainer, outcome, memory.peak_bytes())
        workers = comm.all_gather_object(make_worker_record(comm, memory))
        spans = comm.all_gather_object(trainer.problem.timeline.spans)
        if directory is not None and comm.is_rank_zero:
            directory.write_json("ledger.json", {"ledger": summary["ledger"], "counters": summary["counters"]})
            directory.write_json("workers.json", {"workers": workers})
            directory.write_json("trace.json", chrome_trace(spans))
            # Last: its presence marks a run as finished.
            directory.write_json("summary.json", summary)
        path = None if directory is None else directory.path
        # A signal may have reached some workers only; all end as it wants.
        signals = comm.all_gather_object(interruption.number or 0) if outcome.stop_reason == "interrupted" else [0]
        # The run is complete, and no other worker waits for this one.
        if error := trainer.callbacks.late_error():
            raise error
        return Run(
            model=self.model,
            logits=outcome.logits,
            summary=summary,
            directory=path,
            interrupted_by=max(signals) or None,
        )

    def open_trainer(
        self,
        stack: ExitStack,
        is_interrupted: Callable[[], bool],
        *,
        resume: bool = False,
        state: dict[str, Any] | None = None,
    ) -> Trainer:
        """Return a trainer whose problem the stack closes. All workers together.

        Args:
            stack: Closes what is opened.
            is_interrupted: Called after every epoch; true stops training.
            resume: Whether to resume from the last checkpoint.
            state: State of another trainer of this run to go on from; None for none.
        """
        comm, directory = self.comm, self.directory
        # Before parameters move to a device: the probe is on the CPU.
        is_exact = self._is_exact()
        reporter = ProgressReporter(self.progress_callbacks if comm.is_rank_zero else ())
        problem, evaluation = stack.enter_context(self.open_problem(reporter))
        trainer = Trainer(
            problem,
            evaluation,
            self.config,
            folder=None if directory is None else directory.checkpoint_dir,
            is_interrupted=is_interrupted,
            reporter=reporter,
            validate_inputs=self.graph.files.require_same_sizes,
        )
        if resume:
            # Worker 0 chooses the checkpoint: other hosts may see other files, or none.
            files = directory if comm.is_rank_zero else None
            trainer.resume(comm.broadcast(files and files.latest_checkpoint(self.warn)), self.data)
            problem.resume_hints.update(comm.broadcast({} if directory is None else directory.resume_hints))
        elif state is not None:
            adopt_trainer_state(trainer, state)
        else:
            trainer.progress.adopt_data(self.data)
        # A run with one approximate session is never exact again.
        trainer.progress.exact &= is_exact
        self._add_callbacks(trainer, stack)
        return trainer

    def _is_exact(self) -> bool:
        """Whether this session computes the gradient of the reference."""
        layers = all(layer.conv.exact for layer in self.model.layers_list()) and not probe_model(self.model).inexact
        return is_exact(self.strategy, self.config, self.model) and layers and not self.config.uses_bfloat16

    def _make_problem(self) -> tuple[Problem, Evaluation]:
        """Shard the graph; return the training problem and the evaluation."""
        model, comm, config, graph = self.model, self.comm, self.config, select_read_features(self.graph, self.model)
        if isinstance(self.task, EdgeTask):
            return make_edge_training(graph, model, config, self.strategy, comm, self.task, self.metrics)
        if model.decoder is None:
            return self._make_node_problem(graph, self.task)
        return open_link_problem(graph, model, self.strategy, config, comm)

    def _make_node_problem(self, graph: Graph, task: NodeTask | None) -> tuple[Problem, Evaluation]:
        """Return the problem and the evaluation of a model of nodes."""
        model, config, in_batches = self.model, self.config, self.strategy.uses_minibatches
        share = self.strategy.shard_graph(graph, self.comm, model, config.batch_config)
        # Workers map the store of the graph itself; of its labels and splits, those of the targets count.
        targeted = select_graph_targets(graph, config)
        task = task or make_node_task(targeted, config)
        problem = replace(
            make_problem(targeted, model, config.seed, share, config.batch_config, task),
            checkpoint_steps=config.checkpoint_steps,
            memory_limit=self.strategy.memory_limit if in_batches else None,
            embedding_optimizer=make_row_optimizer(config, batches=in_batches),
            find_feature_file=partial(find_feature_file, graph),
        )
        labels = targeted.task_labels
        assert labels is not None
        # Nodes without a known target are not scored.
        val, test = (task.select_known(labels, part) for part in (targeted.split.val, targeted.split.test))
        metrics, monitor = choose_metrics(targeted, model, task, config, self.metrics)
        trained = problem.node_targets.task
        tasks = trained.with_shares_of(labels, val), trained.with_shares_of(labels, test)
        return problem, NodeEvaluation(problem, val, test, metrics=metrics, monitor=monitor, tasks=tasks)

    def _train_model(self, trainer: Trainer) -> TrainResult:
        """Train the model.

        Raises:
            TrainingError: The GPU is out of memory.
        """
        try:
            return trainer.run(self.strategy)
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"the GPU is too small for strategy {self.strategy.name}",
                needed="memory for everything that it holds at once",
                got=str(error).partition(". See documentation")[0],
                repair="choose --strategy offload, with --memory for what it may take; or --batch-size and --fanout",
            ) from error

    def _add_callbacks(self, trainer: Trainer, stack: ExitStack) -> None:
        """Register the writers of files, then the callbacks of the user, and displays."""
        leads = self.comm.is_rank_zero
        if self.directory is not None and leads:
            # Epochs after the checkpoint are trained again and must not appear twice.
            self.directory.truncate_after(trainer.progress.finished_epochs)
            board = stack.enter_context(TensorBoard(self.directory.path / "tensorboard"))
            trainer.add_callbacks(self.directory, HintsWriter(self.directory, trainer.problem.resume_hints), board)
        # Called after the files are written, so that a callback that raises loses no epoch.
        own = [callback for callback in self.user_callbacks if leads or callback.all_workers]
        trainer.add_callbacks(*own, guarded=True)
        if leads:
            trainer.add_callbacks(*self.callbacks)

    def _make_summary(self, trainer: Trainer, outcome: TrainResult, peaks: tuple[int, int]) -> dict[str, Any]:
        """Return the content of ``summary.json``. All workers together.

        Args:
            session: The self.
            trainer: Trainer after training.
            outcome: Its result.
            peaks: Peak bytes of this worker in the DEVICE tier, and in host memory besides.
        """
        progress = outcome.progress
        strategy = self.strategy
        problem = trainer.problem
        ledger = merge_ledgers(self.comm.all_gather_object(trainer.ledger))
        seconds = sum(self.comm.all_gather_object(problem.timeline.seconds), Counter[str]())
        of_edges = isinstance(self.task, EdgeTask)
        return {
            "strategy": strategy.name,
            "strategy_options": strategy.options(),
            "trials": list(self.trials),
            "workers": self.comm.size,
            "device": self.comm.device.type,
            "seed": self.config.seed,
            "epochs": progress.finished_epochs,
            "loss": progress.loss,
            "val_score": finite_or_none(outcome.val.score),
            "test_score": finite_or_none(outcome.test.score),
            "val_accuracy": finite_or_none(outcome.val.figures.get(trainer.evaluation.metric, math.nan)),
            "test_accuracy": finite_or_none(outcome.test.figures.get(trainer.evaluation.metric, math.nan)),
            "epoch_seconds": progress.epoch_seconds,
            "compile_seconds": self.compile_tally.total.seconds,
            "compiled_kernels": self.compile_tally.total.kernels,
            # The pair of zeros is for a single worker: `max` needs two arguments.
            "peak_bytes": dict(
                zip(("device", "host"), map(max, *self.comm.all_gather_object(peaks), (0, 0)), strict=True)
            ),
            "ledger": ledger.as_dict(),
            "counters": dict(ledger.counters),
            "exact": progress.exact,
            "strategy_facts": problem.run_facts,
            # The previous name, which scripts read.
            "found": problem.run_facts,
            "seconds": dict(seconds),
            "graph": self.graph.name,
            "task": "edges" if of_edges else "nodes" if self.model.decoder is None else "links",
            "task_options": self.task.describe() if isinstance(self.task, EdgeTask) else problem.describe_task(),
            "metric": trainer.evaluation.monitor.name,
            "metric_mode": trainer.evaluation.monitor.mode,
            "scores": {
                name: replace_non_finite(marks.figures)
                for name, marks in (("val", outcome.val), ("test", outcome.test))
            },
            **describe_link_ranks(self.graph.relation_names, outcome.val, outcome.test),
            "best_epoch": progress.best_epoch,
            "stopped": outcome.stop_reason,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "train": self.config.as_record(),
            "model": describe_model(self.model),
            "data": dict(self.data),
            "ids": None if self.graph.ids is None else self.graph.ids.describe(),
            **describe_provenance(),
        }
