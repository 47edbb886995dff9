"""What `split.py` counts: batches, drawn by one or by all workers in this process, and what caches save of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.batches import BatchConfig
from outgrow.engine.features.cache import count_out_degrees, hottest_owned
from outgrow.graph.graph import Graph
from outgrow.graph.partition.methods import METHODS
from outgrow.graph.partition.partition_cache import load_or_make_partition
from outgrow.graph.partition.presampled import PresampledMetis, presample_weights, sampling_signature
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops.rng import fold_in, keyed_permutation
from outgrow.strategies.split.layers import supports_partial_sums
from outgrow.strategies.split.partial_sum_kernels import count_remote_edges
from outgrow.strategies.split.sampler import RemoteRequest, SampledSplitBlock, SplitSampler

BEFORE, EPOCH = 0, 1
DEALS = ("at random", "by part")
_TO_TRAIN_ON = 0.08
_NUMBER = 4  # bytes of float32, and of what is told about parts of sums


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A graph and how batches of it are drawn.

    Attributes:
        graph: The graph.
        fanout: Neighbours that each hop draws, outward from the seeds; a layer for each.
        parts: Workers.
        seed: Key of all draws.
    """

    graph: Graph
    fanout: tuple[int, ...]
    parts: int = 4
    seed: int = 0

    @cached_property
    def train(self) -> Tensor:
        """The nodes to train on; some at random where the graph says nothing."""
        nodes, given = self.graph.topology.nodes, self.graph.split.train
        if len(given):
            return given
        return nodes[keyed_permutation(nodes, fold_in(self.seed, len(nodes)))][: max(1, int(_TO_TRAIN_ON * len(nodes)))]

    def steps(self, batch_size: int, most: int | None = None, epoch: int = EPOCH) -> list[Tensor]:
        """Seeds of the steps of an epoch, or of the first ones."""
        return BatchConfig(size=batch_size).seeds_of_epoch(self.train, self.seed, epoch)[:most]

    def whole_steps(self, batch_size: int, most: int | None = None) -> list[Tensor]:
        """The same without a last one that is smaller, unless there is no other."""
        steps = self.steps(batch_size)
        return [seeds for seeds in steps if len(seeds) == len(steps[0])][:most]

    def owner(self, partition: str, batch_size: int) -> Tensor:
        """``[V]``: the worker of each node by a method of partitioning, which may weigh nodes by such batches."""
        # As in training, where methods that can balance the nodes to train on do.
        by_access = partition == PresampledMetis.name
        method = self._by_access(batch_size) if by_access else METHODS[partition].with_seeds(self.train)
        return load_or_make_partition(self.graph.topology, method, self.parts, store=self.graph.store).part

    def _by_access(self, batch_size: int) -> PresampledMetis:
        batches = BatchConfig(size=batch_size, fanout=self.fanout)
        seeds = batches.seeds_of_epoch(self.train, self.seed, BEFORE)
        return PresampledMetis(
            course=sampling_signature(self._views, self.train, batches),
            weights=lambda: presample_weights(self.sampler(), BEFORE, seeds, self.graph.num_nodes),
        )

    def deal(self, seeds: Tensor, how: str, owner: Tensor) -> list[Tensor]:
        """The seeds of a step for each worker. Batches are in random order already."""
        if how == "at random":
            return list(torch.tensor_split(seeds, self.parts))
        return [seeds[owner[seeds] == rank] for rank in range(self.parts)]

    def sampler(self) -> NeighborSampler:
        """Draws micro-batches, and whole ones."""
        return NeighborSampler(self._views, self.fanout, self.seed)

    def split_samplers(self, owner: Tensor) -> list[SplitSampler]:
        """Draw a batch together; the worker of each node is given."""
        size = int(owner.max()) + 1
        return [
            SplitSampler(self._views, self.fanout, self.seed, owner=owner, rank=rank, size=size) for rank in range(size)
        ]

    @property
    def _views(self) -> list[Topology]:
        return [self.graph.topology] * len(self.fanout)


def together(
    samplers: Sequence[SplitSampler], seeds: Sequence[Tensor], epoch: int, step: int
) -> list[list[SampledSplitBlock]]:
    """Each worker's part of a batch, all drawn in this process.

    Args:
        samplers: Those of the workers, by rank.
        seeds: Their own seeds.
        epoch: Part of the key.
        step: Part of the key.
    """
    talks = [sampler.sample_hops(mine, epoch, step) for sampler, mine in zip(samplers, seeds, strict=True)]
    wishes, found = [next(talk) for talk in talks], list[list[SampledSplitBlock]]()
    while not found:
        asked, wishes = _passed_on(wishes), []
        for talk, wish in zip(talks, asked, strict=True):
            try:
                wishes.append(talk.send(wish))
            except StopIteration as end:
                found.append(end.value)
    return found


def _passed_on(wishes: Sequence[RemoteRequest]) -> list[RemoteRequest]:
    """What the others want of each worker."""
    pieces = zip(*(torch.split(wish.nodes, list(wish.sizes)) for wish in wishes), strict=True)
    return [RemoteRequest(torch.cat(wanted), tuple(map(len, wanted))) for wanted in pieces]


def work(blocks: Sequence[Block]) -> Counter[str]:
    """What a worker computes and loads for its part of a batch."""
    rows = sum(block.edges.num_dst for block in blocks)
    edges = sum(block.edges.num_edges for block in blocks)
    return Counter(edges=edges, rows_computed=rows, rows_loaded=blocks[0].edges.num_src)


def split_work(hops: Sequence[SampledSplitBlock]) -> Counter[str]:
    """The same of a worker that loads rows of its own nodes only."""
    return Counter({**work([hop.block for hop in hops]), "rows_loaded": hops[0].num_owned})


