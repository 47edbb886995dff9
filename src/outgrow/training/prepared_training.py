"""`PreparedTraining`: a strategy that is ready to train. `Trainer` and loops of the user's own are built on it."""

from __future__ import annotations

from collections.abc import Generator

from outgrow.inference.modes import EvaluationOptions
from outgrow.strategies.base import Problem, Step, Strategy
from outgrow.training.evaluation import Evaluation, Metrics
from outgrow.training.model_evaluator import ModelEvaluator
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
    """

    def __init__(
        self,
        problem: Problem,
        evaluation: Evaluation,
        strategy: Strategy,
        options: EvaluationOptions,
        reporter: ProgressReporter,
    ) -> None:
        self.problem = problem
        self.evaluation = evaluation
        reporter.start_phase("preparing")
        self.execution = strategy.prepare(problem)
        try:
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
        self.execution.close()
        self.problem.close()
