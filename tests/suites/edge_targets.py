"""Targets of edges for the exactness suite: cases, and what they should give, in plain torch. Runs in workers too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from outgrow.engine.batches import BatchConfig
from outgrow.engine.edge_labels import EdgeLabels
from outgrow.engine.link_options import LinkOptions, LinkSteps
from outgrow.engine.objective import LinkTargets
from outgrow.engine.shard import GraphShard, PartitionShard
from outgrow.graph.edge_targets import EdgeTargetSplit, read_edge_classes, split_edge_targets, take_edge_column
from outgrow.graph.topology import Topology
from outgrow.nn import GAT, GCN, RGCN, SAGE, EdgeMLP, Model
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.node_task import NodeTask
from outgrow.nn.tasks import NodeClassification, NodeRegression
from outgrow.ops.rng import fold_in, permute_range
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem
from suites.broken_link_steps import mean_over_own_links_of_the_batch
from suites.cases import DEALS
from suites.exactness import EPOCH, Gradient, step_of, underived
from suites.hits import Hits
from suites.link_reference import ORDER_KEY, PAIRS_KEY, number_of
from suites.link_steps import WAYS
from support import destinations_of, normal, random_topology, whole_blocks, with_edge_features, with_relations

IN, HIDDEN, OUT, RELATIONS, CLASSES, SEED = 6, 6, 5, 3, 4, 11
WEIGHTS = (1.0, 0.5, 3.0, 2.0)


class Case(NamedTuple):
    """A model of edges and how it is trained, in batches if ``batch`` is not 0."""

    model: str = "sage"
    task: str = "classes"
    steps: int = 1
    batch: int = 0
    exclude: bool = False
    deal: str = "scattered"


Key = tuple[str, Case]
"""A way and a case."""
Found = dict[Key, Gradient]
Mutant = Callable[[], AbstractContextManager[Hits]]

MODELS: dict[str, Callable[[], Model]] = {
    "gcn": lambda: GCN(IN, HIDDEN, OUT, dropout=0.3),
    "sage": lambda: SAGE(IN, HIDDEN, OUT, dropout=0.3),
    "gat-with-features": lambda: GAT(IN, HIDDEN, OUT, heads=2, edge_dim=2),
    "rgcn": lambda: RGCN(IN, HIDDEN, OUT, num_relations=RELATIONS, bases=2, dropout=0.3),
}
TASKS: dict[str, Callable[[], NodeTask]] = {
    "classes": NodeClassification,
    "weighted": lambda: NodeClassification(class_weight=WEIGHTS, label_smoothing=0.1),
    "numbers": lambda: NodeRegression(loss="huber"),
}
WHOLE = [
    *(Case(model, task, steps) for model in MODELS for task, steps in (("classes", 1), ("weighted", 3))),
    Case("sage", "numbers", 2, deal="one-node-part"),
]
BATCHES = [
    *(Case(model, "weighted", batch=60, exclude=exclude) for model in MODELS for exclude in (False, True)),
    Case("sage", "numbers", batch=70, deal="one-node-part"),
]
KEYS: list[Key] = [
    *((way, case) for way in ("full", "offload-3") for case in WHOLE),
    *(("tensor", case) for case in WHOLE if case.model != "rgcn"),
    *((way, case) for way in ("sampled", "split", "migrate") for case in BATCHES),
    *(("orchestrate", case) for case in BATCHES if case.model == "sage"),
]
BROKEN: list[Key] = [("full", WHOLE[3]), ("sampled", BATCHES[2]), ("split", BATCHES[2])]
"""Where mutants should be found."""


def graph_of(case: Case) -> Topology:
    """A graph with a target and two other features of each edge; every seventh target is unknown."""
    topology = with_edge_features(with_relations(random_topology(40, 250), RELATIONS), 3)
    features = topology.edge_features
    assert features is not None
    target = features[:, 1]
    if case.task != "numbers":
        target = (target * 2).round().clamp(0, CLASSES - 1)
        target[::11] = -1
    target[::7] = math.nan
    return replace(topology, edge_features=torch.stack([features[:, 0], target, features[:, 2]], 1))


def data_of(case: Case) -> tuple[Topology, Tensor, EdgeTargetSplit]:
    """The graph without the target, the targets, and their split."""
    rest, column = take_edge_column(graph_of(case), 1, "graph")
    values = column.values if case.task == "numbers" else read_edge_classes(column, "graph")[0]
    known = ~values.isnan() if case.task == "numbers" else values >= 0
    return underived(rest), values, split_edge_targets(rest, known, val=0.1, test=0.1, seed=0)


def model_of(case: Case) -> Model:
    """A model of which no parameter is zero."""
    torch.manual_seed(1)
    outputs = 1 if case.task == "numbers" else CLASSES
    model = MODELS[case.model]().with_decoder(EdgeMLP(OUT, outputs, RELATIONS, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double()


def problem_of(case: Case, make_share: Callable[[Topology], GraphShard]) -> Problem:
    topology, values, split = data_of(case)
    task = TASKS[case.task]().resolve(values, split.train, CLASSES)
    options = LinkOptions(
        ends=torch.tensor([0, topology.num_nodes]),
        negatives=0,
        steps=LinkSteps(num_steps=case.steps),
        excludes_targets=case.exclude,
        labels=EdgeLabels(task=task, values=values, train=split.train, topology=topology),
    )
    return Problem(
        shard=make_share(topology),
        features=normal(topology.num_nodes, IN, seed=3),
        targets=LinkTargets(options=options, num_targets=len(split.train)),
        model=model_of(case),
        seed=SEED,
        batches=BatchConfig(size=case.batch or None),
    )


def found_on(make_share: Callable[[Case, Topology], GraphShard], keys: Sequence[Key]) -> Found:
    """What ways give in some cases on a share, as a worker has it."""
    found = {}
    for name, case in keys:
        strategy, epochs_before = WAYS[name]()
        problem = problem_of(case, lambda topology, case=case: make_share(case, topology))  # type: ignore[misc]
        found[name, case] = step_of(problem, strategy, epochs_before)
    return found


def gradients(place: WorkerContext, keys: Sequence[Key]) -> Found:
    """What ways give in some cases on a worker's part."""

    def part(case: Case, topology: Topology) -> GraphShard:
        return PartitionShard(topology, DEALS[case.deal](topology.num_nodes, place.comm.size), place.comm)

    return found_on(part, keys)


