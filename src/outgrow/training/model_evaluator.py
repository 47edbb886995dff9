"""`ModelEvaluator`: scores the model of a run between epochs and after training, in the ways that were asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outgrow.inference.modes import NO_INFERENCE, NONE, ChosenInference, EvaluationOptions, InferenceChooser
from outgrow.strategies.base import Execution, Problem
from outgrow.training.evaluation import Evaluation, Evaluator, Metrics
from outgrow.training.progress_events import ProgressReporter

_NOT_SCORED = Metrics(score=math.nan)


class ModelEvaluator:
    """Scores a model by the inferences that are chosen for its validation and test nodes. Final.

    All workers make and call it together.

    Args:
        problem: The problem; the ways that were chosen are among its facts.
        evaluation: Validation and test sets.
        options: The ways that were asked for.
        execution: The execution of the strategy.
        reporter: Receiver of progress events.
        uses_minibatches: Whether the strategy trains on samples of the graph.
    """

    def __init__(
        self,
        problem: Problem,
        evaluation: Evaluation,
        options: EvaluationOptions,
        execution: Execution,
        reporter: ProgressReporter,
        *,
        uses_minibatches: bool,
    ) -> None:
        self._problem = problem
        self._evaluation = evaluation
        self._options = options
        self._reporter = reporter
        self._chooser = InferenceChooser(problem, execution, options.batches, uses_minibatches=uses_minibatches)
        self._validation = self._testing = NO_INFERENCE
        self._notes: set[str] = set()
        if evaluation.has_validation:
            val_nodes, _ = evaluation.scored_nodes
            self._validation = self._chooser.choose(options.val, val_nodes, every_output=False)
            self._report_choice("validation", self._validation)

    @property
    def validates(self) -> bool:
        """Whether there is a validation score."""
        return self._validation.inference is not None

    def validate(self) -> Metrics:
        """Return the metrics of the current model on the validation set, with its loss."""
        evaluator = self._evaluation.validation_evaluator()
        self._run("evaluating", self._validation, [evaluator])
        return self._show_notes(evaluator.compute())

    def test(self) -> Metrics:
        """Return the metrics of the current model on the test set."""
        if self._options.test == NONE:
            return _NOT_SCORED
        # Kept: to find the neighbourhood of the scored nodes takes a walk over the graph.
        if self._testing is NO_INFERENCE:
            _, nodes = self._evaluation.scored_nodes
            self._testing = self._chooser.choose(self._options.test, nodes, every_output=False)
            self._report_choice("test", self._testing)
        _, evaluator = self._evaluation.final_evaluators(together=False)
        self._run("testing", self._testing, [evaluator])
        return self._show_notes(evaluator.compute())

    def score_result(self) -> tuple[Metrics, Metrics, Tensor | None]:
        """Return the metrics of the final model on both sets; on rank 0 also ``[V, C]`` if that is in memory."""
        options = self._options
        val_nodes, test_nodes = self._evaluation.scored_nodes
        val, test = self._evaluation.final_evaluators(together=options.val == options.test)
        if options.val == options.test:
            # Neighbourhoods of both sets overlap, so both are computed at once.
            logits = self._score("test", options.test, torch.unique(torch.cat([val_nodes, test_nodes])), [val, test])
        else:
            self._score("validation", options.val, val_nodes, [val])
            logits = self._score("test", options.test, test_nodes, [test])
        return (
            _NOT_SCORED if options.val == NONE else self._show_notes(val.compute()),
            _NOT_SCORED if options.test == NONE else self._show_notes(test.compute()),
            logits,
        )

    def _score(self, name: str, mode: str, nodes: Tensor, evaluators: Sequence[Evaluator]) -> Tensor | None:
        chosen = self._chooser.choose(mode, nodes)
        if chosen.inference is None:
            return None
        if not chosen.in_memory and not any(each.reads_output for each in evaluators):
            # The rows of all nodes are not kept, and need not be computed.
            return None
        if name == "test":  # of validation it was said before the first epoch
            self._report_choice(name, chosen)
        kept = self._run("testing", chosen, evaluators)
        if not chosen.in_memory:
            return None
        return self._problem.shard.gather_to_rank_zero(kept[0] if len(kept) == 1 else torch.cat(kept))

    def _run(self, phase: str, chosen: ChosenInference, evaluators: Sequence[Evaluator]) -> list[Tensor]:
        """Add what an inference yields to evaluators; return the output of all own nodes, if that is in memory."""
        assert chosen.inference is not None
        kept: list[Tensor] = []
        done, total = 0, chosen.num_nodes
        self._reporter.start_phase(phase, total)
        with self._problem.model.evaluating():
            for nodes, out in chosen.inference.run():
                for evaluator in evaluators:
                    evaluator.update(nodes, out)
                done += len(out)
                self._reporter.advance_to(phase, done, total)
                if chosen.in_memory:
                    kept.append(out)
        return kept

    def _show_notes(self, metrics: Metrics) -> Metrics:
        """Show what metrics have warned of, each text once."""
        for note in metrics.notes:
            if note not in self._notes:
                self._notes.add(note)
                self._reporter.show_note(f"metric {note}")
        return metrics

    def _report_choice(self, name: str, chosen: ChosenInference) -> None:
        self._problem.run_facts[name] = chosen.mode
        # Whole-graph strategies all do the same unless they are told otherwise.
        if self._chooser.uses_minibatches:
            self._reporter.show_note(f"{name}: {chosen.mode}, {chosen.description}")
