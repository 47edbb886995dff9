"""Links are trained on in several steps of an epoch: of what strategies make the same curve, and runs that go on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from failing import Failing, Lost
from outgrow.app.link_run import find_link_options, make_link_evaluation, make_link_problem, remove_held_out_links
from outgrow.app.link_task import make_link_split
from outgrow.core.errors import InputError
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training import checkpoint
from outgrow.training.config import TrainConfig
from outgrow.training.trainer import Trainer
from suites.held_out import graph_of, model_of
from support import disk_folder

STEPS = 4
OPTIONS = {"epochs": 3, "lr": 0.02, "link_steps": STEPS, "hide": 0.3, "link_loss": "softmax", "checkpoint_every": 100}
IN_BATCHES = Sampled(), SplitParallel(), Migrate(), Orchestrate(hot_ratio=0.5, super_batch=1)
SHARED = {"negative_sampling": "shared", "negatives": 5}


def trainer_of(strategy: Strategy, folder: Path | None = None, **options: object) -> Trainer:
    config = TrainConfig().with_options(**{**OPTIONS, **SHARED, **options})
    graph, model = graph_of("typed"), model_of("typed")
    split = make_link_split(graph, config)
    links = find_link_options(graph, config, in_batches=strategy.uses_minibatches)
    given = remove_held_out_links(graph, split)
    share = strategy.shard_graph(given, SingleProcessComm(), model, config.batch_config, links=links)
    problem = make_link_problem(graph, model, config, share, strategy)
    return Trainer(problem, make_link_evaluation(graph, model, split, share, config), config, folder=folder)


def newest(folder: Path) -> Path:
    path = checkpoint.latest_checkpoint(folder)
    assert path is not None
    return path


def test_strategies_have_the_same_curve() -> None:
    ways = Full(), Offload(chunks=3, scratch_dir=str(disk_folder())), TensorParallel()
    curves = [torch.tensor(trainer_of(each).run(each).progress.loss) for each in ways]
    assert all(len(curve) == 3 for curve in curves)
    for curve in curves[1:]:
        torch.testing.assert_close(curve, curves[0], rtol=1e-9, atol=0)


def test_a_run_goes_on_within_an_epoch(tmp_path: Path) -> None:
    straight = trainer_of(Full()).run(Full()).progress
    with pytest.raises(Lost):
        trainer_of(Full(), tmp_path, checkpoint_steps=2).run(Failing(Full(), 2, 3))
    assert newest(tmp_path).stem == "epoch-00000001-step-00000002"
    resumed = trainer_of(Full(), tmp_path)
    resumed.resume(newest(tmp_path))
    assert resumed.progress.step == 2
    assert resumed.run(Full()).progress.loss == straight.loss


@pytest.mark.parametrize("strategy", IN_BATCHES, ids=lambda strategy: strategy.name)
def test_a_run_in_batches_goes_on_within_an_epoch(strategy: Strategy, tmp_path: Path) -> None:
    options = {"link_steps": 1, "hide": 0.0, "batch_size": 40, "fanout": (3, 2), "checkpoint_steps": 2}
    straight = trainer_of(strategy, **options).run(strategy).progress
    with pytest.raises(Lost):
        trainer_of(strategy, tmp_path, **options).run(Failing(strategy, 2, 3))
    assert newest(tmp_path).stem == "epoch-00000001-step-00000002"
    for changed in ({"exclude": "none"}, {"batch_size": 30}):
        with pytest.raises(InputError):
            trainer_of(strategy, tmp_path, **{**options, **changed}).resume(newest(tmp_path))
    resumed = trainer_of(strategy, tmp_path, **options)
    resumed.resume(newest(tmp_path))
    assert resumed.run(strategy).progress.loss == straight.loss


@pytest.mark.parametrize("option", [{"link_steps": 5}, {"hide": 0.2}], ids=str)
def test_a_run_within_an_epoch_does_not_go_on_with_other_steps(option: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(Lost):
        trainer_of(Full(), tmp_path, checkpoint_steps=2).run(Failing(Full(), 2, 3))
    with pytest.raises(InputError, match="link_steps"):
        trainer_of(Full(), tmp_path, **option).resume(newest(tmp_path))


def test_steps_without_links_change_nothing() -> None:
    """With a share of pairs that is too small for most steps to ask about one, the optimizer has nothing to do."""
    trainer = trainer_of(Full(), link_steps=40, hide=0.0005, epochs=1)
    before = {name: value.clone() for name, value in trainer.problem.model.state_dict().items()}
    execution = Full().prepare(trainer.problem)
    sizes = [step.num_seeds for step in execution.steps(1)]
    assert len(sizes) == 40
    assert 0 in sizes
    assert not trainer.optimization.step_batch(0)
    after = trainer.problem.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
