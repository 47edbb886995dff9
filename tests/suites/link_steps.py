"""Steps, hidden edges, losses and negatives of links for the exactness suite: cases. Runs in workers too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.engine.batches import BatchConfig
from outgrow.engine.link_options import LinkOptions, LinkSteps, Regularizer
from outgrow.engine.objective import LinkTargets
from outgrow.engine.shard import GraphShard, PartitionShard
from outgrow.graph.link_numbers import LinkNumbers
from outgrow.graph.topology import Topology
from outgrow.nn import GAT, GCN, MLP, RGCN, SAGE, Decoupled, DistMult, Dot, Epilogue, Layer, Model, SAGEMaxConv
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.link_training import LINK_LOSSES
from suites.cases import DEALS
from suites.exactness import Gradient, step_of, underived
from suites.hits import Hits
from support import disk_folder, normal, random_topology, topology_of, with_relations

IN, HIDDEN, OUT, RELATIONS, SEED = 6, 6, 5, 3, 11


class Case(NamedTuple):
    """A model of links and how it is trained, on one graph, dealt out in one way; in batches if ``batch`` is not 0."""

    model: str = "gcn"
    decoder: str = "distmult"
    steps: int = 1
    hide: float = 0.0
    loss: str = "bce"
    sampling: str = "uniform"
    negatives: int = 1
    regularizer: str | None = None
    graph: str = "typed"
    deal: str = "scattered"
    relations: tuple[int, ...] = ()
    filters: bool = True
    itself: bool = False
    batch: int = 0
    exclude: bool = False


class LossOptions(NamedTuple):
    """Options of losses, as a `TrainConfig` has them."""

    margin: float | None = 0.5
    adversarial_temperature: float | None = 0.7
    label_smoothing: float = 0.1


Key = tuple[str, Case]
"""A way and a case."""
Found = dict[Key, Gradient]
Mutant = Callable[[], AbstractContextManager[Hits]]

MODELS: dict[str, Callable[[], Model]] = {
    "gcn": lambda: GCN(IN, HIDDEN, OUT, dropout=0.3),
    "sage": lambda: SAGE(IN, HIDDEN, OUT, dropout=0.3),
    "sage-max": lambda: Model(
        [Layer(SAGEMaxConv(IN, HIDDEN), Epilogue(activation=torch.relu)), Layer(SAGEMaxConv(HIDDEN, OUT))]
    ),
    "gat": lambda: GAT(IN, HIDDEN, OUT, heads=2, dropout=0.3),
    "rgcn": lambda: RGCN(IN, HIDDEN, OUT, num_relations=RELATIONS, bases=2, dropout=0.3),
    "decoupled": lambda: Decoupled(IN, HIDDEN, OUT, rounds=3, dropout=0.3),
    "mlp": lambda: MLP(IN, HIDDEN, OUT, dropout=0.3),
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
    "offload-3": lambda: (Offload(chunks=3, scratch_dir=str(disk_folder())), 1),
    "tensor": lambda: (TensorParallel(), 1),
    "sampled": lambda: (Sampled(), 0),
    "split": lambda: (SplitParallel(partial_sums=True), 1),
    "migrate": lambda: (Migrate(), 0),
    "orchestrate": lambda: (Orchestrate(hot_ratio=0.5, super_batch=1, reuse="aggregate"), 1),
}
"""Strategies, and how many epochs each has computed before; they must leave nothing behind."""
WHOLE_WAYS = ("full", "offload-3", "tensor")
HIDING = [
    *(Case(model, steps=3, hide=hide) for model in MODELS for hide in (0.5, 0.1)),
    *(Case(model, "dot", hide=0.4, graph="weighted", deal="one-node-part") for model in MODELS),
    Case("rgcn", steps=2, hide=0.5, relations=(0, 2)),
    Case("gcn", steps=4, hide=0.25, graph="isolated", deal="one-node-part"),
]
"""How edges are hidden."""
LOSSES = [
    *(Case(loss=loss, negatives=3, steps=2) for loss in ("softmax", "self-adversarial", "margin")),
    *(
        Case(loss=loss, sampling=sampling, negatives=negatives, steps=2, graph=graph)
        for loss in ("bce", "softmax", "self-adversarial", "margin")
        for sampling, negatives in (("shared", 4), ("degree", 4), ("in-batch", 5), ("all", 1))
        for graph in ("typed", "weighted")
    ),
    *(Case(loss="k-vs-all", steps=steps, graph=graph) for steps in (1, 3) for graph in ("typed", "weighted")),
    *(
        Case("gcn", "dot", 2, 0.5, loss, sampling, 6)
        for loss in ("bce", "softmax")
        for sampling in ("shared", "in-batch")
    ),
    *(
        Case(loss=loss, sampling="shared", negatives=3, deal="one-node-part", graph="isolated")
        for loss in ("softmax", "margin")
    ),
    *(
        Case(regularizer=name, sampling=sampling, negatives=3, relations=(0, 2))
        for name in ("n3", "l2")
        for sampling in ("uniform", "shared")
    ),
    Case("rgcn", steps=2, hide=0.5, loss="softmax", sampling="shared", negatives=8, relations=(1,)),
    *(
        Case(decoder=decoder, steps=2, loss="softmax", sampling=sampling, negatives=6, graph=graph, filters=False)
        for sampling in ("shared", "all")
        for decoder, graph in (("distmult", "weighted"), ("dot", "typed"))
    ),
    *(
        Case(steps=2, loss=loss, sampling=sampling, negatives=negatives, itself=True)
        for loss, sampling, negatives in (("softmax", "all", 1), ("bce", "shared", 8), ("k-vs-all", "uniform", 1))
    ),
    *(Case("mlp", steps=3, sampling=sampling, negatives=2, regularizer="n3") for sampling in ("uniform", "shared")),
    Case("mlp", loss="k-vs-all", steps=3, graph="isolated", deal="one-node-part"),
]
"""What is computed of scores."""
UNDIRECTED = [
    Case("gcn", "dot", 2, 0.5, "softmax", "shared", 6, graph="without relations"),
    Case("gcn", "dot", 2, loss="k-vs-all", graph="without relations"),
]
"""Where the reverse of a link is an answer too."""
FEW_ROWS = [
    *(
        Case(model, steps=25, hide=0.1, loss=loss, sampling=sampling, negatives=2)
        for model in ("gcn", "sage", "gat", "rgcn", "decoupled")
        for loss, sampling in (("bce", "uniform"), ("softmax", "shared"))
    ),
]
"""Steps that read so few rows that the last layer computes no others."""
BATCHES = [
    *(Case(model, batch=70, exclude=exclude) for model in MODELS for exclude in (False, True)),
    *(Case(model, "dot", batch=90, exclude=True, graph="weighted", deal="one-node-part") for model in MODELS),
    Case("rgcn", batch=50, exclude=True, relations=(0, 2)),
    Case("gcn", batch=2, exclude=True, graph="isolated", deal="one-node-part"),
    *(
        Case(loss=loss, sampling=sampling, negatives=4, batch=90, exclude=True, graph=graph)
        for loss in ("bce", "softmax", "self-adversarial", "margin")
        for sampling in ("uniform", "shared", "degree", "in-batch")
        for graph in ("typed", "weighted")
    ),
    *(Case("sage", loss="softmax", sampling=sampling, negatives=16, batch=90) for sampling in ("shared", "degree")),
    Case("gcn", "dot", 1, 0.0, "softmax", "shared", 6, graph="without relations", batch=90, exclude=True),
    Case("sage", loss="softmax", sampling="shared", negatives=6, filters=False, batch=90),
    Case("sage", loss="softmax", sampling="in-batch", negatives=6, itself=True, batch=90),
    *(Case(regularizer=name, sampling="shared", negatives=3, relations=(0, 2), batch=60) for name in ("n3", "l2")),
    Case("rgcn", loss="softmax", sampling="shared", negatives=3, graph="isolated", deal="one-node-part", batch=2),
]
"""Batches of links and all their neighbours."""
BATCH_WAYS = ("sampled", "split", "migrate")
REUSED = [case for case in BATCHES if case.model == "sage"]
"""Batches in which aggregates of hot nodes are what they would be without reuse: means read no degrees of sources."""
IN_BATCHES = [
    *((way, case) for way in BATCH_WAYS for case in BATCHES),
    *(("orchestrate", case) for case in REUSED),
]
QUICK = [
    *(("sampled", case) for case in BATCHES[1::2]),
    *((way, case) for way in ("split", "migrate") for case in BATCHES[1::4]),
    *(("orchestrate", case) for case in REUSED[1:4]),
    *(("full", case) for case in FEW_ROWS[::3]),
    *(("full", case) for case in UNDIRECTED),
    *((way, case) for way in WHOLE_WAYS for case in HIDING[1::2]),
    *(("full", case) for case in LOSSES[::2]),
    *((way, case) for way in ("offload-3", "tensor") for case in LOSSES[-13:]),
]
"""Half of all: the other half differs in one thing."""
EVERYTHING = [
    *((way, case) for way in WHOLE_WAYS for case in (*HIDING, *LOSSES, *UNDIRECTED, *FEW_ROWS)),
    *IN_BATCHES,
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


def fresh(case: Case) -> Topology:
    """The graph, with edges that nothing was derived from yet."""
    return underived(GRAPHS[case.graph][0])


def problem_of(case: Case, share: GraphShard) -> Problem:
    options = LinkOptions(
        ends=torch.tensor(GRAPHS[case.graph][1]),
        negatives=case.negatives,
        relations=torch.tensor(case.relations) if case.relations else None,
        steps=LinkSteps(num_steps=case.steps, hide=case.hide),
        loss=LINK_LOSSES[case.loss](LossOptions()),
        sampling=case.sampling,
        filters_negatives=case.filters,
        ranks_self=case.itself,
        regularizer=None if case.regularizer is None else Regularizer(name=case.regularizer, weight=0.3),
        excludes_targets=case.exclude,
    )
    count = len(LinkNumbers(share.topology, options.relations)) if case.batch else share.topology.num_edges
    return Problem(
        shard=share,
        features=features_of(case),
        targets=LinkTargets(options=options, num_targets=count),
        model=model_of(case),
        seed=SEED,
        batches=BatchConfig(size=case.batch or None),
    )


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
