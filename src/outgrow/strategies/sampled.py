"""`sampled`: mini-batches of seeds and their sampled neighbourhoods, whose features are fetched.

The data-parallel training of DGL and DistDGL (Zheng et al., IA3 2020): every worker owns the features of one
part of the graph, takes the seeds of each batch that it owns, samples their neighbourhood, fetches the
features of its nodes from their owners, and computes. Sampling and fetching of later batches overlap with the
computation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_options
from outgrow.core.memory_limits import validate_memory_limit
from outgrow.core.validation import validate_choice, validate_positive
from outgrow.engine.features.cache import require_other_hosts, validate_cache
from outgrow.engine.features.cached_remote import make_cached_store
from outgrow.engine.link_batches import Batch
from outgrow.engine.minibatch_loop import PrefetchConfig, make_sampler
from outgrow.engine.model_migration import MicroBatchPlan
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.strategies.base import Execution, MiniBatchExecution, Problem, Strategy


@renamed_options(threads="sampling_threads", ahead="prefetch", cache_over="cache_scope")
@check_arguments()
@dataclass(frozen=True, kw_only=True)
class Sampled(Strategy):
    """Training on sampled mini-batches with fetched features. The reference of all mini-batch strategies.

    Attributes:
        partition: How nodes, their features and their seeds are assigned to workers: see ``outgrow
            partition``.
        sampling_threads: Threads of a worker that sample batches; None for half as many as compute.
        prefetch: Batches sampled, or being sampled, ahead of the one being computed; 0 takes least memory.
        memory: Limit on the memory of a worker, such as ``"2GiB"``, on its GPU if it has one: fewer batches are ahead,
            features are read from their file in coalesced runs, and evaluations keep to what is left. None for no
            limit.
        cache: Size of a cache of rows that workers of other hosts own, as bytes (``"64MiB"``) or as a share of
            all rows (0.1).
        cache_by: Which rows are cached: those of the nodes with most out-edges (``"degree"``), or those that
            a worker requests most often in an epoch that is sampled first and not trained
            (``"presampling"``).
        cache_scope: Whether each worker has its own cache (``"worker"``), or the workers of a host share one,
            without duplicates (``"host"``), for rows of other hosts.
    """

    name = "sampled"
    exact = True
    uses_minibatches = True
    reads_own_features = True
    draws_by_time = True
    fewest_prefetched = 0

    partition: str = "metis"
    sampling_threads: int | None = None
    prefetch: int = 4
    memory: str | None = None
    cache: str | float = 0.0
    cache_by: str = "degree"
    cache_scope: str = "worker"

    def __post_init__(self) -> None:
        validate_choice("partition", self.partition, WITHOUT_CHUNKS)
        validate_cache(self.cache, self.cache_scope, self.cache_by)
        validate_positive(self.name, sampling_threads=self.sampling_threads)
        validate_positive(self.name, least=0, prefetch=self.prefetch)
        validate_memory_limit(self.memory)

    def options(self) -> dict[str, object]:
        """Return the options by name."""
        return asdict(self)

    def validate_workers(self, num_workers: int, num_hosts: int) -> None:
        """Check that there are other hosts whose rows can be cached.

        Raises:
            InputError: There are none, but a cache is asked for.
        """
        require_other_hosts(self.cache, num_workers, num_hosts)

    def prepare(self, problem: Problem) -> Execution:
        """Return the execution that trains the problem."""
        shard = problem.shard
        sampler = make_sampler(shard.topology, problem.model, problem.batches, problem.seed, problem.memory_limit)

        def plan_batch(batch: Batch) -> MicroBatchPlan:
            return MicroBatchPlan.in_one_step(problem.select_seeds(batch))

        return MiniBatchExecution(
            problem,
            sampler,
            make_cached_store(problem, sampler, plan_batch, self),
            plan_batch,
            labels=problem.own_labels,
            prefetch=PrefetchConfig.from_options(self.sampling_threads, self.prefetch),
        )
