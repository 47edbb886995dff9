"""`PreparedTraining`: a strategy that is ready to train. `Trainer` and loops of the user's own are built on it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack

from torch import nn

from outgrow.engine.embeddings.row_sections import SectionMaker, TensorSections
from outgrow.inference.modes import EvaluationOptions
from outgrow.strategies.base import Problem, Step, Strategy
from outgrow.training.config import TrainConfig
from outgrow.training.embedding_placement import choose_sections, embedding_bytes
from outgrow.training.evaluation import Evaluation, Metrics
from outgrow.training.model_evaluator import ModelEvaluator
from outgrow.training.node_embeddings import NodeEmbeddings
from outgrow.training.optimization import Optimization
from outgrow.training.progress_events import ProgressReporter


class PreparedTraining:
    """A strategy prepared for a problem: steps that leave gradients in the model, and evaluations of it. Final.

    All workers make, use and close it together.

    Args:
        problem: Model, graph and objective.
        evaluation: Validation and test sets.
        strategy: The strategy.
        options: How nodes are evaluated.
        reporter: Receiver of progress events.
        resumes: Whether vectors of nodes are those of a checkpoint, which the caller reads next.
    """

    def __init__(
        self,
        problem: Problem,
        evaluation: Evaluation,
        strategy: Strategy,
        options: EvaluationOptions,
        reporter: ProgressReporter,
        *,
        resumes: bool = False,
    ) -> None:
        self.problem = problem
        self.evaluation = evaluation
        reporter.start_phase("preparing")
        self._stack = ExitStack()
        try:
            # First: chunks are planned for the memory that vectors leave.
            self.embeddings = open_embeddings(problem, strategy, self._stack, draws=not resumes)
            self.execution = strategy.prepare(problem)
            self._stack.callback(self.execution.close)
            self.evaluator = ModelEvaluator(
                problem, evaluation, options, self.execution, reporter, uses_minibatches=strategy.uses_minibatches
            )
        except BaseException:
            self.close()
            raise

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """Return the steps of an epoch; close the generator to end them early.

        After each the gradient of the loss, over all workers, has been added to the parameters' ``grad``.

        Args:
            epoch: Number of the epoch, from 1, on which all random draws depend.
            first: Number of the first step.
        """
        self.problem.model.train()
        return self.execution.steps(epoch, first)

    def evaluate(self, part: str) -> Metrics:
        """Return the metrics of the current model.

        Args:
            part: ``"val"`` or ``"test"``.
        """
        return self.evaluator.validate() if part == "val" else self.evaluator.test()

    def close(self) -> None:
        """Release what the strategy holds, and close files."""
        self._stack.close()
        self.problem.close()


def open_embeddings(problem: Problem, strategy: Strategy, stack: ExitStack, *, draws: bool = True) -> NodeEmbeddings:
    """Make the tables of a model's node embeddings, where there is room for them; none for a model without."""
    batches = strategy.computes_read_rows(problem)
    optimizer, shard = problem.embedding_optimizer, problem.shard
    nodes, count = shard.owned_nodes, shard.topology.num_nodes
    needed = embedding_bytes(problem.model, optimizer, nodes, count, gathers_batches=batches)
    maker: SectionMaker = TensorSections(shard.comm.device)
    if needed:
        scratch = strategy.options().get("scratch_dir")
        maker = choose_sections(
            stack,
            shard.comm,
            needed,
            limit=strategy.memory_limit,
            scratch_dir=None if scratch is None else str(scratch),
        )
        problem.run_facts.update(embedding_bytes=needed, embeddings_on_disk=maker.io_pool is not None)
    lookups = {"gathers_batches": batches, "in_batches": strategy.uses_minibatches}
    embeddings = NodeEmbeddings(problem.model, shard, optimizer, maker, **lookups, draws=draws)
    stack.callback(embeddings.close)
    return embeddings


def check_optimization(config: TrainConfig, model: nn.Module, num_train: int) -> None:
    """Check before anything is written that a model can be trained as a config says.

    Args:
        config: Options of training.
        model: The model.
        num_train: Number of nodes or links to train on: see `count_steps`.

    Raises:
        InputError: See `Optimization.from_config`.
    """
    Optimization.from_config(config, model, count_steps(config, model, num_train))


def count_steps(config: TrainConfig, model: nn.Module, num_train: int) -> int:
    """Return the number of steps of an epoch of a model.

    Args:
        config: Options of training.
        model: The model.
        num_train: Number of nodes or, in mini-batches, of links to train on.
    """
    of_links = getattr(model, "decoder", None) is not None
    in_steps = of_links and config.batch_config.is_full_graph
    return config.link_steps if in_steps else config.batch_config.num_steps(num_train)
