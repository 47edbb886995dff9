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

from outgrow.core.errors import InputError
from outgrow.core.validation import pick, require_positive, require_types
from outgrow.engine.features.remote import RemoteFeatureStore, row_type
from outgrow.engine.minibatch_loop import Ahead, sampler_of
from outgrow.engine.model_migration import Tour
from outgrow.engine.shard import Part
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.strategies.base import BatchExecution, Execution, Problem, Step, Strategy
from outgrow.strategies.migrate.merging import Merging
from outgrow.strategies.migrate.schedule import tour

_OF_TRAVEL: Mapping[str, object] = {"pregather": True, "merge": True, "time_steps": None}
"""Options that only travelling models have, and what they are if not given."""


@dataclass(frozen=True, kw_only=True)
class Migrate(Strategy):
    """Training on sampled mini-batches, whose seeds are computed where they live. Models move, or their gradients do.

    Attributes:
        partition: How nodes and their features are dealt out to workers: see ``outgrow partition``.
        travel: Whether models go from worker to worker, as published, a time step for each; else each worker computes
            all of its seeds at once.
        pregather: Where models travel: whether a worker fetches the rows of all time steps of a batch before the
            first, each once; else each time step fetches its own.
        merge: Where models travel: whether time steps are merged as long as epochs get faster. The first epoch is not
            judged, in which kernels and caches get warm. Rounding, and nothing else, depends on what is merged.
        time_steps: Where models travel: in how many time steps a batch is trained, at most one for each worker; None
            for that many, or fewer by ``merge``.
        threads: Threads of a worker that draw batches; None for half as many as compute.
        ahead: Batches that are drawn, or being drawn, besides the one that is computed.
    """

    name = "migrate"
    exact = True
    takes_batches = True

    partition: str = "metis"
    travel: bool = False
    pregather: bool = True
    merge: bool = True
    time_steps: int | None = None
    threads: int | None = None
    ahead: int = 4

    def __post_init__(self) -> None:
        require_types(asdict(self), get_type_hints(Migrate))
        pick("partition", self.partition, WITHOUT_CHUNKS)
        require_positive(self.name, time_steps=self.time_steps, threads=self.threads, ahead=self.ahead)
        given = [name for name, usual in _OF_TRAVEL.items() if getattr(self, name) != usual]
        if given and not self.travel:
            raise InputError(
                f"{' and '.join(given)} of strategy migrate would do nothing",
                needed="travel=true: only where models travel is there more than one time step",
                got=", ".join(f"{name}={getattr(self, name)}" for name in given) + " without travel",
                repair="add travel=true, or set " + ", ".join(f"{name}={_spelled(_OF_TRAVEL[name])}" for name in given),
            )

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        return _MigrateExecution(problem, self)


def _spelled(usual: object) -> str:
    """As it is typed."""
    return "null" if usual is None else str(usual).lower()


class _MigrateExecution:
    in_memory = True

    def __init__(self, problem: Problem, options: Migrate) -> None:
        self.problem, self.share, self.comm = problem, problem.share, problem.share.comm
        self.batches = BatchExecution(
            problem,
            sampler_of(self.share.topology, problem.model, problem.batches, problem.seed),
            RemoteFeatureStore(self.share, problem.features, row_type(problem.model, problem.features)),
            self._tour,
            labels=self._labels,
            ahead=Ahead.of(options.threads, options.ahead),
            gather_once=options.pregather,
        )
        travel = options.travel and isinstance(self.share, Part)
        self.merging = self._merging(options) if travel else None
        if self.merging is not None and self.merging.may_drop:
            _ = problem.seed_labels  # fetched now, by all workers together
        self.warm = False

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        seconds, began = 0.0, time.perf_counter()
        with closing(self.batches.steps(epoch, first)) as steps:
            for step in steps:
                seconds += time.perf_counter() - began
                yield step
                began = time.perf_counter()
        if self.merging is not None and self.warm and first == 0:
            self._heard(self.merging, seconds)
        self.warm = True

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        return self.batches.inference()

    def close(self) -> None:
        self.batches.close()

    def _tour(self, seeds: Tensor) -> Tour:
        if self.merging is None:
            return Tour.at_once(self.share.mine(seeds))
        assert isinstance(self.share, Part)
        return tour(seeds, self.share.owner[seeds], self.comm.rank, self.comm.size, self.merging.dropped)

    def _labels(self, seeds: Tensor) -> Tensor:
        """Where time steps are dropped, seeds may be others' than the worker's own."""
        dropped = self.merging is not None and self.merging.may_drop
        return self.problem.seed_labels.of(seeds) if dropped else self.problem.own_labels(seeds)

    def _merging(self, options: Migrate) -> Merging:
        """How many time steps there are, and whether that may change; an interrupted run may have found it out."""
        size = self.comm.size
        if options.time_steps is not None or not options.merge:
            return Merging(size=size, dropped=size - min(size, options.time_steps or size), settled=True)
        known = Merging.of_hint(self.problem.hints.get(Migrate.name), size)
        self._tell(known)
        return known

    def _heard(self, merging: Merging, seconds: float) -> None:
        """Decide on the next epoch by what this one took, in the mean over all workers."""
        if not merging.settled:
            mean = self.comm.sum_(torch.tensor(seconds, dtype=torch.float64)).item() / self.comm.size
            self.merging = merging.after(mean)
            self._tell(self.merging)

    def _tell(self, merging: Merging) -> None:
        self.problem.hints[Migrate.name] = merging.as_hint()
        self.problem.facts["time_steps"] = [list(each) for each in merging.log]
