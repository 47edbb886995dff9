"""What `orchestrate` should compute, one thing after the other: no threads, no lines between workers, no kept rows.

For each batch the whole bottom layer is computed, and of the hot nodes it is replaced by what was made of them with
parameters of the super-batch before. Of the package it takes the layers and the draws of neighbours alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from layer_table import RELATIONS
from torch import Tensor, nn

from outgrow.core.block import Block
from outgrow.engine.batches import BatchConfig
from outgrow.engine.shard import FullGraphShard, PartitionShard, layer_topology
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.nn import Conv, Epilogue, GATConv, GCNConv, GGCNConv, Layer, RGCNConv, SAGEConv, SAGEMaxConv
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeClassification
from outgrow.ops.rng import dropout, fold_in
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.orchestrate.strategy import Orchestrate
from planted import NODES, WIDTH, planted
from rounding import shake, tolerance
from support import with_relations

SEED, RATE = 4, 0.5
BATCHES = BatchConfig(size=4, fanout=(3, 2))
STEPS = 10
HOT = -3  # hot nodes of a super-batch that begins with step s draw as if for step -3 - s
EARLIER = (0, -1)  # epochs that are sampled, and not trained
HIDDEN = 2 * WIDTH
CONVS: dict[str, tuple[Callable[[], Conv], int]] = {
    "gcn": (lambda: GCNConv(WIDTH, HIDDEN, project_first=False), HIDDEN),
    "gcn-project-first": (lambda: GCNConv(WIDTH, WIDTH, project_first=True), WIDTH),
    "sage": (lambda: SAGEConv(WIDTH, WIDTH, project_first=False), WIDTH),
    "sage-project-first": (lambda: SAGEConv(WIDTH, WIDTH, project_first=True), WIDTH),
    "sage-max": (lambda: SAGEMaxConv(WIDTH, HIDDEN), HIDDEN),
    "gat": (lambda: GATConv(WIDTH, WIDTH, 2, attention_dropout=0.3), WIDTH),
    "ggcn": (lambda: GGCNConv(WIDTH, WIDTH), WIDTH),
    "rgcn": (lambda: RGCNConv(WIDTH, HIDDEN, RELATIONS, bases=2), HIDDEN),
}
"""A bottom layer, and how wide it makes rows."""
SUMMING_FIRST = {"gcn-project-first": "gcn", "sage-project-first": "sage"}
"""Layers that project first, and those that do the same the other way round, as hot nodes go through them."""


def model_of(kind: str, *, input_dropout: float = 0.2) -> Model:
    """Two layers with all that may follow a convolution; the one above is always the same."""
    torch.manual_seed(SEED)
    conv, width = CONVS[kind]
    finish = Epilogue(norm=True, activation=nn.functional.elu, residual=width == WIDTH, dropout=0.3)
    return Model([Layer(conv(), finish), Layer(SAGEConv(width, 2))], input_dropout=input_dropout).double()


def input_dropout_of(options: Orchestrate) -> float:
    """None before aggregates that are reused."""
    return 0.0 if options.reuse == "aggregate" else 0.2


def other_way_round(kind: str, layer: Layer) -> Layer:
    """A bottom layer that sums raw features first, with the very parameters of one that projects first."""
    made = {"gcn": GCNConv, "sage": SAGEConv}[SUMMING_FIRST[kind]]
    twin = Layer(made(WIDTH, WIDTH, project_first=False), layer.epilogue).double()
    for name, parameter in layer.named_parameters():
        path, _, last = name.rpartition(".")
        setattr(twin.get_submodule(path), last, parameter)
    return twin


def problem_of(
    model: Model, *, comm: Comm | None = None, batches: BatchConfig = BATCHES, checkpoint_steps: int | None = None
) -> Problem:
    """A problem of 40 seeds on one worker, or a worker's side of one."""
    world = planted()
    topology = with_relations(world.topology, RELATIONS)
    alone = comm is None or comm.size == 1
    problem = Problem.from_node_labels(
        FullGraphShard(topology, comm)
        if comm is None or alone
        else PartitionShard(topology, owner_of(comm.size), comm),
        features=world.features,
        labels=world.labels,
        train=torch.arange(0, NODES, 3),
        task=NodeClassification(),
        model=model,
        seed=SEED,
        batches=batches,
    )
    return replace(problem, checkpoint_steps=checkpoint_steps)


def owner_of(workers: int) -> Tensor:
    """Nodes are dealt out without order, and not equally many."""
    return torch.arange(NODES) * 7 % 11 % workers


