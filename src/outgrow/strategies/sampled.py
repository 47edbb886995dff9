"""`sampled`: mini-batches of seeds and their sampled neighbourhoods, with the features moved to them.

The data-parallel training of DGL and DistDGL (Zheng et al., IA3 2020): every worker owns the features of one part of
the graph, takes the seeds of each batch that it owns, samples their neighbourhood, fetches the features of its nodes
from their owners, and computes. Sampling and fetching of later batches go on while one is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import get_type_hints

from torch import Tensor

from outgrow.core.validation import pick, require_positive, require_types
from outgrow.engine.features.cache import Cache, hotness_by, require_cache
from outgrow.engine.features.remote import RemoteFeatureStore, row_type
from outgrow.engine.minibatch_loop import Ahead, sampler_of
from outgrow.engine.model_migration import Tour
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.graph.sampling.neighbor_sampler import Sampler
from outgrow.strategies.base import BatchExecution, Execution, Problem, Strategy

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
        share = problem.share
        sampler = sampler_of(share.topology, problem.model, problem.batches, problem.seed)
        cache = self._cache(problem, sampler) if self.cache and share.comm.size > 1 else None
        return BatchExecution(
            problem,
            sampler,
            RemoteFeatureStore(share, problem.features, row_type(problem.model, problem.features), cache),
            lambda seeds: Tour.at_once(share.mine(seeds)),
            labels=problem.own_labels,
            ahead=Ahead.of(self.threads, self.ahead),
        )

    def _cache(self, problem: Problem, sampler: Sampler) -> Cache:
        """The cache that is asked for, not filled yet."""
        share = problem.share

        def asked_before() -> Iterator[Tensor]:
            """The nodes whose rows each batch of an epoch asks for that is not trained."""
            for step, seeds in enumerate(problem.seeds(_BEFORE)):
                yield sampler.blocks(share.mine(seeds), _BEFORE, step)[0].src_nodes

        hotness = hotness_by(self.cache_by, share.topology, asked_before)
        return Cache(hotness=hotness, size=self.cache, place=self.cache_over)
