"""The loop: it learns, stops, remembers the best model, and goes on after a stop as if there had been none."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from outgrow.core.errors import InputError, TrainingError
from outgrow.engine.inference import infer_full_graph
from outgrow.nn import Model
from outgrow.strategies.base import Execution, Problem, Step, Strategy, full_inference
from outgrow.strategies.full import Full
from outgrow.training import checkpoint
from outgrow.training.config import TrainConfig
from outgrow.training.evaluation import NodeEvaluation
from outgrow.training.trainer import EpochReport, Trainer, TrainResult
from planted import Planted, planted, unscored

Log = list[EpochReport]


class Listening:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.reports: Log = []

    def on_epoch(self, report: EpochReport) -> None:
        self.reports.append(report)


class Scripted(Strategy):
    """Sets one parameter, and thereby the logits of all nodes, to a given number in each epoch."""

    name, exact = "scripted", True

    def __init__(self, biases: list[float], loss: Callable[[int], float] = lambda epoch: 1.0) -> None:
        self.biases, self.loss = biases, loss
        self.closed = 0

    def prepare(self, problem: Problem) -> Execution:
        self.problem, self.model = problem, problem.model
        return self

    def steps(self, epoch: int, first: int = 0) -> Iterator[Step]:
        yield Step(loss=self.loss(epoch), num_seeds=1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()
            last_bias(self.model).copy_(torch.tensor([0.0, self.biases[epoch - 1]]))

    in_memory = True

    def inference(self) -> Iterator[tuple[int, torch.Tensor]]:
        return full_inference(self.problem)

    def close(self) -> None:
        self.closed += 1


def last_bias(model: Model) -> torch.nn.Parameter:
    bias = model.layers_list()[-1].conv.bias
    assert isinstance(bias, torch.nn.Parameter)
    return bias


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


def trainer_of(world: Planted, folder: Path | None = None, kind: str = "gcn", **options: object) -> Trainer:
    settings: dict[str, object] = {"epochs": 6, "lr": 0.05, **options}
    return world.trainer(world.problem(kind=kind), TrainConfig(**settings), folder=folder)  # type: ignore[arg-type]


def parameters(trainer: Trainer) -> list[torch.Tensor]:
    return [value.clone() for value in trainer.problem.model.state_dict().values()]


def assert_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_it_learns(world: Planted, kind: str, optimizer: str) -> None:
    outcome = trainer_of(world, kind=kind, epochs=40, optimizer=optimizer, weight_decay=1e-3).run(Full())
    loss = outcome.progress.loss
    assert len(loss) == 40
    assert np.mean(loss[-5:]) < 0.6 * loss[0]
    assert outcome.test.score > 0.85
    assert outcome.stop_reason == "epochs"


def test_the_restored_model_is_the_best_and_the_outcome_is_its(world: Planted) -> None:
    trainer = trainer_of(world, epochs=15)
    outcome = trainer.run(Full())
    scores = [score for score in outcome.progress.val_score if score is not None]
    assert len(scores) == 15
    assert outcome.val.score == outcome.progress.best_score == max(scores) == scores[outcome.progress.best_epoch - 1]
    problem = trainer.problem
    logits = infer_full_graph(problem.model, world.topology, world.features)
    assert torch.equal(outcome.logits, logits)
    test = world.test
    assert outcome.test.score == problem.node_targets.task.score(logits[test], world.labels[test])


def half_right(problem: Problem) -> NodeEvaluation:
    """Three validation nodes of the second community and one of the first."""
    return NodeEvaluation(problem, torch.tensor([0, 100, 101, 102]), torch.tensor([0, 1, 100]))


def scripted(world: Planted, biases: list[float], **options: object) -> tuple[TrainResult, Trainer]:
    config = TrainConfig(epochs=len(biases), **options)  # type: ignore[arg-type]
    problem = world.problem()
    trainer = Trainer(problem, half_right(problem), config)
    return trainer.run(Scripted(biases)), trainer


def test_the_best_epoch_wins_not_the_last(world: Planted) -> None:
    outcome, trainer = scripted(world, [-1, 0.125, -1, -1])
    assert outcome.progress.val_score == [0.25, 0.75, 0.25, 0.25]
    assert outcome.progress.best_epoch == 2
    assert last_bias(trainer.problem.model).tolist() == [0.0, 0.125]
    assert outcome.test.score == pytest.approx(1 / 3)


def test_a_tie_goes_to_the_lower_validation_loss(world: Planted) -> None:
    outcome, _ = scripted(world, [0.1, 1.0, 0.2])
    assert outcome.progress.val_score == [0.75] * 3
    assert outcome.progress.best_epoch == 2


def test_patience_counts_epochs_since_the_best(world: Planted) -> None:
    outcome, _ = scripted(world, [-1, 0.1, -1, -1, -1, 0.5], patience=3)
    assert outcome.stop_reason == "patience"
    assert outcome.progress.finished_epochs == 5
    outcome, _ = scripted(world, [-1, 0.1, -1, -1, 0.5, -1], patience=3)
    assert outcome.stop_reason == "epochs"
    assert outcome.progress.best_epoch == 5


def test_epochs_between_evaluations(world: Planted) -> None:
    outcome, _ = scripted(world, [0.1, -1, -1, 0.1, 0.1], eval_every=2)
    assert outcome.progress.val_score == [None, 0.25, None, 0.75, None]
    assert outcome.progress.best_epoch == 4


def test_without_validation_nodes_the_last_model_stays(world: Planted) -> None:
    problem = world.problem()
    trainer = Trainer(problem, unscored(problem), TrainConfig(epochs=3, patience=1))
    outcome = trainer.run(Scripted([1, 2, 3]))
    assert math.isnan(outcome.val.score)
    assert math.isnan(outcome.test.score)
    assert outcome.progress.val_score == [None] * 3
    assert outcome.progress.finished_epochs == 3
    assert last_bias(trainer.problem.model).tolist() == [0.0, 3.0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_training(world: Planted, tmp_path: Path, value: float) -> None:
    config = TrainConfig(epochs=9, checkpoint_every=2)
    trainer = world.trainer(world.problem(), config, folder=tmp_path)
    strategy = Scripted([0.0] * 9, loss=lambda epoch: value if epoch == 4 else 1.0)
    with pytest.raises(TrainingError, match="diverged in epoch 4"):
        trainer.run(strategy)
    assert strategy.closed == 1
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00000002.pt"]


def test_diverging_for_real(world: Planted) -> None:
    with pytest.raises(TrainingError) as caught:
        trainer_of(world, epochs=60, lr=1e200).run(Full())
    assert "learning rate" in caught.value.repair


def test_a_diverged_run_can_go_on_with_a_lower_learning_rate(world: Planted, tmp_path: Path) -> None:
    """The repair that the error offers: the checkpoint must not bring the old rate back."""
    trainer_of(world, tmp_path, epochs=2, lr=0.5, weight_decay=0.1).run(Full())
    again = trainer_of(world, tmp_path, epochs=3, lr=0.001, weight_decay=0.2)
    again.resume(checkpoint.latest_checkpoint(tmp_path) or tmp_path)
    assert [(group["lr"], group["weight_decay"]) for group in again.optimizer.param_groups] == [(0.001, 0.2)]


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_going_on_from_a_checkpoint_changes_no_bit(world: Planted, tmp_path: Path, kind: str) -> None:
    straight = trainer_of(world, kind=kind)
    expected = straight.run(Full())
    trainer_of(world, tmp_path, kind, epochs=3).run(Full())
    resumed = trainer_of(world, tmp_path, kind)
    torch.manual_seed(999)
    with torch.no_grad():
        for parameter in resumed.problem.model.parameters():
            parameter.normal_()
    path = checkpoint.latest_checkpoint(tmp_path)
    assert path is not None
    assert path.name == "epoch-00000003.pt"
    resumed.resume(path)
    listening = Listening()
    resumed.add_callbacks(listening)
    outcome = resumed.run(Full())
    assert outcome.progress.loss == expected.progress.loss
    assert outcome.progress.val_score == expected.progress.val_score
    assert outcome.progress.best_epoch == expected.progress.best_epoch
    assert torch.equal(outcome.logits, expected.logits)
    assert_equal(parameters(resumed), parameters(straight))
    assert [report.epoch for report in listening.reports] == [4, 5, 6]


def test_a_finished_run_that_is_resumed_trains_no_more(world: Planted, tmp_path: Path) -> None:
    first = trainer_of(world, tmp_path, epochs=3).run(Full())
    again = trainer_of(world, tmp_path, epochs=3)
    again.resume(checkpoint.latest_checkpoint(tmp_path) or tmp_path)
    outcome = again.run(Full())
    assert outcome.progress.loss == first.progress.loss
    assert torch.equal(outcome.logits, first.logits)


def test_checkpoints_are_written_on_time(world: Planted, tmp_path: Path) -> None:
    trainer_of(world, tmp_path, epochs=7, checkpoint_every=3).run(Full())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-00000006.pt", "epoch-00000007.pt"]


def test_an_interrupted_run_has_its_last_epoch_in_a_checkpoint(world: Planted, tmp_path: Path) -> None:
    asked = iter([False, False, False, True])
    config = TrainConfig(epochs=50, lr=0.05, checkpoint_every=100)
    trainer = world.trainer(world.problem(), config, folder=tmp_path, is_interrupted=lambda: next(asked))
    outcome = trainer.run(Full())
    assert outcome.stop_reason == "interrupted"
    assert outcome.progress.finished_epochs == 4
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00000004.pt"]


def test_the_execution_is_closed_when_a_listener_fails(world: Planted) -> None:
    class Failing:
        def on_epoch(self, report: EpochReport) -> None:
            raise InputError("no", needed="", got="", repair="")

    strategy, trainer = Scripted([0.0]), world.trainer(world.problem(), TrainConfig(epochs=1))
    trainer.add_callbacks(Failing())
    with pytest.raises(InputError):
        trainer.run(strategy)
    assert strategy.closed == 1


def test_listeners_are_told_in_order(world: Planted) -> None:
    first, second = Listening(), Listening()
    trainer = trainer_of(world, epochs=3)
    trainer.add_callbacks(first, second)
    outcome = trainer.run(Full())
    assert [report.loss for report in first.reports] == outcome.progress.loss
    assert first.reports == second.reports
    assert all(report.edges_per_second > 0 and report.seconds > 0 for report in first.reports)
    assert first.reports[-1].best_epoch == outcome.progress.best_epoch


def curve(world: Planted, seed: int = 0) -> list[float]:
    config = TrainConfig(epochs=6, lr=0.05, seed=seed)
    return world.trainer(world.problem(seed=seed, kind="gat"), config).run(Full()).progress.loss


def test_two_runs_have_the_same_curve_to_the_last_bit(world: Planted) -> None:
    torch.manual_seed(1)
    first = curve(world)
    torch.manual_seed(2)
    np.random.seed(2)
    assert curve(world) == first
    assert curve(world, seed=1) != first


def test_the_curve_does_not_depend_on_the_threads_of_the_kernels(world: Planted) -> None:
    expected = curve(world)
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert curve(world) == expected
    finally:
        numba.set_num_threads(before)


def test_another_process_with_one_thread_has_the_same_curve() -> None:
    program = (
        "from outgrow.runtime.system.environment import set_thread_environment; set_thread_environment()\n"
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_trainer import curve, digest; from planted import planted\n"
        "print(digest(curve(planted())))"
    )
    folder = Path(__file__).parent
    command = [sys.executable, "-c", program, str(folder), str(folder.parent)]
    one = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=one)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest(curve(planted()))


def digest(values: list[float]) -> str:
    """Of the exact bits of the numbers."""
    return hashlib.sha256(np.array(values).tobytes()).hexdigest()


def test_patience_ends_with_an_evaluation(world: Planted) -> None:
    """An epoch that was not evaluated may have been better."""
    outcome, _ = scripted(world, [0.0] * 20, patience=3, eval_every=5)
    assert (outcome.stop_reason, outcome.progress.best_epoch, outcome.progress.finished_epochs) == ("patience", 5, 10)


@pytest.mark.parametrize(("options", "epochs"), [({}, 2), ({"checkpoint_steps": 1}, 1)])
def test_nothing_is_told_or_saved_of_what_may_be_wrong(
    world: Planted, tmp_path: Path, options: dict[str, object], epochs: int
) -> None:
    asked: list[None] = []

    def require_whole() -> None:
        asked.append(None)
        if len(asked) == 3:
            raise InputError("a file was cut off", needed="all of it", got="a half", repair="bring it back")

    trainer, listening = trainer_of(world, tmp_path, checkpoint_every=1, **options), Listening()
    trainer.validate_inputs = require_whole
    trainer.add_callbacks(listening)
    with pytest.raises(InputError, match="cut off"):
        trainer.run(Full())
    assert [report.epoch for report in listening.reports] == list(range(1, epochs + 1))
    newest = checkpoint.latest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.name == f"epoch-{epochs:08d}.pt"