class Trained(NamedTuple):
    """The losses of all steps, and the parameters in the end."""

    losses: list[float]
    parameters: list[Tensor]

    def difference(self, other: Trained) -> float:
        """The largest."""
        assert len(self.losses) == len(other.losses)
        mine, theirs = ([torch.tensor(each.losses, dtype=torch.float64), *each.parameters] for each in (self, other))
        return max((a - b).abs().max().item() for a, b in zip(mine, theirs, strict=True))

    def is_close(self, other: Trained, shaken: Trained) -> bool:
        """Whether no more than rounding is between them, by what noise has made of the same."""
        return self.difference(other) < tolerance(shaken.difference(other))

    def same_bits(self, other: Trained) -> bool:
        """Whether nothing differs."""
        same = [torch.equal(a, b) for a, b in zip(self.parameters, other.parameters, strict=True)]
        return self.losses == other.losses and all(same)


def trained(problem: Problem, strategy: Strategy, epochs: int = 2, *, shaken: bool = False) -> Trained:
    """What a strategy makes of a problem, or would if every step was noisy."""
    execution, losses = strategy.prepare(problem), list[float]()
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=RATE)
    if shaken:
        shake(optimizer)
    for epoch in range(1, epochs + 1):
        for step in execution.steps(epoch):
            losses.append(step.loss)
            optimizer.step()
            optimizer.zero_grad()
    execution.close()
    return Trained(losses, [parameter.detach() for parameter in problem.model.parameters()])


