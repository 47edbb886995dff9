"""What `migrate.py rows` and `ratio` count: rows, requests and bytes of mini-batches by ways to train them.

All workers are played in this process, and nothing is trained. A request is one message to one other worker for rows.
Draws depend on the node and not on the batch it is in, so the inputs of several groups are those of their union.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from rivals.micro_batches import local_batches
from split_counts import EPOCH, Setting, features_of, row_bytes
from torch import Tensor

from outgrow.app.model_registry import build_model
from outgrow.core.block import Block
from outgrow.engine import minibatch_loop
from outgrow.engine.batches import BatchConfig
from outgrow.graph.graph import Graph
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.nn.model import Model
from outgrow.strategies.migrate.schedule import assign_models, migration_schedule

MODEL_CENTRIC, LOCAL, P3 = "model-centric", "local shuffles", "P3"
NAIVE, NAIVE_CARRIED = "naive, least", "naive, carried"
TRAVEL, PREGATHERED, ELIDED = "travel", "travel + pre-gathering", "elided"
_NUMBER, _ID = 4, 8  # bytes of float32, or of a place in a block; of the id of a node
Found = dict[str, Counter[str]]


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Who has what, and how batches are drawn.

    Attributes:
        sampler: Draws blocks.
        owner: ``[V]``, the worker of each node.
        size: ``P``, their number.
    """

    sampler: NeighborSampler
    owner: Tensor
    size: int

    def micro_batches(self, seeds: Tensor, step: int) -> list[list[Block]]:
        """Blocks of each model: around a share of the seeds at random."""
        model = assign_models(len(seeds), self.size)
        return [self.sampler.sample_blocks(seeds[model == rank], EPOCH, step) for rank in range(self.size)]

    def inputs(self, seeds: Tensor, step: int) -> Tensor:
        """``[n]``: the nodes whose rows some seeds need."""
        return self.sampler.sample_blocks(seeds, EPOCH, step)[0].src_nodes

    def fetched(self, nodes: Tensor, rank: int) -> Counter[str]:
        """What a worker that needs the rows of these distinct nodes loads, and asks others for."""
        homes = self.owner[nodes]
        others = homes[homes != rank]
        return Counter(rows=len(nodes), remote_rows=len(others), requests=len(torch.unique(others)))

    def all_fetched(self, nodes: Iterable[Tensor]) -> Counter[str]:
        """The same for all workers, of which each needs some nodes."""
        return _sum(self.fetched(each, rank) for rank, each in enumerate(nodes))


def dressed(graph: Graph, width: int | None) -> Graph:
    """The graph as models and costs see it: with features of another width, if one is given, and some classes."""
    features = graph.features if width is None else torch.empty(1, width).expand(graph.num_nodes, width)
    return replace(graph, features=features, num_classes=max(2, graph.num_classes))


def sampler_of(setting: Setting, model: Model) -> NeighborSampler:
    """Draws blocks for a model of as many layers as there are hops; with self-loops where it wants them."""
    return minibatch_loop.make_sampler(setting.graph.topology, model, BatchConfig(fanout=setting.fanout), setting.seed)


def model_of(kind: str, graph: Graph, hidden: int, layers: int, **options: object) -> Model:
    """A model for a graph."""
    return build_model(kind, graph, {"hidden": hidden, "layers": layers, **options})


def counted(workers: Workers, steps: Sequence[Tensor], dropped: Sequence[int]) -> Found:
    """What each way to train the same batches fetches and sends; see `priced` for what is counted.

    Args:
        workers: Who has what.
        steps: Seeds of each step.
        dropped: How many time steps to do without where models travel, each a way of its own.
    """
    total: Found = {}
    for step, seeds in enumerate(steps):
        found = {ELIDED: workers.all_fetched(_at_home(workers, seeds, step)) + Counter(sums=1)}
        for part in (of_models(workers, seeds, step), travelling(workers, seeds, step, dropped), found):
            for way, counts in part.items():
                total.setdefault(way, Counter()).update(counts, seeds=len(seeds))
    return total


