"""Link prediction for the exactness suite: cases, a reference in plain torch, and mutants. Runs in workers too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from outgrow.engine import link_objective
from outgrow.engine.link_objective import LinksOfStep
from outgrow.engine.link_options import LinkOptions
from outgrow.engine.objective import LinkTargets
from outgrow.engine.shard import GraphShard, PartitionShard
from outgrow.graph.link_triples import LinkTriples
from outgrow.graph.topology import Topology
from outgrow.nn import GAT, GCN, RGCN, Decoupled, DistMult, Dot, Model
from outgrow.ops.link_scores import sample_negatives
from outgrow.ops.rng import fold_in
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.tensor.strategy import TensorParallel
from suites.cases import DEALS
from suites.exactness import EPOCH, Gradient, step_of, underived
from suites.hits import Hits
from support import destinations_of, disk_folder, normal, random_topology, topology_of, whole_blocks, with_relations
from thread_group import run_in_threads

IN, HIDDEN, OUT, RELATIONS, SEED = 6, 6, 5, 3, 11
NEGATIVES_KEY = int.from_bytes(b"LINK")


class Case(NamedTuple):
    """A model of links on one graph, dealt out in one way."""

    model: str
    decoder: str
    negatives: int = 1
    graph: str = "typed"
    deal: str = "scattered"
    relations: tuple[int, ...] = ()


Key = tuple[str, Case]
"""A way and a case."""
Found = dict[Key, Gradient]
Mutant = Callable[[], AbstractContextManager[Hits]]

MODELS: dict[str, Callable[[], Model]] = {
    "gcn": lambda: GCN(IN, HIDDEN, OUT, dropout=0.3, input_dropout=0.2),
    "gat": lambda: GAT(IN, HIDDEN, OUT, heads=2, dropout=0.3, attention_dropout=0.4),
    "rgcn": lambda: RGCN(IN, HIDDEN, OUT, num_relations=RELATIONS, bases=2, dropout=0.3),
    "decoupled": lambda: Decoupled(IN, HIDDEN, OUT, rounds=3, dropout=0.3, input_dropout=0.2),
}
DECODERS = {"dot": Dot, "distmult": lambda: DistMult(OUT, RELATIONS)}
GRAPHS: dict[str, tuple[Topology, tuple[int, ...]]] = {
    "typed": (with_relations(random_topology(40, 250), RELATIONS), (0, 11, 12, 12, 40)),
    "weighted": (with_relations(random_topology(40, 250, weighted=True), RELATIONS), (0, 40)),
    "without relations": (random_topology(40, 250), (0, 40)),
    "isolated": (with_relations(topology_of(9, [(0, 4), (4, 0), (4, 4), (0, 4)]), RELATIONS), (0, 9)),
}
"""Topologies, and where the nodes of each type begin."""
WAYS: dict[str, Callable[[], tuple[Strategy, int]]] = {
    "full": lambda: (Full(), 0),
    "full-without-overlap": lambda: (Full(overlap=False), 0),
    "offload-3": lambda: (Offload(chunks=3, scratch_dir=str(disk_folder())), 1),
    "offload-2-without-cache": lambda: (Offload(chunks=2, cache=False, scratch_dir=str(disk_folder())), 0),
    "tensor": lambda: (TensorParallel(), 1),
}
"""Strategies, and how many epochs each has computed before; they must leave nothing behind."""
MAIN = ("full", "offload-3", "tensor")
PRODUCT = [Case(model, decoder, negatives) for model in MODELS for decoder in DECODERS for negatives in (1, 2)]
ODD = [
    Case("gcn", "distmult", 2, "weighted", "one-node-part"),
    Case("gat", "dot", 1, "weighted", "ranges"),
    Case("gcn", "dot", 2, "without relations"),
    Case("decoupled", "dot", 1, "without relations", "one-node-part"),
    *(Case(model, "distmult", 2, "isolated", "one-node-part") for model in ("gcn", "gat")),
    *(Case(model, "distmult", 2, relations=(0, 2)) for model in ("gcn", "rgcn")),
    Case("gat", "dot", 1, "weighted", "one-node-part", relations=(1,)),
]
QUICK = [(way, case) for way in MAIN for case in (*PRODUCT, *ODD)]
EVERYTHING = [
    (way, case._replace(graph=graph, deal=deal))
    for way in WAYS
    for case in PRODUCT
    for graph in GRAPHS
    for deal in DEALS
    if graph != "without relations" or (case.model != "rgcn" and case.decoder == "dot")
]


def model_of(case: Case) -> Model:
    """A model of which no parameter is zero."""
    torch.manual_seed(1)
    model = MODELS[case.model]().with_decoder(DECODERS[case.decoder]())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double()


def features_of(case: Case) -> Tensor:
    return normal(GRAPHS[case.graph][0].num_nodes, IN, seed=3)


def problem_of(case: Case, share: GraphShard) -> Problem:
    options = LinkOptions(
        ends=torch.tensor(GRAPHS[case.graph][1]),
        negatives=case.negatives,
        relations=torch.tensor(case.relations) if case.relations else None,
    )
    targets = LinkTargets(options=options, num_targets=share.topology.num_edges)
    return Problem(shard=share, features=features_of(case), targets=targets, model=model_of(case), seed=SEED)


def fresh(case: Case) -> Topology:
    """The graph, with edges that nothing was derived from yet."""
    return underived(GRAPHS[case.graph][0])


def pairs_of(case: Case, topology: Topology, key: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both ends, the relation and the aim of all pairs: every edge but loops, and what is drawn for it."""
    tail, head = destinations_of(topology.block.edges), topology.indices.long()
    number = (head != tail).nonzero()[:, 0]
    if case.relations:
        assert topology.relation is not None
        number = number[[int(relation) in case.relations for relation in topology.relation[number]]]
    relation = torch.zeros_like(number) if topology.relation is None else topology.relation.long()[number]
    ends = torch.tensor(GRAPHS[case.graph][1])
    firsts, seconds, aims = [head[number]], [tail[number]], [torch.ones(len(number))]
    for k in range(case.negatives):
        kept, drawn = sample_negatives(head[number], tail[number], number, ends, fold_in(key, NEGATIVES_KEY, k))
        firsts, seconds, aims = [*firsts, kept], [*seconds, drawn], [*aims, torch.zeros(len(number))]
    return torch.cat(firsts), torch.cat(seconds), relation.repeat(1 + case.negatives), torch.cat(aims).double()


