"""Batches of links with sampled neighbours: cases that must give the same on any number of workers, in all ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from outgrow.engine.batches import BatchConfig
from outgrow.engine.link_options import LinkOptions
from outgrow.engine.objective import LinkTargets
from outgrow.engine.shard import GraphShard, PartitionShard
from outgrow.graph.link_numbers import LinkNumbers
from outgrow.graph.sampling.edge_sampler import LABOR, WITH_REPLACEMENT
from outgrow.graph.topology import Topology
from outgrow.nn import GAT, GCN, GINE, RGCN, SAGE, DistMult, Dot, Model
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.training.link_training import LINK_LOSSES
from suites import cases
from suites.cases import DEALS
from suites.exactness import Gradient, step_of, underived
from suites.link_steps import LossOptions
from support import random_topology, with_edge_features, with_relations

IN, HIDDEN, OUT, RELATIONS, SEED = cases.IN, 6, 5, 3, 17


class Case(NamedTuple):
    """A model of links and how its batches are drawn."""

    model: str = "sage"
    graph: str = "typed"
    features: str = "dense"
    sampling: str = "shared"
    exclude: bool = True
    deal: str = "scattered"
    batches: BatchConfig = BatchConfig(size=60, fanout=(3, 2))


Key = tuple[str, Case]
Found = dict[Key, Gradient]
MODELS: dict[str, Callable[[], Model]] = {
    "gcn": lambda: GCN(IN, HIDDEN, OUT, dropout=0.3),
    "sage": lambda: SAGE(IN, HIDDEN, OUT, dropout=0.3),
    "gat": lambda: GAT(IN, HIDDEN, OUT, heads=2, dropout=0.3),
    "rgcn": lambda: RGCN(IN, HIDDEN, OUT, num_relations=RELATIONS, bases=2, dropout=0.3),
    "gine": lambda: GINE(IN, HIDDEN, OUT, edge_dim=2),
}
GRAPHS: dict[str, tuple[Topology, tuple[int, ...]]] = {
    "typed": (with_relations(random_topology(60, 500), RELATIONS), (0, 17, 17, 60)),
    "weighted": (with_relations(random_topology(60, 500, weighted=True), RELATIONS), (0, 60)),
    "plain": (random_topology(60, 500), (0, 60)),
    "edge features": (with_edge_features(random_topology(60, 500), 2), (0, 60)),
}
BY_RELATION = BatchConfig(size=60, fanout=((2, 1, 2), (1, 2, 1)))
CASES = [
    *(Case(model, sampling=sampling) for model in ("gcn", "sage", "rgcn") for sampling in ("uniform", "in-batch")),
    *(Case("sage", features=features) for features in ("sparse", "blocks")),
    Case("gine", "edge features"),
    Case("gat", "plain", sampling="degree"),
    Case("gcn", "weighted", exclude=False),
    Case("sage", "weighted", deal="one-node-part", batches=BatchConfig(size=60, fanout=(2, 2), weighted=True)),
    Case("rgcn", batches=BY_RELATION),
    Case("gcn", "weighted", batches=BatchConfig(size=60, fanout=(3, 2), sampler=LABOR)),
    Case("sage", batches=BatchConfig(size=60, fanout=(3, 2), sampler=WITH_REPLACEMENT)),
    Case("sage", batches=BatchConfig(size=None, fanout=(4, 4))),
]
WAYS: dict[str, Callable[[], Strategy]] = {
    "sampled": Sampled,
    "split": lambda: SplitParallel(sampling_threads=2),
    "migrate": Migrate,
    "orchestrate": lambda: Orchestrate(hot_ratio=0.0),
}
KEYS = [(way, case) for way in WAYS for case in CASES]


def problem_of(case: Case, share: GraphShard) -> Problem:
    torch.manual_seed(2)
    of_relations = share.topology.relation is not None
    model = MODELS[case.model]().with_decoder(DistMult(OUT, RELATIONS) if of_relations else Dot()).double()
    options = LinkOptions(
        ends=torch.tensor(GRAPHS[case.graph][1]),
        negatives=4,
        loss=LINK_LOSSES["softmax"](LossOptions()),
        sampling=case.sampling,
        excludes_targets=case.exclude,
    )
    features = cases.features_of(cases.Case("sage", features=case.features), share.topology.num_nodes)
    if case.features != "dense":
        model.accept_sparse_features()
    return Problem(
        shard=share,
        features=features,
        targets=LinkTargets(options=options, num_targets=len(LinkNumbers(share.topology))),
        model=model,
        seed=SEED,
        batches=case.batches,
    )


def found_on(share: Callable[[Case], GraphShard], keys: Sequence[Key]) -> Found:
    """What ways give in some cases on a share, as a worker has it."""
    return {(way, case): step_of(problem_of(case, share(case)), WAYS[way]()) for way, case in keys}


def gradients(place: WorkerContext, keys: Sequence[Key]) -> Found:
    """What ways give in some cases on a worker's part."""

    def part(case: Case) -> GraphShard:
        topology = underived(GRAPHS[case.graph][0])
        return PartitionShard(topology, DEALS[case.deal](topology.num_nodes, place.comm.size), place.comm)

    return found_on(part, keys)