class Cached(NamedTuple):
    """Copies of rows on the devices of workers.

    Attributes:
        system: Whose way to choose them it is.
        seeds: How seeds are dealt out.
        cache: Copies of each worker, as a share of all rows.
        kept: ``[P, V]`` bool: which rows each worker has.
        lends: Whether workers ask each other before they ask the host.
    """

    system: str
    seeds: str
    cache: float
    kept: Tensor
    lends: bool = False

    def loads(self, inputs: Sequence[Tensor]) -> Counter[str]:
        """Rows that come from the host and from other workers for a batch, of which each worker wants some."""
        anywhere, found = self.kept.any(0), Counter[str]()
        for nodes, kept in zip(inputs, self.kept, strict=True):
            missing = nodes[~kept[nodes]]
            lent = int(anywhere[missing].sum()) if self.lends else 0
            found.update(host_rows=len(missing) - lent, peer_rows=lent)
        return found


def caches(setting: Setting, owner: Tensor, shares: Sequence[float], asked_for: Tensor) -> list[Cached]:
    """Every system with every size of cache.

    Args:
        setting: The graph.
        owner: ``[V]``, the worker of each node.
        shares: What a worker keeps, as shares of all rows.
        asked_for: ``[V]``, how often each node was an input in an epoch before.
    """
    graph, ranks, hops = setting.graph, range(setting.parts), len(setting.fanout)
    degree, own = count_out_degrees(graph.topology), [(owner == rank).nonzero()[:, 0] for rank in ranks]
    shared = degree.argsort(descending=True, stable=True)
    near = {"at random": [around(graph.topology, setting.train, hops)] * setting.parts}
    near["by part"] = [around(graph.topology, mine, hops) for mine in setting.deal(setting.train, "by part", owner)]
    found = [
        Cached("PaGraph", how, share, _hottest(degree, near[how], share, graph)) for how in DEALS for share in shares
    ]
    held = {share: shared[: setting.parts * int(share * graph.num_nodes)] for share in shares}
    in_turns = {share: [nodes[rank :: setting.parts] for rank in ranks] for share, nodes in held.items()}
    masks = {share: _masks(nodes, graph.num_nodes) for share, nodes in in_turns.items()}
    found += [Cached("Quiver", how, share, masks[share], lends=True) for how in DEALS for share in shares]
    for name, hotness in {"split, by degree": degree, "split, by presampling": asked_for}.items():
        found += [Cached(name, "split", share, _hottest(hotness, own, share, graph)) for share in shares]
    return found


def around(topology: Topology, seeds: Tensor, hops: int) -> Tensor:
    """``[n]``: nodes with a path of at most so many edges to one of the seeds."""
    found, degree = torch.zeros(topology.num_nodes, dtype=torch.bool), topology.indptr.diff()
    found[seeds] = True
    for _ in range(hops):
        found[topology.indices[found.repeat_interleave(degree)].long()] = True
    return found.nonzero()[:, 0]


def features_of(graph: Graph) -> Features:
    """The features of a graph, which has some."""
    assert graph.features is not None, f"{graph.name} has no features"
    return graph.features


def row_bytes(features: Features) -> float:
    """Bytes of a row; in the mean, where rows are sparse."""
    if isinstance(features, Tensor):
        return features.shape[1] * features.itemsize
    stored = features.indptr, features.indices, features.values
    return sum(array.nbytes for array in stored) / len(features)


class CrossingRow(NamedTuple):
    """A row that crosses in a layer.

    Attributes:
        num_bytes: Of the row, and of its gradient if it has one.
        summed: Whether parts of sums may go instead.
    """

    num_bytes: int
    summed: bool = True


def crossing_bytes(model: Model, features: Features) -> list[CrossingRow]:
    """The row that crosses in each layer: columns of all channels, and scores."""
    layers = model.layers_list()
    costs = [2 * _NUMBER * (math.prod(each.spec.source) + each.spec.score) for each in layers]
    if model.source_is_features:
        costs[0] = model.in_features * features.dtype.itemsize
    return [CrossingRow(cost, supports_partial_sums(each)) for cost, each in zip(costs, layers, strict=True)]


def crossed(hops: Sequence[SampledSplitBlock], costs: Sequence[CrossingRow]) -> Counter[str]:
    """What comes to a worker from others in all layers: sources, or parts of sums if these may go and are fewer bytes.

    Bytes are those of rows and gradients, and of what is told about the parts.
    """
    found = Counter[str]()
    for hop, (row, summed) in zip(hops, costs, strict=True):
        counts = count_remote_edges(hop.block.edges, hop.num_owned, hop.recv_counts)
        for sources, sums, edges in zip(
            hop.recv_counts, counts.destinations.tolist(), counts.edges.tolist(), strict=True
        ):
            as_sums = sums * (row + _NUMBER) + edges * 2 * _NUMBER  # a source and a weight for each edge
            fewer = summed and as_sums < sources * row
            found.update(crossing_sources=sources, crossing_rows=sums if fewer else sources)
            found.update(crossing_bytes=as_sums if fewer else sources * row)
    return found


def _hottest(hotness: Tensor, groups: Sequence[Tensor], share: float, graph: Graph) -> Tensor:
    """``[P, V]``: the hottest nodes of each group, as many as a worker's cache holds."""
    return _masks([hottest_owned(hotness, nodes, share, features_of(graph)) for nodes in groups], graph.num_nodes)


def _masks(kept: Sequence[Tensor], num_nodes: int) -> Tensor:
    found = torch.zeros(len(kept), num_nodes, dtype=torch.bool)
    for mask, nodes in zip(found, kept, strict=True):
        mask[nodes] = True
    return found
