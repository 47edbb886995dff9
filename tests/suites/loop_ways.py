"""Runs with all that may happen to gradients: a schedule with a warm-up, clipping, accumulation, averaged weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.config import TrainConfig
from outgrow.training.optimization import Optimization
from outgrow.training.schedules import Schedule
from planted import model_of
from suites.hits import Hits
from suites.sessions import Plan
from support import disk_folder

EPOCHS = 6
WHOLE = TrainConfig(epochs=EPOCHS, seed=5).with_options(
    optimizer="sgd", momentum=0.9, lr=0.5, weight_decay=1e-4, schedule="cosine", warmup=1, clip_grad_norm=0.05, ema=0.7,
    param_groups={"layers.0.*": {"lr": 0.3, "weight_decay": 1e-3}},
)  # fmt: skip
BATCHES = WHOLE.with_options(batch_size=16, fanout=(3, 4), accumulate=2, schedule_per="step")
WAYS: dict[str, tuple[TrainConfig, Strategy]] = {
    "full": (WHOLE, Full(partition="hash")),
    "offload": (WHOLE, Offload(chunks=3, partition="hash", scratch_dir=str(disk_folder()))),
    "tensor": (WHOLE, TensorParallel()),
    "sampled": (BATCHES, Sampled()),
    "split": (BATCHES, SplitParallel()),
    "migrate": (BATCHES, Migrate(move_model=True)),
    "orchestrate": (BATCHES, Orchestrate(hot_ratio=0.0, partition="hash")),
}


def plans(store: Path, **options: object) -> dict[str, Plan]:
    """A run in each way."""
    return {
        name: Plan(store, model_of("sage", seed=1), replace(config, **options), strategy)  # type: ignore[arg-type]
        for name, (config, strategy) in WAYS.items()
    }


@contextmanager
def clip_by_own_norm() -> Iterator[Hits]:
    """Each worker clips the gradient of its own nodes, before the sum."""
    hits, right, take_step = Hits(), Comm.all_reduce_gradients, Optimization._step

    def sum_gradients(self: Comm, model: torch.nn.Module) -> None:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), WHOLE.clip_grad_norm or 1.0)
        hits.note(self.size > 1 and bool(norm > 0))
        right(self, model)

    def step(self: Optimization, embedding_scale: float = 1.0) -> None:
        limit, self.clip_grad_norm = self.clip_grad_norm, None
        take_step(self, embedding_scale)
        self.clip_grad_norm = limit

    with patch.object(Comm, "all_reduce_gradients", sum_gradients), patch.object(Optimization, "_step", step):
        yield hits


@contextmanager
def schedule_stepped_twice() -> Iterator[Hits]:
    """The schedule advances twice after each step or epoch."""
    hits, right = Hits(), Schedule._advance

    def advance(self: Schedule, monitored: float | None) -> None:
        right(self, monitored)
        hits.note(True)
        right(self, monitored)

    with patch.object(Schedule, "_advance", advance):
        yield hits


@contextmanager
def sums_left_in_gradients() -> Iterator[Hits]:
    """Gradients of batches add up where the sum over the workers counts the earlier ones once for each."""
    hits, right = Hits(), Optimization._add_gradient

    def add_gradient(self: Optimization, num_seeds: int) -> None:
        right(self, num_seeds)
        for name, parameter in self._parameters.items():
            hits.note(name in self._sums)
            parameter.grad = self._sums[name] / self._num_seeds if name in self._sums else None

    with patch.object(Optimization, "_add_gradient", add_gradient):
        yield hits


@contextmanager
def latest_weights_evaluated() -> Iterator[Hits]:
    """Weights are averaged, and never put into the model."""
    hits = Hits()

    @contextmanager
    def nothing(self: Optimization) -> Iterator[None]:
        hits.note(bool(self.averages))
        yield

    with patch.object(Optimization, "averaged_weights", nothing):
        yield hits


MUTANTS: dict[str, Callable[[], AbstractContextManager[Hits]]] = {
    each.__name__: each
    for each in (clip_by_own_norm, schedule_stepped_twice, sums_left_in_gradients, latest_weights_evaluated)
}
