"""`sampled`: mini-batches of seeds and their sampled neighbourhoods, with the features moved to them.

The data-parallel training of DGL and DistDGL (Zheng et al., IA3 2020): every worker owns the features of one part of
the graph, takes the seeds of each batch that it owns, samples their neighbourhood, fetches the features of its nodes
from their owners, and computes. Sampling and fetching of later batches go on while one is computed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import get_type_hints

from torch import Tensor

from outgrow.core.nearest import pick
from outgrow.core.option_types import require_positive, require_types
from outgrow.engine.hot import Cache, hotness_by, require_cache
from outgrow.engine.journey import Tour
from outgrow.engine.micro_batches import Ahead, MicroBatches, sampler_of
from outgrow.engine.rows import RowStore, row_type
from outgrow.graph.partition.method import WITHOUT_CHUNKS
from outgrow.ops import buffers
from outgrow.strategies.base import Execution, Problem, Step, Strategy, whole_inference

_BEFORE = 0  # epochs are numbered from 1


@dataclass(frozen=True, kw_only=True)
class Sampled(Strategy):
    """Training on sampled mini-batches. Features move to the batch. The reference of all mini-batch strategies.

    Attributes:
        partition: How nodes, their features and their seeds are dealt out to workers: see ``outgrow partition``.
        threads: Threads of a worker that draw batches; None for half as many as compute.
        ahead: Batches that are drawn, or being drawn, besides the one that is computed.
        cache: Size of a cache of rows that other workers own, as bytes (``"64MiB"``) or as a share of all rows (0.1).
        cache_by: Which rows are cached: those of nodes with most out-edges (``"degree"``), or those that a worker asks
            for most in an epoch that is sampled first and not trained (``"presampling"``).
        cache_over: Whether each worker has a cache (``"worker"``), or those of a host share one, without duplicates
            (``"host"``), of rows that live on other hosts.
    """

    name = "sampled"
    exact = True
    takes_batches = True

    partition: str = "metis"
    threads: int | None = None
    ahead: int = 4
    cache: str | float = 0.0
    cache_by: str = "degree"
    cache_over: str = "worker"

    def __post_init__(self) -> None:
        require_types(asdict(self), get_type_hints(Sampled))
        pick("partition", self.partition, WITHOUT_CHUNKS)
        require_cache(self.cache, self.cache_over, self.cache_by)
        require_positive(self.name, threads=self.threads, ahead=self.ahead)

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        return _SampledExecution(problem, self)


class _SampledExecution:
    in_memory = True

    def __init__(self, problem: Problem, options: Sampled) -> None:
        self.problem, self.share = problem, problem.share
        self.sampler = sampler_of(self.share.topology, problem.model, problem.batches, problem.seed)
        cache = self._cache(options) if options.cache and self.share.comm.size > 1 else None
        rows = RowStore(self.share, problem.features, row_type(problem.model, problem.features), cache)
        ahead = Ahead.of(options.threads, options.ahead)
        self.work = MicroBatches(problem.model, self.share.comm, self.sampler, rows, self._loss, ahead=ahead)

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        with closing(self.work.steps(epoch, self.problem.seeds(epoch), self._tour, first)) as steps:
            for loss, num_seeds in steps:
                yield Step(loss=loss, num_seeds=num_seeds)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        return whole_inference(self.problem)

    def close(self) -> None:
        buffers.clear()

    def _tour(self, seeds: Tensor) -> Tour:
        return Tour.at_once(self.share.mine(seeds))

    def _loss(self, logits: Tensor, seeds: Tensor, num_seeds: int) -> Tensor:
        return self.problem.batch_loss(logits, self.problem.own_labels(seeds), num_seeds)

    def _cache(self, options: Sampled) -> Cache:
        """The cache that is asked for, not filled yet."""
        hotness = hotness_by(options.cache_by, self.share.topology, self._asked_before)
        return Cache(hotness=hotness, size=options.cache, place=options.cache_over)

    def _asked_before(self) -> Iterator[Tensor]:
        """The nodes whose rows each batch of an epoch asks for that is not trained."""
        for step, seeds in enumerate(self.problem.seeds(_BEFORE)):
            yield self.sampler.blocks(self.share.mine(seeds), _BEFORE, step)[0].src_nodes