def _at_home(workers: Workers, seeds: Tensor, step: int) -> list[Tensor]:
    return [workers.inputs(seeds[workers.owner[seeds] == rank], step) for rank in range(workers.size)]


def of_models(workers: Workers, seeds: Tensor, step: int) -> Found:
    """Ways in which each model keeps the subgraph of its own micro-batch."""
    micro = workers.micro_batches(seeds, step)
    fetched = workers.all_fetched(blocks[0].src_nodes for blocks in micro)
    return {
        MODEL_CENTRIC: fetched + Counter(sums=1),
        NAIVE: _sum(naive(blocks, workers.owner, rank) for rank, blocks in enumerate(micro)) + Counter(sums=1),
        NAIVE_CARRIED: _sum(carried(blocks, workers.owner, rank) for rank, blocks in enumerate(micro))
        + Counter(sums=1),
        P3: _sum(by_slices(blocks, workers.size) for blocks in micro) + Counter(upper_sums=1),
    }


def travelling(workers: Workers, seeds: Tensor, step: int, dropped: Sequence[int]) -> Found:
    """Ways in which models go from worker to worker."""
    size, homes = workers.size, workers.owner[seeds]
    found: Found = {}
    groups = [migration_schedule(seeds, homes, rank, size).groups for rank in range(size)]
    nodes = [[workers.inputs(group, step) for group in each] for each in groups]
    moves = Counter(parameters=size * (size - 1), gradients=size * (size - 1), sums=1)
    found[TRAVEL] = _sum(workers.fetched(part, rank) for rank, each in enumerate(nodes) for part in each) + moves
    found[PREGATHERED] = workers.all_fetched(torch.unique(torch.cat(each)) for each in nodes) + moves
    for fewer in dropped:
        tours = [migration_schedule(seeds, homes, rank, size, fewer) for rank in range(size)]
        moved = size * len(tours[0].hops)
        fetched = workers.all_fetched(workers.inputs(torch.cat(each.groups), step) for each in tours)
        found[f"merged, {fewer} dropped"] = fetched + Counter(parameters=moved, gradients=moved, sums=1)
    return found


def local_shuffles(workers: Workers, setting: Setting, batch_size: int, most: int | None) -> Counter[str]:
    """LO: each worker draws its seeds from its own nodes."""
    total = Counter[str]()
    pools = setting.deal(setting.train, "by part", workers.owner)
    for step, dealt in enumerate(local_batches(pools, batch_size, setting.seed, EPOCH)[:most]):
        total.update(workers.all_fetched(workers.inputs(seeds, step) for seeds in dealt))
        total.update(sums=1, seeds=sum(map(len, dealt)))
    return total


def naive(blocks: Sequence[Block], owner: Tensor, rank: int) -> Counter[str]:
    """The subgraph of a model goes with it to all workers that hold sources of it, and back (HopGNN §3.2).

    In each layer, from each other worker with sources, comes a part of the sum of each destination that has some there
    (``partial_0`` and so on). A lower bound: each part crosses one link, and no gradient, since backward runs where all
    has come together; destinations' own rows, and what else is kept for backward, are left out.
    """
    found, visited = Counter(rows=blocks[0].edges.num_src), torch.zeros(int(owner.max()) + 1, dtype=torch.bool)
    for layer, block in enumerate(blocks):
        has = sources_at(block, owner)
        has[:, rank] = False
        found[f"partial_{layer}"] = int(has.sum())
        visited |= has.any(0)
    return found + _moved(blocks, int(visited.sum()))


