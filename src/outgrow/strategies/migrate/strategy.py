"""`migrate`: models move to the features, instead of features to the models.

Chen, He, Qu, Zhang: HopGNN: boosting distributed GNN training efficiency via feature-centric model migration,
2024. Each seed is computed by its owner, which with a good partition also owns most of the neighbourhood. In
the paper, models migrate from worker to worker with their gradients so far, to train on the seeds of their
micro-batches on each worker. All models hold the same parameters until the batch ends, and gradients are
summed then, so it is equivalent that each worker computes all seeds that it owns. That is the default here:
only the sum is exchanged.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_options
from outgrow.core.errors import InputError
from outgrow.core.memory_limits import validate_memory_limit
from outgrow.core.validation import validate_choice, validate_positive
from outgrow.engine.features.cache import require_other_hosts, validate_cache
from outgrow.engine.features.cached_remote import make_cached_store
from outgrow.engine.link_batches import Batch
from outgrow.engine.minibatch_loop import PrefetchConfig, make_sampler
from outgrow.engine.model_migration import MicroBatchPlan
from outgrow.engine.shard import PartitionShard
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.nn.model import Model
from outgrow.strategies.base import Execution, MiniBatchExecution, Problem, Step, Strategy
from outgrow.strategies.migrate.schedule import TimeStepMerger, migration_schedule

_MIGRATION_OPTIONS: Mapping[str, object] = {"pregather": True, "merge": True, "time_steps": None}
"""Options that apply to migrating models only, and their defaults."""


@renamed_options(travel="move_model", threads="sampling_threads", ahead="prefetch")
@check_arguments()
@dataclass(frozen=True, kw_only=True)
class Migrate(Strategy):
    """Training on sampled mini-batches whose seeds are computed by their owners. Models or gradients move.

    Attributes:
        partition: How nodes and their features are assigned to workers: see ``outgrow partition``.
        move_model: Whether models move from worker to worker, as published, in one time step for each; else
            each worker computes all of its seeds at once.
        pregather: With ``move_model``: whether a worker fetches the rows of all time steps of a batch before
            the first one, each row once; else each time step fetches its own.
        merge: With ``move_model``: whether time steps are merged as long as epochs get faster, by the medians of
            several epochs. The first epoch is ignored, since kernels and caches are cold. Merging changes nothing but
            rounding.
        time_steps: With ``move_model``: number of time steps of a batch, at most one for each worker; None
            for that many, or fewer by ``merge``.
        sampling_threads: Threads of a worker that sample batches; None for half as many as compute.
        prefetch: Batches sampled, or being sampled, ahead of the one being computed; 0 takes least memory.
        memory: Limit on the memory of a worker, such as ``"2GiB"``, on its GPU if it has one: fewer batches are ahead,
            features are read from their file in coalesced runs, and evaluations keep to what is left. None for no
            limit.
        cache: Size of a cache of rows that workers of other hosts own, as bytes (``"64MiB"``) or as a share of all
            rows (0.1).
        cache_by: Which rows are cached: those of the nodes with most out-edges (``"degree"``), or those that a worker
            requests most often in an epoch that is sampled first and not trained (``"presampling"``), with
            ``move_model`` in all time steps.
        cache_scope: Whether each worker has its own cache (``"worker"``), or the workers of a host share one, without
            duplicates (``"host"``), for rows of other hosts.
    """

    name = "migrate"
    exact = True
    uses_minibatches = True
    reads_own_features = True
    draws_by_time = True
    fewest_prefetched = 0

    partition: str = "metis"
    move_model: bool = False
    pregather: bool = True
    merge: bool = True
    time_steps: int | None = None
    sampling_threads: int | None = None
    prefetch: int = 4
    memory: str | None = None
    cache: str | float = 0.0
    cache_by: str = "degree"
    cache_scope: str = "worker"

    def __post_init__(self) -> None:
        validate_choice("partition", self.partition, WITHOUT_CHUNKS)
        validate_cache(self.cache, self.cache_scope, self.cache_by)
        validate_positive(self.name, time_steps=self.time_steps, sampling_threads=self.sampling_threads)
        validate_positive(self.name, least=0, prefetch=self.prefetch)
        validate_memory_limit(self.memory)
        given = [name for name, usual in _MIGRATION_OPTIONS.items() if getattr(self, name) != usual]
        if given and not self.move_model:
            raise InputError(
                f"{' and '.join(given)} of strategy migrate would do nothing",
                needed="move_model=true: without it a batch has only one time step",
                got=", ".join(f"{name}={getattr(self, name)}" for name in given) + " without move_model",
                repair="add move_model=true, or set "
                + ", ".join(f"{name}={_describe_value(_MIGRATION_OPTIONS[name])}" for name in given),
            )

    def options(self) -> dict[str, object]:
        """Return the options by name."""
        return asdict(self)

    def validate_workers(self, num_workers: int, num_hosts: int) -> None:
        """Check that there are other hosts whose rows can be cached.

        Raises:
            InputError: There are none, but a cache is asked for.
        """
        require_other_hosts(self.cache, num_workers, num_hosts)

    def validate_model(self, model: Model) -> None:
        """Check that a model that moves predicts nodes.

        Raises:
            InputError: It predicts links.
        """
        if self.move_model and model.decoder is not None:
            raise InputError(
                "a model of links cannot move from worker to worker",
                needed="move_model=false: a link needs the rows of both ends at once, and a model that moves computes "
                "them in different time steps",
                got=f"move_model=true, and a model with the decoder {type(model.decoder).__name__}",
                repair="leave move_model out: each worker then computes the ends that it owns",
            )

    def prepare(self, problem: Problem) -> Execution:
        """Return the execution that trains the problem."""
        return _MigrateExecution(problem, self)


def _describe_value(usual: object) -> str:
    """Return a value as a user types it."""
    return "null" if usual is None else str(usual).lower()


class _MigrateExecution:
    in_memory = True

    def __init__(self, problem: Problem, options: Migrate) -> None:
        self.problem = problem
        self.shard = problem.shard
        self.comm = problem.shard.comm
        # First: it decides what a batch requests, by which a cache may be filled.
        moves_model = options.move_model and isinstance(self.shard, PartitionShard)
        self.merger = self._make_merger(options) if moves_model else None
        sampler = make_sampler(self.shard.topology, problem.model, problem.batches, problem.seed, problem.memory_limit)
        self.batches = MiniBatchExecution(
            problem,
            sampler,
            make_cached_store(problem, sampler, self._plan_batch, options, gather_once=options.pregather),
            self._plan_batch,
            labels=self._labels_of,
            prefetch=PrefetchConfig.from_options(options.sampling_threads, options.prefetch),
            gather_once=options.pregather,
        )
        if self.merger is not None and self.merger.may_drop:
            # Fetched now, by all workers together: later accesses come at times of their own.
            _ = problem.seed_labels
        self.is_warm = False

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        seconds = 0.0
        began = time.perf_counter()
        with closing(self.batches.steps(epoch, first)) as steps:
            for step in steps:
                # Stopped at the yield, as the trainer's own work says nothing about time steps.
                seconds += time.perf_counter() - began
                yield step
                began = time.perf_counter()
        # A resumed epoch is partial, and the first one compiles kernels: neither can be compared.
        if self.merger is not None and self.is_warm and first == 0:
            self._record_seconds(self.merger, seconds)
        self.is_warm = True

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        return self.batches.inference()

    def close(self) -> None:
        self.batches.close()

    def _plan_batch(self, batch: Batch) -> MicroBatchPlan:
        if self.merger is None or not isinstance(batch, Tensor):
            return MicroBatchPlan.in_one_step(self.problem.select_seeds(batch))
        assert isinstance(self.shard, PartitionShard)
        return migration_schedule(
            batch, self.shard.owner[batch], self.comm.rank, self.comm.size, self.merger.num_dropped
        )

    def _labels_of(self, seeds: Tensor) -> Tensor:
        """Return labels of seeds, which may belong to other workers when time steps are dropped."""
        dropped = self.merger is not None and self.merger.may_drop
        return self.problem.seed_labels.lookup(seeds) if dropped else self.problem.own_labels(seeds)

    def _make_merger(self, options: Migrate) -> TimeStepMerger:
        """Return the state of merging, from the options or from an interrupted run."""
        size = self.comm.size
        if options.time_steps is not None or not options.merge:
            return TimeStepMerger(size=size, kept=size - min(size, options.time_steps or size), settled=True)
        known = TimeStepMerger.from_hint(self.problem.resume_hints.get(Migrate.name), size)
        self._record_merger(known)
        return known

    def _record_seconds(self, merger: TimeStepMerger, seconds: float) -> None:
        """Update the state by the seconds of an epoch, averaged over all workers."""
        if not merger.is_settled:
            # All workers must decide alike, or their schedules would not match.
            mean = self.comm.all_reduce(torch.tensor(seconds, dtype=torch.float64)).item() / self.comm.size
            self.merger = merger.after_epoch(mean)
            self._record_merger(self.merger)

    def _record_merger(self, merger: TimeStepMerger) -> None:
        self.problem.resume_hints[Migrate.name] = merger.as_hint()
        self.problem.run_facts["time_steps"] = [list(each) for each in merger.log]
        self.problem.run_facts["time_step_decisions"] = [each._asdict() for each in merger.decisions]