def reference(case: Case) -> Gradient:
    """The loss and the gradients of an epoch, from a row per pair."""
    topology, model, key = fresh(case), model_of(case), fold_in(SEED, EPOCH, 0)
    out = model(whole_blocks(model, topology), features_of(case), key)
    first, second, relation, aim = pairs_of(case, topology, key)
    product = out[first] * out[second]
    if isinstance(model.decoder, DistMult):
        score = (product * model.decoder.relation[relation]).sum(1)
    else:
        score = product.sum(1) / OUT**0.5
    loss = functional.binary_cross_entropy_with_logits(score, aim)
    named = dict(model.named_parameters())
    return Gradient(loss.item(), dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True)))


def found_on(share: Callable[[Case], GraphShard], keys: Sequence[Key]) -> Found:
    """What ways give in some cases on a share, as a worker has it."""
    found = {}
    for case in dict.fromkeys(case for _, case in keys):
        held = share(case)
        for name in (name for name, other in keys if other == case):
            strategy, epochs_before = WAYS[name]()
            found[name, case] = step_of(problem_of(case, held), strategy, epochs_before)
    return found


def gradients(place: WorkerContext, keys: Sequence[Key]) -> Found:
    """What ways give in some cases on a worker's part."""

    def part(case: Case) -> GraphShard:
        topology = fresh(case)
        return PartitionShard(topology, DEALS[case.deal](topology.num_nodes, place.comm.size), place.comm)

    return found_on(part, keys)


class Seen(NamedTuple):
    """What one worker has: as it should be, and by mutant, and how often each mutant changed something anywhere."""

    right: Found
    mutated: dict[str, Found]
    hits: dict[str, int]


BROKEN = [(way, Case("gcn", decoder, 2, relations=(0, 2))) for way in MAIN for decoder in DECODERS]