def reference(case: Case) -> Gradient:
    """The losses and the gradients of an epoch, edge by edge."""
    given, split = graph_of(case), data_of(case)[2]
    model, features = model_of(case), normal(given.num_nodes, IN, seed=3)
    assert given.edge_features is not None
    target, rest = given.edge_features[:, 1], given.edge_features[:, [0, 2]]
    tails, heads = destinations_of(given.block.edges).tolist(), given.indices.tolist()
    train = split.train.tolist()
    weights = WEIGHTS if case.task == "weighted" else (1.0,) * CLASSES
    mean = 1.0 if case.task == "numbers" else sum(weights[int(target[edge])] for edge in train) / len(train)
    named = dict(model.named_parameters())
    total, sums = 0.0, {name: torch.zeros_like(value) for name, value in named.items()}
    for step in range(math.ceil(len(train) / case.batch) if case.batch else case.steps):
        asked = _asked(case, step, train, heads, tails)
        pairs = {frozenset((heads[edge], tails[edge])) for edge in asked} if case.exclude else set()
        kept = torch.tensor([frozenset(ends) not in pairs for ends in zip(heads, tails, strict=True)])
        before = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])
        assert given.relation is not None
        seen = Topology(
            indptr=before[given.indptr],
            indices=given.indices[kept],
            relation=given.relation[kept],
            edge_features=rest[kept],
        )
        out = model(whole_blocks(model, seen), features, fold_in(SEED, EPOCH, step))
        parts = [
            _loss_of(case, model, (out[heads[e]], out[tails[e]]), int(given.relation[e]), rest[e], target[e])
            for e in asked
        ]
        loss = torch.stack(parts).sum() / (len(asked) * mean)
        total += loss.item()
        for name, part in zip(named, torch.autograd.grad(loss, list(named.values()), allow_unused=True), strict=True):
            if part is not None:
                sums[name] += part
    return Gradient(total, sums)


def _asked(case: Case, step: int, train: list[int], heads: list[int], tails: list[int]) -> list[int]:
    """The edges that a step asks about."""
    if case.batch:
        key, count = fold_in(SEED, EPOCH, ORDER_KEY), len(train)
        first = step * case.batch
        return [train[place] for place in permute_range(first, min(count, first + case.batch), count, key).tolist()]
    key = fold_in(SEED, EPOCH, PAIRS_KEY)
    number = {edge: number_of(fold_in(key, *sorted((heads[edge], tails[edge])))) for edge in train}
    return [edge for edge in train if case.steps == 1 or step / case.steps <= number[edge] < (step + 1) / case.steps]


def _loss_of(
    case: Case, model: Model, ends: tuple[Tensor, Tensor], relation: int, features: Tensor, target: Tensor
) -> Tensor:
    """The loss of one edge, times the weight of its class."""
    mlp, (head, tail) = model.decoder, ends
    assert isinstance(mlp, EdgeMLP)
    assert mlp.edge is not None
    assert mlp.relation is not None
    hidden = head @ mlp.head.weight + mlp.head.bias + tail @ mlp.tail.weight + features @ mlp.edge.weight
    out = torch.relu(hidden + mlp.relation[relation]) @ mlp.out.weight + mlp.out.bias
    if case.task == "numbers":
        return functional.huber_loss(out[0], target)
    if case.task == "classes":
        return -torch.log_softmax(out, 0)[int(target)]
    log, weight = torch.log_softmax(out, 0), out.new_tensor(WEIGHTS)
    kind = int(target)
    return -0.9 * weight[kind] * log[kind] - 0.1 / CLASSES * (weight * log).sum()


@contextmanager
def mean_over_own_edges() -> Iterator[Hits]:
    """The loss of a step is the mean over the worker's own edges."""
    with mean_over_own_links_of_the_batch() as hits:
        yield hits


@contextmanager
def features_of_other_edges() -> Iterator[Hits]:
    """The decoder reads the features of edges in another order than that of their ends."""
    hits, right = Hits(), EdgeLabels.read_features

    def read(self: EdgeLabels, number: Tensor, decoder: EdgeDecoder, rows: Tensor) -> Tensor | None:
        hits.note(len(number) > 1)
        return right(self, number.flip(0), decoder, rows)

    with patch.object(EdgeLabels, "read_features", read):
        yield hits


@contextmanager
def target_among_features() -> Iterator[Hits]:
    """Layers and decoder see the target in the place of another column."""
    hits, right = Hits(), EdgeLabels.read_features

    def read(self: EdgeLabels, number: Tensor, decoder: EdgeDecoder, rows: Tensor) -> Tensor | None:
        features = right(self, number, decoder, rows)
        assert features is not None
        hits.note(len(number) > 0)
        return torch.cat([self.values[number, None].to(features), features[:, 1:]], 1)

    with patch.object(EdgeLabels, "read_features", read):
        yield hits


MUTANTS: Mapping[str, Mutant] = {
    mutant.__name__: mutant for mutant in (mean_over_own_edges, features_of_other_edges, target_among_features)
}
