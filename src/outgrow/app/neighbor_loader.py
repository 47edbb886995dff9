"""`NeighborLoader`: sampled mini-batches for training loops of the user's own, as PyG's loader of that name.

The batches of an epoch, their seeds and their in-edges are those of `og.train` with the same seed, batch size and
fan-outs: all are keyed draws (Hamilton, Ying, Leskovec: Inductive representation learning on large graphs, NeurIPS
2017).
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, get_type_hints

import torch
from torch import Tensor

from outgrow.app.graph_sources import reader_for_object
from outgrow.app.output_request import to_ids
from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.core.synonyms import accept_synonyms
from outgrow.core.validation import validate_choice, validate_positive, validate_types
from outgrow.engine.batches import BatchConfig, parse_fanouts
from outgrow.engine.features.assembly import RowSource, choose_row_source
from outgrow.engine.features.store import LocalFeatureStore
from outgrow.engine.features.stored_rows import StoredRows
from outgrow.engine.minibatch_loop import PrefetchConfig, make_sampler
from outgrow.engine.prefetch import prefetch_results
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.graph import Graph
from outgrow.graph.sampling.edge_sampler import NEIGHBOR
from outgrow.graph.sampling.layer_sampling import require_times_of
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.store.reader import find_feature_file
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops.kernels.numerics import accumulate_dtype
from outgrow.ops.rows.edge_rows import gather_edge_features
from outgrow.runtime.storage.row_file import IoPool, RowFile
from outgrow.runtime.system.environment import torchrun_rank, torchrun_world_size

if TYPE_CHECKING:
    from torch_geometric.data import Data  # type: ignore[import-untyped]

_OUTPUTS = ("pyg", "block")
_PARTS = ("train", "val", "test")


class BlockBatch(NamedTuple):
    """A mini-batch as the layers of Outgrow take it: ``model(batch.blocks, batch.x)``.

    Attributes:
        seeds: ``[n]`` int64.
        blocks: Sampled neighbourhood, a block for each layer; the first is that of the first layer.
        x: ``[Vs, D]`` features of the first block's sources, dense or sparse; None for a graph without.
        y: ``[n, ...]`` labels of the seeds, ``graph.task_labels``; None for a graph without.
        input_id: ``[n]`` int64, positions of the seeds among those that the loader was given.
    """

    seeds: Tensor
    blocks: list[Block]
    x: Features | None
    y: Tensor | None
    input_id: Tensor


class _Batch(NamedTuple):
    """Seeds of one worker in one step, ``[n]``, and what determines their draws."""

    epoch: int
    step: int
    seeds: Tensor


class _Options(TypedDict, total=False):
    sampler: str
    weighted: bool
    shuffle: bool
    seed: int
    drop_last: bool
    threads: int | None
    prefetch: int
    temporal_strategy: str | None
    features: bool
    model: Model | None
    rank: int | None
    world_size: int | None
    persistent_workers: bool


_DEFAULTS = _Options(
    sampler=NEIGHBOR,
    weighted=False,
    shuffle=True,
    seed=0,
    drop_last=False,
    threads=None,
    prefetch=4,
    temporal_strategy=None,
    features=True,
    model=None,
    rank=None,
    world_size=None,
)


@accept_synonyms(num_neighbors="fanout", input_nodes="seeds", num_workers="threads", prefetch_factor="prefetch")
@check_arguments(unchecked=("graph", "seeds", "fanout"))
class NeighborLoader:
    """Iterable of the sampled mini-batches of an epoch, a new epoch at each iteration. Final.

    Threads sample, and gather features, ahead of the loop; they end with the iteration, also with one that is left
    early. Several iterations may be under way at once.

    Args:
        graph: Graph to sample, or a ``Data`` of PyG, which is converted once.
        seeds: Nodes to make batches of: ``[n]`` distinct ids, a ``[V]`` mask, or ``"train"``, ``"val"`` or ``"test"``;
            None for all nodes. Also ``input_nodes``, as PyG calls them.
        batch_size: Seeds of a batch, over all processes.
        fanout: Neighbours sampled in each hop outward from the seeds, -1 for all; None for all in two hops, or in as
            many as ``model`` has layers. Also ``num_neighbors``.
        sampler: How neighbours are sampled: ``neighbor``, ``neighbor-with-replacement``, ``labor`` or ``fastgcn``.
        weighted: Whether neighbours are sampled by the weights of edges.
        temporal_strategy: Sample only in-edges before the time of the seed: ``uniform`` or ``last``, as PyG calls it;
            None for in-edges of any time. Rows are then pairs of a node and the time of its seed, ``row_time``.
        shuffle: Whether the order of the seeds changes with each epoch.
        seed: Seed of every random draw.
        drop_last: Whether to leave out a last batch with fewer seeds.
        threads: Threads that sample, ``num_workers`` of PyG; None for half as many as compute, as is 0.
        prefetch: Batches sampled, or being sampled, ahead of the one in use.
        output: ``"pyg"`` for ``Data``, ``"block"`` for `BlockBatch`.
        features: Whether batches have features.
        model: With ``output="block"``, the model that gets the blocks: a layer with self-loops (`GCNConv`) needs them
            among its edges. None for edges as the graph has them.
        rank: Number of this process; None for that of torchrun or ``torch.distributed``, or 0.
        world_size: Number of processes, of which each gets a share of every batch; None likewise, or 1.
        **options: Those above from ``sampler`` on; and ``persistent_workers``, accepted for code of PyG: there are no
            worker processes.

    Raises:
        InputError: A seed is repeated or not a node of the graph, fan-outs do not fit the model, or an option has no
            such value.
    """

    def __init__(
        self,
        graph: Any,
        seeds: Any = None,
        batch_size: int = 1024,
        fanout: Any = None,
        *,
        output: str = "pyg",
        **options: object,
    ) -> None:
        validate_types(options, get_type_hints(_Options))
        for name in options:
            validate_choice("option of og.NeighborLoader", name, get_type_hints(_Options))
        rest: Any = {**_DEFAULTS, **options}
        threads, prefetch, seed, model = rest["threads"], rest["prefetch"], rest["seed"], rest["model"]
        validate_choice("output", output, dict.fromkeys(_OUTPUTS))
        validate_positive("NeighborLoader", batch_size=batch_size, prefetch=prefetch, threads=threads or None)
        self.graph = graph if isinstance(graph, Graph) else assemble_graph(reader_for_object(graph))
        self.seeds = _to_seeds(seeds, self.graph)
        self.batches = BatchConfig(
            size=batch_size,
            fanout=parse_fanouts(fanout),
            **{name: rest[name] for name in ("weighted", "sampler", "temporal_strategy")},
        )
        if self.batches.is_temporal:
            require_times_of(self.graph.topology, self.seeds)
        self.shuffle, self.seed, self.drop_last, self.output = rest["shuffle"], seed, rest["drop_last"], output
        self.rank, self.world_size = _find_share(rest["rank"], rest["world_size"])
        self._prefetch = PrefetchConfig.from_options(threads or None, prefetch)
        self._sampler = _make_sampler(self.graph, self.batches, seed, model, output)
        self._store = self._open_feature_store() if rest["features"] else None
        # Here, and not first by several threads at once.
        self._data_class = _import_data_class() if output == "pyg" else None
        # Ids are looked up in ascending order: a table of all nodes would take memory of the whole graph.
        self._sorted_seeds, self._seed_order = self.seeds.sort()
        self._next_epoch = 1

    def __len__(self) -> int:
        """Number of batches of an epoch."""
        size = self.batches.size or 1
        return len(self.seeds) // size if self.drop_last else -(-len(self.seeds) // size)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch of the next iteration; they count from 1, as those of `og.train`."""
        self._next_epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch: ``Data`` or `BlockBatch`."""
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        make: Callable[[_Batch], Any] = self._make_data if self.output == "pyg" else self._make_block_batch
        return self._iterate(make, self._batches_of_epoch(epoch))

    def _iterate(self, make: Callable[[_Batch], Any], batches: list[_Batch]) -> Iterator[Any]:
        threads, ahead = self._prefetch
        with closing(prefetch_results(make, batches, threads=threads, max_ahead=ahead)) as results:
            yield from results

    def _batches_of_epoch(self, epoch: int) -> list[_Batch]:
        batches = self.batches
        whole = (
            batches.seeds_of_epoch(self.seeds, self.seed, epoch)
            if self.shuffle
            else list(torch.split(self.seeds, batches.size or 1))
        )
        # Of an equal length in all processes, so that a loop that exchanges gradients takes equally many steps.
        return [
            _Batch(epoch, step, seeds.tensor_split(self.world_size)[self.rank])
            for step, seeds in enumerate(whole[: len(self)])
        ]

    def _make_data(self, batch: _Batch) -> Data:
        graph = self.graph
        nodes, times, edge_index, edge_ids = self._sampler.sample_subgraph(batch.seeds, batch.epoch, batch.step)
        assert self._data_class is not None
        data = self._data_class(edge_index=edge_index, num_nodes=len(nodes), n_id=nodes, e_id=edge_ids)
        x = self._gather_features(nodes)
        if x is not None:
            # Layers of PyG take no sparse rows: those of a batch are few enough to be dense.
            data.x = x if isinstance(x, Tensor) else x.to_dense()
        if graph.task_labels is not None:
            data.y = _index_labels(graph.task_labels, nodes)
        if graph.topology.weight is not None:
            data.edge_weight = graph.topology.weight[edge_ids]
        if graph.topology.relation is not None:
            data.edge_type = graph.topology.relation[edge_ids].long()
        if graph.edge_features is not None:
            features = gather_edge_features(graph.edge_features, edge_ids)
            # Half precision is widened as that of nodes; codes of categories stay integers.
            data.edge_attr = features.to(accumulate_dtype(features.dtype)) if features.is_floating_point() else features
        if times is not None:
            data.row_time, data.seed_time = times, times[: len(batch.seeds)]
        data.batch_size = len(batch.seeds)
        data.input_id = self._locate_seeds(batch.seeds)
        return data

    def _make_block_batch(self, batch: _Batch) -> BlockBatch:
        labels = self.graph.task_labels
        blocks = self._sampler.sample_blocks(batch.seeds, batch.epoch, batch.step)
        return BlockBatch(
            seeds=batch.seeds,
            blocks=blocks,
            x=self._gather_features(blocks[0].src_nodes),
            y=None if labels is None else _index_labels(labels, batch.seeds),
            input_id=self._locate_seeds(batch.seeds),
        )

    def _open_feature_store(self) -> LocalFeatureStore | None:
        features = self.graph.features
        if features is None:
            return None
        io_pool = IoPool()
        source = choose_row_source(features, find_feature_file(self.graph), lambda: io_pool)
        weakref.finalize(self, _close_source, source, io_pool)
        # Half precision is widened: layers have parameters in float32.
        return LocalFeatureStore(source, accumulate_dtype(features.dtype))

    def _gather_features(self, nodes: Tensor) -> Features | None:
        store = self._store
        return None if store is None else store.send_request(store.prepare_request(nodes)).wait()

    def _locate_seeds(self, seeds: Tensor) -> Tensor:
        return self._seed_order[torch.searchsorted(self._sorted_seeds, seeds)]

    def __repr__(self) -> str:
        return (
            f"NeighborLoader({self.graph.name!r}, {len(self.seeds):,} seeds, batches of {self.batches.size}, "
            f"{self.batches.describe_sampling()})"
        )


def _to_seeds(seeds: Any, graph: Graph) -> Tensor:
    if seeds is None:
        return torch.arange(graph.num_nodes)
    if isinstance(seeds, str):
        part: Tensor = getattr(graph.split, validate_choice("seeds", seeds, {name: name for name in _PARTS}))
        return part
    ids = to_ids(seeds, graph.num_nodes)
    ascending = ids.sort().values
    repeated = ascending[1:][ascending[1:] == ascending[:-1]]
    if len(repeated):
        raise InputError(
            "a seed is repeated",
            needed="distinct nodes: a batch computes each seed once",
            got=f"node {int(repeated[0])} more than once",
            repair="give each node once, by seeds.unique(); weigh nodes in the loss instead",
        )
    return ids


def _find_share(rank: int | None, world_size: int | None) -> tuple[int, int]:
    size = max(1, torchrun_world_size()) if world_size is None else world_size
    number = (torchrun_rank() if world_size is None else 0) if rank is None else rank
    if not 0 <= number < size:
        raise InputError(
            "there is no such share of the batches",
            needed="a rank from 0 to world_size - 1",
            got=f"rank {number} of {size}",
            repair="give both, or neither under torchrun",
        )
    return number, size


def _make_sampler(graph: Graph, batches: BatchConfig, seed: int, model: Model | None, output: str) -> NeighborSampler:
    if model is None:
        fanout: Sequence[Any] = batches.fanout_per_hop(2)
        return NeighborSampler([graph.topology] * len(fanout), fanout, seed, **batches.sampling_options)
    if output != "block":
        raise InputError(
            'a model needs output="block"',
            needed="blocks for a model of Outgrow; models of PyG add self-loops themselves",
            got=f"output={output!r}",
            repair='give output="block", or leave model out',
        )
    return make_sampler(graph.topology, model, batches, seed)


def _close_source(source: RowSource, io_pool: IoPool) -> None:
    if isinstance(source, StoredRows) and isinstance(source.storage, RowFile):
        source.storage.close()
    io_pool.close()


def _import_data_class() -> type[Data]:
    with warnings.catch_warnings():
        # PyG uses parts of torch that are deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from torch_geometric.data import Data
        except ImportError as error:
            raise InputError(
                'output="pyg" needs PyG',
                needed="the package torch_geometric",
                got=str(error),
                repair='install torch_geometric, or give output="block"',
            ) from error
    return Data  # type: ignore[no-any-return]


def _index_labels(labels: Tensor, nodes: Tensor) -> Tensor:
    rows = labels[nodes]
    # Losses of torch take int64 classes, and floats for zeros and ones.
    return rows.long() if labels.ndim == 1 and not labels.is_floating_point() else rows.float()