def see(keys: Sequence[Key], workers: int) -> list[Seen]:
    """What each of some workers has, which are threads: first as it should be, and then under each mutant."""
    right, mutated, hits = run_in_threads(partial(gradients, keys=keys), workers), {}, {}
    for name, mutant in MUTANTS.items():
        with mutant() as counted:
            mutated[name] = run_in_threads(partial(gradients, keys=BROKEN), workers)
        hits[name] = counted.count
    return [Seen(right[rank], {name: mutated[name][rank] for name in mutated}, hits) for rank in range(workers)]


@contextmanager
def links_numbered_by_each_worker() -> Iterator[Hits]:
    """Negatives are drawn by the place of a link among those of its worker."""
    hits, right = Hits(), link_objective.collect_in_links

    def in_links(topology: Topology, nodes: Tensor) -> tuple[LinkTriples, Tensor]:
        links, number = right(topology, nodes)
        own = torch.arange(len(number))
        hits.note(not torch.equal(own, number))
        return links, own

    with patch.object(link_objective, "collect_in_links", in_links):
        yield hits


@contextmanager
def fetched_rows_without_gradient() -> Iterator[Hits]:
    """What a worker's links want of the nodes of others is not told to these."""
    hits, right = Hits(), LinksOfStep._gather_rows

    def gathered(self: LinksOfStep, *given: Any) -> tuple[Tensor, Tensor]:
        at, rows = right(self, *given)
        own = len(self.shard.owned_nodes)
        hits.note(len(rows) > own)
        return at, torch.cat([rows[:own], rows[own:].detach()])

    with patch.object(LinksOfStep, "_gather_rows", gathered):
        yield hits


@contextmanager
def mean_over_own_links() -> Iterator[Hits]:
    """The loss is the mean over the worker's own links."""
    hits, right = Hits(), LinksOfStep.__init__

    def begin(self: LinksOfStep, *given: Any, **options: Any) -> None:
        right(self, *given, **options)
        hits.note(self.num_targets != len(self.links))
        self.num_targets = max(1, len(self.links))

    with patch.object(LinksOfStep, "__init__", begin):
        yield hits


@contextmanager
def fetched_rows_misplaced() -> Iterator[Hits]:
    """Fetched rows are one place off."""
    hits, right = Hits(), LinksOfStep._gather_rows

    def gathered(self: LinksOfStep, *given: Any) -> tuple[Tensor, Tensor]:
        at, rows = right(self, *given)
        own = len(self.shard.owned_nodes)
        hits.note(len(rows) > own + 1)
        return at, torch.cat([rows[:own], rows[own:].roll(1, 0)])

    with patch.object(LinksOfStep, "_gather_rows", gathered):
        yield hits


@contextmanager
def same_negatives_in_every_epoch() -> Iterator[Hits]:
    """What is drawn depends on the seed alone."""
    hits, right = Hits(), LinksOfStep._draw_pairs

    def pairs(self: LinksOfStep, key: int) -> Any:
        hits.note(True)
        return right(self, fold_in(SEED))

    with patch.object(LinksOfStep, "_draw_pairs", pairs):
        yield hits


@contextmanager
def ends_of_one_type() -> Iterator[Hits]:
    """A node of any type stands in for another."""
    hits, right = Hits(), LinksOfStep._draw_pairs

    def pairs(self: LinksOfStep, key: int) -> Any:
        hits.note(len(self.options.ends) > 2)
        self.options = replace(self.options, ends=self.options.ends[[0, -1]])
        return right(self, key)

    with patch.object(LinksOfStep, "_draw_pairs", pairs):
        yield hits


@contextmanager
def links_of_every_relation() -> Iterator[Hits]:
    """Edges of relations that are not predicted are trained on too."""
    hits, right = Hits(), link_objective.mark_relations

    def mark(links: LinkTriples, relations: Tensor | None) -> Tensor:
        hits.note(not right(links, relations).all())
        return right(links, None)

    with patch.object(link_objective, "mark_relations", mark):
        yield hits


BETWEEN_WORKERS = (
    links_numbered_by_each_worker,
    fetched_rows_without_gradient,
    mean_over_own_links,
    fetched_rows_misplaced,
)
ANYWHERE: tuple[Mutant, ...] = (same_negatives_in_every_epoch, ends_of_one_type, links_of_every_relation)
MUTANTS: Mapping[str, Mutant] = {mutant.__name__: mutant for mutant in (*BETWEEN_WORKERS, *ANYWHERE)}
