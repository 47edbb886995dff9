"""The feature store of workers that sample around seeds and fetch rows of others, with a cache if one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from outgrow.engine.features.cache import CacheSpec, compute_hotness
from outgrow.engine.features.remote import RemoteFeatureStore, input_dtype
from outgrow.engine.link_batches import Batch
from outgrow.engine.model_migration import MicroBatchPlan
from outgrow.engine.problem import Problem
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler

_PRESAMPLING_EPOCH = 0  # epochs are numbered from 1


class CacheOptions(Protocol):
    """Options of a cache of rows of other hosts, as strategies have them; see `CacheSpec`."""

    @property
    def cache(self) -> str | float:
        """Size, as bytes or as a share of all rows; 0 for no cache."""

    @property
    def cache_by(self) -> str:
        """What makes a row hot; see `compute_hotness`."""

    @property
    def cache_scope(self) -> str:
        """Who shares a cache."""


def make_cached_store(
    problem: Problem,
    sampler: NeighborSampler,
    plan_batch: Callable[[Batch], MicroBatchPlan],
    options: CacheOptions,
    *,
    gather_once: bool = True,
) -> RemoteFeatureStore:
    """Make the feature store of a worker. All workers together, which fill their caches.

    Args:
        problem: The training problem.
        sampler: Samples neighbourhoods.
        plan_batch: Returns the worker's part of a batch.
        options: Options of the cache.
        gather_once: Whether a worker requests the rows of all groups of a batch together.
    """
    shard = problem.shard

    def presample_requests() -> Iterator[Tensor]:
        """Yield the nodes of each request of an epoch that is not trained."""
        for step, batch in enumerate(problem.batches_of_epoch(_PRESAMPLING_EPOCH)):
            groups = plan_batch(batch).groups
            sources = [sampler.sample_blocks(group, _PRESAMPLING_EPOCH, step)[0].src_nodes for group in groups]
            yield from [torch.unique(torch.cat(sources))] if gather_once and len(sources) > 1 else sources

    cache = None
    if options.cache:
        hotness = compute_hotness(options.cache_by, shard.topology, presample_requests)
        cache = CacheSpec(hotness=hotness, size=options.cache, scope=options.cache_scope)
    return RemoteFeatureStore(shard, problem.feature_rows, input_dtype(problem.model, problem.features), cache)