class Serial:
    """The same by the book, for one worker or for several one after the other.

    Args:
        kind: Which of `CONVS`.
        options: How it is trained.
        batches: What batches are made of.
        workers: How many.
    """

    def __init__(
        self,
        kind: str,
        options: Orchestrate,
        *,
        batches: BatchConfig = BATCHES,
        workers: int = 1,
    ) -> None:
        world, self.kind, self.options = planted(), kind, options
        self.model = model_of(kind, input_dropout=input_dropout_of(options))
        self.batches, self.workers = batches, workers
        self.features, self.labels = world.features, world.labels
        topology, hops = with_relations(world.topology, RELATIONS), batches.fanout_per_hop(2)
        views = [layer_topology(topology, layer) for layer in self.model.layers_list()]
        self.sampler = NeighborSampler(views, hops, SEED, **batches.sampling_options)
        self.one_hop = NeighborSampler(views[:1], hops[-1:], SEED, **batches.sampling_options)
        self.owner, self.gaps = owner_of(workers), list[int]()
        self.hotness = [self._hotness(rank) for rank in range(workers)]
        self.hot = [self._hottest(counts) for counts in self.hotness]

    def trained(self, epochs: int = 2) -> Trained:
        """What comes of it."""
        optimizer, losses = torch.optim.SGD(self.model.parameters(), lr=RATE), list[float]()
        current = list[Model]()
        for epoch in range(1, epochs + 1):
            seeds, made = self._seeds(epoch), dict[int, list[Made]]()
            for step in range(len(seeds)):
                if step % self.options.super_batch == 0:
                    # That of the epoch before is known too: only the first one of all has nothing to reuse.
                    previous, current = current, []
                    made = {rank: self._made(rank, epoch, step, previous, len(losses)) for rank in range(self.workers)}
                current.append(copy.deepcopy(self.model))
                total = 0.0
                for rank in range(self.workers):
                    known = {each.node: each for each in made[rank]}
                    total += self._computed(epoch, step, seeds[step], rank, known, len(losses))
                losses.append(total)
                optimizer.step()
                optimizer.zero_grad()
        return Trained(losses, [parameter.detach() for parameter in self.model.parameters()])

    def _seeds(self, epoch: int) -> list[Tensor]:
        return self.batches.seeds_of_epoch(torch.arange(0, NODES, 3), SEED, epoch)

    def _mine(self, seeds: Tensor, rank: int) -> Tensor:
        return seeds[self.owner[seeds] == rank]

    def _hotness(self, rank: int) -> list[int]:
        counts = [0] * NODES
        for epoch in EARLIER:
            for step, seeds in enumerate(self._seeds(epoch)):
                for node in self.sampler.sample_blocks(self._mine(seeds, rank), epoch, step)[0].dst_nodes.tolist():
                    counts[node] += 1
        return counts

    def _hottest(self, counts: list[int]) -> set[int]:
        order = sorted((node for node in range(NODES) if counts[node]), key=lambda node: (-counts[node], node))
        return {*order[: round(self.options.hot_ratio * NODES / self.workers)]}

    def _made(self, rank: int, epoch: int, first: int, previous: list[Model], updates: int) -> list[Made]:
        """What the CPU has made for the super-batch from ``first`` on, with models of the one before."""
        needed, seeds = set[int](), self._seeds(epoch)
        for step in range(first, min(first + self.options.super_batch, len(seeds))):
            needed |= {*self.sampler.sample_blocks(self._mine(seeds[step], rank), epoch, step)[0].dst_nodes.tolist()}
        counts = self.hotness[rank]
        queue = torch.tensor(sorted(needed & self.hot[rank], key=lambda node: (-counts[node], node)), dtype=torch.int64)
        found = list[Made]()
        for part, nodes in enumerate(torch.tensor_split(queue, len(previous)) if previous else []):
            if len(nodes):
                found += self._slice(nodes, epoch, first, updates - len(previous) + part, previous[part])
        return found

    def _bottom(self, model: Model) -> Layer:
        """As hot nodes go through it."""
        layer, hot_gradient = model.layers_list()[0], self.options.reuse == "aggregate" or self.options.hot_gradient
        return other_way_round(self.kind, layer) if hot_gradient and self.kind in SUMMING_FIRST else layer

    @torch.no_grad()
    def _slice(self, nodes: Tensor, epoch: int, first: int, version: int, model: Model) -> list[Made]:
        layer, key = self._bottom(model), fold_in(SEED, epoch, HOT - first)
        [block] = self.one_hop.sample_blocks(nodes, epoch, HOT - first)
        x = model.encode_input(self.features[block.src_nodes], block.src_nodes, key)
        assert isinstance(x, Tensor)
        own = x[: len(nodes)]
        aggregate = layer.aggregate(
            block.with_rng_key(fold_in(key, 1)), layer.source(x, block.src_nodes), layer.target(own, nodes)
        )
        embedding = layer.update_nodes(own, aggregate, nodes, None)
        inputs = block.with_rng_key(fold_in(key, 1)), self.features[block.src_nodes], key
        rows = zip(nodes.tolist(), own, aggregate, embedding, strict=True)
        return [Made(node, version, *of_node, at, *inputs) for at, (node, *of_node) in enumerate(rows)]

    def _computed(self, epoch: int, step: int, batch: Tensor, rank: int, known: dict[int, Made], updates: int) -> float:
        seeds, key = self._mine(batch, rank), fold_in(SEED, epoch, step)
        if not len(seeds):
            return 0.0
        blocks, layer = self.sampler.sample_blocks(seeds, epoch, step), self.model.layers_list()[0]
        nodes = blocks[0].dst_nodes
        x = self.model.encode_input(self.features[blocks[0].src_nodes], blocks[0].src_nodes, key)
        assert isinstance(x, Tensor)
        y = layer(blocks[0].with_rng_key(fold_in(key, 1)), x, x[: len(nodes)])
        rows = [known.get(node) for node in nodes.tolist()]
        y = torch.stack(
            [own if made is None else self._reused(made, key, updates) for own, made in zip(y, rows, strict=True)]
        )
        self.gaps += [updates - made.version for made in rows if made is not None]
        loss = nn.functional.cross_entropy(
            self.model.forward_from_second(blocks[1:], y, key), self.labels[seeds], reduction="sum"
        )
        (loss / len(batch)).backward()  # type: ignore[no-untyped-call]
        return loss.item() / len(batch)

    def _reused(self, made: Made, key: int, updates: int) -> Tensor:
        """What stands for the row of a hot node."""
        layer, node = self._bottom(self.model), torch.tensor([made.node])
        if self.options.reuse == "embedding" and self.options.gradient_on == "cpu":
            fresh = self._again(made)
        else:
            fresh = layer.update_nodes(made.own[None], made.aggregate[None], node, None)
        if self.options.reuse == "aggregate":
            row = fresh
        elif self.options.hot_gradient:
            row = Instead.apply(fresh / (1 + updates - made.version), made.embedding[None])
        else:
            row = made.embedding[None]
        return dropout(row, node, fold_in(key, 1), layer.epilogue.dropout)[0]

    def _again(self, made: Made) -> Tensor:
        """The output of the hot node from the very edges and draws, with today's parameters."""
        layer, block = self.model.layers_list()[0], made.block
        x = self.model.encode_input(made.features, block.src_nodes, made.key)
        assert isinstance(x, Tensor)
        own = x[: len(block.dst_nodes)]
        messages = layer.source(x, block.src_nodes), layer.target(own, block.dst_nodes)
        return layer.update_nodes(own, layer.aggregate(block, *messages), block.dst_nodes, None)[made.at][None]


class Made(NamedTuple):
    """What the CPU has made of a hot node: with which parameters, its input, its aggregate, its embedding.

    And of what: which of the destinations of a block it is, raw features of the sources, the key of the input.
    """

    node: int
    version: int
    own: Tensor
    aggregate: Tensor
    embedding: Tensor
    at: int
    block: Block
    features: Tensor
    key: int


class Instead(torch.autograd.Function):
    """Other values, of which the gradient is that of the first."""

    @staticmethod
    def forward(context: Any, fresh: Tensor, stale: Tensor) -> Tensor:
        """The second."""
        return stale.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """To the first."""
        return gradient, None
