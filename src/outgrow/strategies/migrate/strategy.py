"""`migrate`: models go to the features, instead of features to the models.

Chen, He, Qu, Zhang: HopGNN: boosting distributed GNN training efficiency via feature-centric model migration, 2024.
Seeds are computed where they live, and so, with a good partition, where most of their neighbourhood does. In the paper
models go round, with the gradients that they have so far, to meet the seeds of their micro-batches on each worker.
Since all models hold the same parameters until the batch ends, and gradients are summed then, that is the same as to
let each worker compute all seeds that live with it: the default here, in which only that sum travels.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import get_type_hints

import torch
from torch import Tensor

from outgrow.core.deprecation import renamed_options
from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice, validate_positive, validate_types
from outgrow.engine.features.remote import RemoteFeatureStore, input_dtype
from outgrow.engine.minibatch_loop import PrefetchConfig, make_sampler
from outgrow.engine.model_migration import MicroBatchPlan
from outgrow.engine.shard import PartitionShard
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.strategies.base import Execution, MiniBatchExecution, Problem, Step, Strategy
from outgrow.strategies.migrate.merging import TimeStepMerger
from outgrow.strategies.migrate.schedule import migration_schedule

_MIGRATION_OPTIONS: Mapping[str, object] = {"pregather": True, "merge": True, "time_steps": None}
"""Options that only travelling models have, and what they are if not given."""


@renamed_options(travel="move_model", threads="sampling_threads", ahead="prefetch")
@dataclass(frozen=True, kw_only=True)
class Migrate(Strategy):
    """Training on sampled mini-batches, whose seeds are computed where they live. Models move, or their gradients do.

    Attributes:
        partition: How nodes and their features are dealt out to workers: see ``outgrow partition``.
        move_model: Whether models go from worker to worker, as published, a time step for each; else each
            worker computes all of its seeds at once.
        pregather: Where models travel: whether a worker fetches the rows of all time steps of a batch before the
            first, each once; else each time step fetches its own.
        merge: Where models travel: whether time steps are merged as long as epochs get faster. The first epoch is not
            judged, in which kernels and caches get warm. Rounding, and nothing else, depends on what is merged.
        time_steps: Where models travel: in how many time steps a batch is trained, at most one for each worker; None
            for that many, or fewer by ``merge``.
        sampling_threads: Threads of a worker that draw batches; None for half as many as compute.
        prefetch: Batches that are drawn, or being drawn, besides the one that is computed.
    """

    name = "migrate"
    exact = True
    uses_minibatches = True

    partition: str = "metis"
    move_model: bool = False
    pregather: bool = True
    merge: bool = True
    time_steps: int | None = None
    sampling_threads: int | None = None
    prefetch: int = 4

    def __post_init__(self) -> None:
        validate_types(asdict(self), get_type_hints(Migrate))
        validate_choice("partition", self.partition, WITHOUT_CHUNKS)
        validate_positive(
            self.name, time_steps=self.time_steps, sampling_threads=self.sampling_threads, prefetch=self.prefetch
        )
        given = [name for name, usual in _MIGRATION_OPTIONS.items() if getattr(self, name) != usual]
        if given and not self.move_model:
            raise InputError(
                f"{' and '.join(given)} of strategy migrate would do nothing",
                needed="move_model=true: only where models travel is there more than one time step",
                got=", ".join(f"{name}={getattr(self, name)}" for name in given) + " without move_model",
                repair="add move_model=true, or set "
                + ", ".join(f"{name}={_describe_value(_MIGRATION_OPTIONS[name])}" for name in given),
            )

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        return _MigrateExecution(problem, self)


def _describe_value(usual: object) -> str:
    """As it is typed."""
    return "null" if usual is None else str(usual).lower()


class _MigrateExecution:
    in_memory = True

    def __init__(self, problem: Problem, options: Migrate) -> None:
        self.problem, self.shard, self.comm = problem, problem.shard, problem.shard.comm
        self.batches = MiniBatchExecution(
            problem,
            make_sampler(self.shard.topology, problem.model, problem.batches, problem.seed),
            RemoteFeatureStore(self.shard, problem.features, input_dtype(problem.model, problem.features)),
            self._plan_batch,
            labels=self._labels_of,
            prefetch=PrefetchConfig.from_options(options.sampling_threads, options.prefetch),
            gather_once=options.pregather,
        )
        moves_model = options.move_model and isinstance(self.shard, PartitionShard)
        self.merger = self._make_merger(options) if moves_model else None
        if self.merger is not None and self.merger.may_drop:
            _ = problem.seed_labels  # fetched now, by all workers together
        self.is_warm = False

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        seconds, began = 0.0, time.perf_counter()
        with closing(self.batches.steps(epoch, first)) as steps:
            for step in steps:
                seconds += time.perf_counter() - began
                yield step
                began = time.perf_counter()
        if self.merger is not None and self.is_warm and first == 0:
            self._record_seconds(self.merger, seconds)
        self.is_warm = True

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        return self.batches.inference()

    def close(self) -> None:
        self.batches.close()

    def _plan_batch(self, seeds: Tensor) -> MicroBatchPlan:
        if self.merger is None:
            return MicroBatchPlan.in_one_step(self.shard.filter_owned(seeds))
        assert isinstance(self.shard, PartitionShard)
        return migration_schedule(seeds, self.shard.owner[seeds], self.comm.rank, self.comm.size, self.merger.dropped)

    def _labels_of(self, seeds: Tensor) -> Tensor:
        """Where time steps are dropped, seeds may be others' than the worker's own."""
        dropped = self.merger is not None and self.merger.may_drop
        return self.problem.seed_labels.lookup(seeds) if dropped else self.problem.own_labels(seeds)

    def _make_merger(self, options: Migrate) -> TimeStepMerger:
        """How many time steps there are, and whether that may change; an interrupted run may have found it out."""
        size = self.comm.size
        if options.time_steps is not None or not options.merge:
            return TimeStepMerger(size=size, dropped=size - min(size, options.time_steps or size), settled=True)
        known = TimeStepMerger.from_hint(self.problem.resume_hints.get(Migrate.name), size)
        self._record_merger(known)
        return known

    def _record_seconds(self, merger: TimeStepMerger, seconds: float) -> None:
        """Decide on the next epoch by what this one took, in the mean over all workers."""
        if not merger.settled:
            mean = self.comm.all_reduce(torch.tensor(seconds, dtype=torch.float64)).item() / self.comm.size
            self.merger = merger.after_epoch(mean)
            self._record_merger(self.merger)

    def _record_merger(self, merger: TimeStepMerger) -> None:
        self.problem.resume_hints[Migrate.name] = merger.as_hint()
        self.problem.run_facts["time_steps"] = [list(each) for each in merger.log]