def carried(blocks: Sequence[Block], owner: Tensor, rank: int) -> Counter[str]:
    """The same where a model carries all that it has, as the paper tells it.

    It visits the workers that hold sources of the first layer in turns. On each way it carries the parts of sums that
    it has until then, one for each destination; on the way back also the sums of the other layers, for backward.
    """
    has = sources_at(blocks[0], owner)
    stops = [
        stop for stop in (has.any(0).nonzero()[:, 0] - rank).remainder(has.shape[1]).sort().values.tolist() if stop
    ]
    found, begun = Counter(rows=blocks[0].edges.num_src), has[:, rank]
    for stop in stops:
        found["partial_0"] += int(begun.sum())
        begun = begun | has[:, (rank + stop) % has.shape[1]]
    if stops:
        found["partial_0"] += int(begun.sum())
        found.update({f"partial_{layer}": block.edges.num_dst for layer, block in enumerate(blocks) if layer})
    return found + _moved(blocks, len(stops))


def sources_at(block: Block, owner: Tensor) -> Tensor:
    """``[Vd, P]`` bool: whether a destination has sources with a worker."""
    edges, size = block.edges, int(owner.max()) + 1
    target = torch.arange(edges.num_dst).repeat_interleave(edges.indptr.diff())
    has = torch.zeros(edges.num_dst, size, dtype=torch.bool)
    has[target, owner[block.src_nodes][edges.indices.long()].long()] = True
    return has


def _moved(blocks: Sequence[Block], visited: int) -> Counter[str]:
    """What goes along on all ways of a model that visits so many others and returns."""
    moves = visited + bool(visited)
    return Counter(parameters=moves, topology_bytes=moves * topology_bytes(blocks))


def by_slices(blocks: Sequence[Block], size: int) -> Counter[str]:
    """P3: each worker has some columns of all features, and computes with them its part of a first layer."""
    first, others = blocks[0], size - 1
    return Counter(
        rows=first.edges.num_src,
        requests=others,
        activations=others * first.edges.num_dst,
        topology_bytes=others * topology_bytes(blocks[:1]),
    )


def topology_bytes(blocks: Sequence[Block]) -> int:
    """Of the ids of all nodes, and for each layer of the source of each edge and the degree of each destination."""
    edges = [block.edges for block in blocks]
    return _ID * edges[0].num_src + _NUMBER * sum(each.num_edges + each.num_dst for each in edges)


def priced(found: Counter[str], model: Model, graph: Graph, size: int) -> dict[str, float]:
    """Bytes by what they are, over all workers.

    Args:
        found: Of it are read ``remote_rows``; ``parameters``, ``gradients``: how often a model's travel; ``sums``,
            ``upper_sums``: sums of gradients over all workers, of all layers or of all but the first, as a ring carries
            them; ``partial_0``, ...: parts of a layer's sums, at the width of its aggregate; ``activations``: of the
            first layer, there, and their gradients back; ``topology_bytes``.
        model: The model.
        graph: Its features.
        size: Number of workers.
    """
    layers, whole = model.layers_list(), parameter_bytes(model)
    ring = 2 * (size - 1) * (found["sums"] * whole + found["upper_sums"] * (whole - parameter_bytes(layers[0])))
    widths = [channels * columns for channels, columns in (layer.spec.aggregate for layer in layers)]
    partial = sum(found[f"partial_{layer}"] * width for layer, width in enumerate(widths))
    partial += 2 * found["activations"] * layers[0].spec.out_features
    figures = {
        "features": found["remote_rows"] * row_bytes(features_of(graph)),
        "ids": found["remote_rows"] * _ID,
        "partial": partial * _NUMBER,
        "topology": found["topology_bytes"],
        "model": (found["parameters"] + found["gradients"]) * whole,
        "sums": ring,
    }
    return {**figures, "total": sum(figures.values())}


def parameter_bytes(module: torch.nn.Module) -> int:
    """Of all parameters of a model or a layer."""
    return sum(parameter.nbytes for parameter in module.parameters())


def _sum(counts: Iterable[Counter[str]]) -> Counter[str]:
    return sum(counts, Counter())
