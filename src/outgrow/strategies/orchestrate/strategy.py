"""`orchestrate`: the bottom layer is shared between the CPU and the device.

Ai, Wang, Cao, Zhang, et al.: NeutronOrch: rethinking sample-based GNN training under CPU-GPU heterogeneous
environments, PVLDB 17, 2024. While the device trains ``n`` batches, a *super-batch*, the CPU computes the
bottom layer of the *hot* nodes of the next super-batch, so that the device need not fetch the raw features of
their neighbourhoods. The result of a node is used in all batches of that super-batch, and is then at most
``2n - 1`` updates old.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_options
from outgrow.core.errors import InputError
from outgrow.core.memory_limits import validate_memory_limit
from outgrow.core.validation import validate_choice, validate_positive
from outgrow.engine.batches import BatchConfig
from outgrow.engine.features.cache import cache_capacity_rows, hottest_nodes, mean_row_bytes, validate_cache
from outgrow.engine.features.remote import RemoteFeatureStore, input_dtype
from outgrow.engine.features.store import CachedFeatureStore
from outgrow.engine.minibatch_loop import PrefetchConfig, make_sampler
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model
from outgrow.nn.node_embedding import find_embeddings
from outgrow.ops import memory_pool
from outgrow.ops.owned_rows import held_rows
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.system.device import free_device_bytes
from outgrow.strategies.base import Execution, Problem, Step, Strategy, inference_after_batches
from outgrow.strategies.orchestrate.device_side import DeviceSide, to_device_counted
from outgrow.strategies.orchestrate.host_side import HostSide, bottom_model, bottom_parameters
from outgrow.strategies.orchestrate.hot_embeddings import ReuseSpec
from outgrow.strategies.orchestrate.hot_gradient import HotGradient
from outgrow.strategies.orchestrate.hot_inputs import aggregates_raw_features
from outgrow.strategies.orchestrate.load_balancer import HotNodeCounts, HotRatioTuner, LoadBalancer
from outgrow.strategies.orchestrate.loop import SuperBatchLoop
from outgrow.strategies.orchestrate.parameter_history import ParameterHistory
from outgrow.strategies.orchestrate.sampling import HotColdSampler, SampledBatch, count_bottom_nodes, plan_super_batches
from outgrow.strategies.orchestrate.sparse_aggregates import validate_sparse_aggregate_bytes, validate_sparse_aggregates

_PRESAMPLING_EPOCHS = (0, -1)  # epochs are numbered from 1
_FIRST_RATIO = 0.05
_REUSES = dict.fromkeys(("embedding", "aggregate"))
_SIDES = dict.fromkeys(("cpu", "device"))


@renamed_options(newest="latest_parameters", threads="sampling_threads")
@check_arguments()
@dataclass(frozen=True, kw_only=True)
class Orchestrate(Strategy):
    """Training on sampled mini-batches, where the CPU computes the bottom layer of hot nodes in advance.

    Attributes:
        partition: How nodes, their features and their seeds are assigned to workers: see ``outgrow
            partition``.
        hot_ratio: Share of all nodes that are hot: those that batches need most often in the bottom layer,
            counted in epochs that are sampled first and not trained. None to start with 0.05 and to double it
            every few super-batches as long as batches get faster; two runs then differ.
        super_batch: ``n``, the number of batches that use the same results of hot nodes.
        reuse: What is reused: ``"embedding"``, the output of the bottom layer, up to ``2n - 1`` updates old;
            or ``"aggregate"``, the sum of raw features, which has no parameters and does not age.
        hot_gradient: Whether hot nodes contribute to the gradient of the bottom layer, weighted by one over their age
            in updates, plus one. If False, embeddings are constants.
        gradient_on: Where that gradient is computed: ``"cpu"``, to which the device sends the gradient of embeddings,
            and which computes that of all parameters of the layer and of an encoder before it; or ``"device"``, to
            which the CPU sends aggregates, as NeutronOrch does: of all parameters if raw features can be summed first,
            else of those applied after the aggregation.
        latest_parameters: Whether the CPU uses the newest parameters when it starts a slice; two runs
            then differ. Else slice ``k`` uses those at the start of batch ``k`` of the super-batch.
        cache: Device memory for features of hot nodes that the device computes itself, as bytes
            (``"64MiB"``) or as a share of all rows (0.1): after each super-batch, while the device waits for
            the CPU and has room, the least hot nodes move there; two runs then differ. 0 to leave all of
            them to the CPU.
        sampling_threads: Threads of a worker that sample batches; None for half as many as compute.
        memory: Limit on the memory of a worker, such as ``"2GiB"``, on its GPU if it has one: features are read from
            their file in coalesced runs, and evaluations keep to what is left. None for no limit.
    """

    name = "orchestrate"
    exact = False
    uses_minibatches = True
    reads_own_features = True

    partition: str = "metis"
    hot_ratio: float | None = 0.2
    super_batch: int = 1
    reuse: str = "embedding"
    hot_gradient: bool = True
    gradient_on: str = "cpu"
    latest_parameters: bool = False
    cache: str | float = 0.0
    sampling_threads: int | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        validate_choice("partition", self.partition, WITHOUT_CHUNKS)
        validate_choice("reuse", self.reuse, _REUSES)
        validate_choice("gradient_on", self.gradient_on, _SIDES)
        validate_positive(self.name, super_batch=self.super_batch, sampling_threads=self.sampling_threads)
        validate_cache(self.cache, "worker")
        validate_memory_limit(self.memory)
        if self.hot_ratio is not None and not 0 <= self.hot_ratio <= 1:
            raise InputError(
                f"option hot_ratio of {self.name} is out of range",
                needed="a share of all nodes, from 0 to 1, or null to tune it automatically",
                got=str(self.hot_ratio),
                repair="give 0.2, say; 0 for no hot nodes, as strategy sampled trains",
            )

    def options(self) -> dict[str, object]:
        """Return the options by name."""
        return asdict(self)

    def is_exact(self, batches: BatchConfig) -> bool:
        """Whether the gradient is exact: without hot nodes, or with aggregates of whole neighbourhoods."""
        return self.hot_ratio == 0 or (self.reuse == "aggregate" and batches.fanout_per_hop(1)[-1] == -1)

    def is_exact_without_edges(self, batches: BatchConfig) -> bool:
        """Whether nothing is reused: rows of several batches have the degrees of the whole graph."""
        return self.hot_ratio == 0

    def validate_model(self, model: Model) -> None:
        """Check that a model has a layer above the bottom one, and aggregates that can be reused if wanted.

        Raises:
            InputError: One of these is not so.
        """
        super().validate_model(model)
        if find_embeddings(model):
            raise InputError(
                f"strategy {self.name} cannot train vectors of nodes",
                needed="a model without a NodeEmbedding: rows of hot nodes are computed on the CPU for several later "
                "batches, each of which changes the vectors that they are computed from",
                got="a model with a NodeEmbedding",
                repair="choose strategy sampled, migrate or split",
            )
        if len(model.layers_list()) < 2:
            raise InputError(
                f"strategy {self.name} has nothing to share in a model of one layer",
                needed="2 layers at least: the bottom one for the CPU and the device, the others for the device",
                got="1 layer",
                repair="add a layer, or choose strategy sampled",
            )
        if self.reuse == "aggregate" and not self._is_static(model, self._reordered_bottom(model)):
            first = model.layers_list()[0].conv
            raise InputError(
                "aggregates of this model's bottom layer cannot be reused: they change as it is trained",
                needed="a layer that combines raw features by weights of the graph before any parameters, or may do so "
                "(gcn, sage, commnet, gin), not one that trains what it combines, as attention and maxima of "
                "projected rows do; and neither dropout nor an encoder before it",
                got=f"{type(first).__name__}, input_dropout {model.input_dropout}"
                + ("" if model.encoder is None else f", encoder {type(model.encoder).__name__}"),
                repair="choose reuse=embedding; or a model such as sage or gcn without input_dropout",
            )

    def bottom_layer(self, model: Model, features: Features) -> Layer:
        """Return the bottom layer in the form that hot nodes use: features are summed first if equivalent.

        Reused aggregates then have no parameters, and embeddings a gradient for all of them.

        Raises:
            InputError: Aggregates are to be reused, and those of these features cannot be.
        """
        bottom = self._reordered_bottom(model)
        if isinstance(features, Tensor):
            return bottom
        if self.reuse == "aggregate":
            validate_sparse_aggregates(model, bottom, features)
            return bottom
        # Other rows are projected first, since their sums would be dense and wide.
        return model.layers_list()[0]

    def _reordered_bottom(self, model: Model) -> Layer:
        first = model.layers_list()[0]
        return (self.keeps_aggregates and first.aggregate_first()) or first

    @property
    def keeps_aggregates(self) -> bool:
        """Whether aggregates of hot nodes are kept, on the device or by the CPU."""
        return self.reuse == "aggregate" or self.hot_gradient

    @property
    def keeps_aggregates_on_host(self) -> bool:
        """Whether they, or what they are made of, are kept by the CPU, which computes the gradient from them."""
        return self.reuse == "embedding" and self.hot_gradient and self.gradient_on == "cpu"

    @staticmethod
    def _is_static(model: Model, bottom: Layer) -> bool:
        return aggregates_raw_features(model, bottom) and model.input_dropout == 0

    def reuse_spec(self, model: Model, bottom: Layer) -> ReuseSpec:
        """Return which results of hot nodes are kept."""
        on_host = self.keeps_aggregates_on_host
        sources = on_host and not aggregates_raw_features(model, bottom)
        kept = self.keeps_aggregates and not sources
        reads = kept and bottom.reads_target
        return ReuseSpec(self.reuse == "embedding", kept, reads, on_host=on_host, sources=sources)

    def prepare(self, problem: Problem) -> Execution:
        """Return the execution that trains the problem."""
        return OrchestrateExecution(problem, self)


class OrchestrateExecution:
    """The execution of `Orchestrate`. Final.

    Args:
        problem: The training problem.
        options: The strategy with its options.
    """

    in_memory = True

    def __init__(self, problem: Problem, options: Orchestrate) -> None:
        self.problem = problem
        self.options = options
        self.shard = problem.shard
        self.comm = problem.shard.comm
        self.model = problem.model
        self.sampler = make_sampler(
            self.shard.topology, self.model, problem.batches, problem.seed, problem.memory_limit
        )
        rows = partial(RemoteFeatureStore, self.shard, problem.feature_rows, input_dtype(self.model, problem.features))
        self.cold_store = CachedFeatureStore(rows(), partial(to_device_counted, comm=self.comm))
        self.hotness = self._count_hotness()
        # Sorted by hotness, so that any number of hot nodes is a prefix.
        self.hot_nodes = hottest_nodes(self.hotness, len(self.hotness))
        free_rows = self._free_cache_rows if options.cache else None
        self.balancer = LoadBalancer(self._make_tuner(), self.hot_nodes, len(self.hotness), free_rows)
        features = held_rows(problem.features)
        bottom = options.bottom_layer(self.model, features)
        if options.reuse == "aggregate" and isinstance(features, SparseRows):
            dtype = input_dtype(self.model, problem.features)
            validate_sparse_aggregate_bytes(self.balancer.tuner.most_hot, features, dtype)
        self.history = ParameterHistory(options.super_batch)
        if (saved := problem.strategy_state.get(Orchestrate.name)) is not None:
            self.history.load_state(saved, bottom_parameters(self.model))
        gradient = HotGradient(self.model, bottom, self.comm) if options.keeps_aggregates_on_host else None
        self.loop = SuperBatchLoop(
            DeviceSide(self.model, bottom, self.comm, 2 * options.super_batch - 1, gradient),
            self.cold_store,
            partial(
                HostSide,
                bottom_model(self.model, bottom),
                # The CPU's thread fetches features too, so it needs a communicator of its own.
                rows(comm=self.comm.background_comm),
                hotness=self.hotness,
                reuse=options.reuse_spec(self.model, bottom),
                latest_parameters=options.latest_parameters,
            ),
            self._batch_loss,
            self.history,
            self.balancer,
            prefetch=PrefetchConfig.from_options(options.sampling_threads, 2 * options.super_batch),
            latest_parameters=options.latest_parameters,
        )

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """Yield the steps of an epoch."""
        self.problem.reserve_memory_of_batches()
        seconds = 0.0
        began = time.perf_counter()
        with closing(self._run_epoch(epoch, first)) as steps:
            for step in steps:
                seconds += time.perf_counter() - began
                yield step
                began = time.perf_counter()
        if facts := self.balancer.end_epoch(seconds, self.loop.wait_seconds):
            self.problem.run_facts["hot_nodes"] = facts

    def _run_epoch(self, epoch: int, first: int) -> Generator[Step]:
        batches = self.problem.batches_of_epoch(epoch)
        none = torch.zeros(len(self.hotness), dtype=torch.bool)
        sampler = HotColdSampler(self.sampler, epoch, batches, self.problem.select_seeds, none)
        self.loop.wait_seconds = 0.0
        self.balancer.start_epoch(epoch)
        if first >= len(batches):
            return
        supers = plan_super_batches(len(batches), self.options.super_batch)
        with closing(self.loop.steps(sampler, self.history.start_epoch(epoch, first, supers))) as steps:
            for loss, num_seeds in steps:
                # For a checkpoint that is written after the step.
                self.problem.strategy_state[Orchestrate.name] = self.history.state()
                yield Step(loss=loss, num_seeds=num_seeds)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the logits of all own nodes as one piece."""
        return inference_after_batches(self.problem)

    def close(self) -> None:
        """Release what the execution holds."""
        memory_pool.release_idle_memory()

    def _batch_loss(self, logits: Tensor, batch: SampledBatch) -> Tensor:
        if batch.links is not None:
            # With a gradient even if all is reused, so that all workers take part in the same exchanges.
            return self.problem.link_loss(logits if logits.requires_grad else logits.requires_grad_(), batch.links)
        return self.problem.batch_loss(logits, self.problem.own_labels(batch.seeds), batch.num_seeds)

    def _count_hotness(self) -> Tensor:
        """Return how hot each node is for this worker, ``[V]`` int64."""
        num_nodes = self.shard.topology.num_nodes
        if self.options.hot_ratio == 0:
            # Nothing is hot: presampling would be wasted.
            return torch.zeros(num_nodes, dtype=torch.int64)
        batches = self.problem.batches_of_epoch
        none = torch.zeros(num_nodes, dtype=torch.bool)
        return count_bottom_nodes(
            [
                HotColdSampler(self.sampler, each, batches(each), self.problem.select_seeds, none)
                for each in _PRESAMPLING_EPOCHS
            ]
        )

    def _make_tuner(self) -> HotRatioTuner:
        """Return the tuner with the worker's share of the hot nodes before the first epoch."""
        ratio = self.options.hot_ratio
        share = len(self.hotness) / self.comm.size
        # Each worker ranks nodes by its own batches, so it gets an equal share of the ratio.
        possible = len(self.hot_nodes)
        if ratio is None:
            counts = HotNodeCounts(min(possible, math.ceil(_FIRST_RATIO * share)), 0)
            return HotRatioTuner(counts=counts, max_hot=possible, is_growing=True)
        return HotRatioTuner(counts=HotNodeCounts(min(possible, round(ratio * share)), 0), max_hot=possible)

    def _free_cache_rows(self, num_cached: int) -> int:
        """Return the number of further rows that the device could cache."""
        features = self.problem.features
        device = self.comm.device
        free = int(free_device_bytes(device) / mean_row_bytes(features))
        # The option and the free memory both limit the cache. While it grows there are two of it, and the new rows.
        capacity = cache_capacity_rows(self.options.cache, features)
        return max(0, min(capacity - num_cached, (free - num_cached) // 2))
