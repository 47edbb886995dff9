"""Whether a strategy's gradient is that of the reference, for every layer, graph, partition and number of workers.

A new strategy is one line in `WAYS`. Functions here run in worker processes too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from layer_table import CONVS, EDGE_DIM, RELATIONS, one_of_each
from torch import Tensor

from hosts import on_hosts, spread_over
from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.layer_plan import has_fixed_weights
from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Layer
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload import storage
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from suites.cases import DEALS, DECOUPLED, PROPAGATED, Case, features_of, model_of
from suites.mutants import MUTANTS, Mutant
from suites.objectives import make_task
from suites.sampled_ways import COLD, FEW, SAMPLED_BY, SAMPLED_WAYS
from support import disk_folder, random_topology, topology_of, with_edge_features, with_relations, with_times

FOLDER = str(disk_folder())


class Way(NamedTuple):
    """A strategy, and what it is asked for.

    Attributes:
        strategy: The strategy.
        reference: The strategy that gives on one worker what it should give.
        batches: The batches that both train on.
        epochs_before: How many epochs it has computed before; they must leave nothing behind.
        pinned: Whether its rows are where they are beside a GPU: in memory, by node.
    """

    strategy: Strategy
    reference: Strategy
    batches: BatchConfig = FULL_GRAPH
    epochs_before: int = 0
    pinned: bool = False

    @property
    def expected(self) -> tuple[str, BatchConfig]:
        """What is expected: the same for ways that should agree."""
        return self.reference.name, self.batches


def offload(chunks: int, **techniques: Any) -> Way:
    """Strategy `offload` in its second epoch."""
    return Way(Offload(chunks=chunks, scratch_dir=FOLDER, **techniques), Full(), epochs_before=1)


TINY = BatchConfig(size=3, fanout=(3, 2, 4))
WHOLE_BOTTOM = BatchConfig(size=3, fanout=(3, 2, -1))
AGGREGATES = Orchestrate(hot_ratio=0.5, super_batch=2, reuse="aggregate")
TECHNIQUES = ("sharing", "reuse", "reorganise", "overlap", "cache")
WAYS = {
    "full": Way(Full(), Full()),
    "full-without-overlap": Way(Full(overlap=False, first_aggregate="each-step"), Full()),
    "sampled-everything": Way(Sampled(), Full()),
    "sampled": Way(Sampled(cache=0.2), Sampled(), FEW),
    "split-everything": Way(SplitParallel(), Full()),
    "split": Way(SplitParallel(cache=0.1, sampling_threads=2), Sampled(), FEW),
    "split-sources": Way(SplitParallel(partial_sums=False), Sampled(), FEW),
    "migrate": Way(Migrate(), Sampled(), FEW),
    "migrate-travel": Way(Migrate(move_model=True, merge=False, cache=0.2, cache_by="presampling"), Sampled(), FEW),
    "migrate-merged": Way(Migrate(move_model=True, time_steps=2, pregather=False), Sampled(), TINY, epochs_before=1),
    "migrate-one-step": Way(Migrate(move_model=True, time_steps=1), Sampled(), FEW),
    "orchestrate-cold": Way(COLD, Sampled(), FEW),
    "orchestrate-aggregate": Way(AGGREGATES, Sampled(), WHOLE_BOTTOM, epochs_before=1),
    **{name: Way(strategy, Sampled(), batches) for name, (strategy, batches) in SAMPLED_WAYS.items()},
    "offload-3": offload(3),
    "offload-7-without-techniques": offload(7, **dict.fromkeys(TECHNIQUES, False)),
    "tensor": Way(TensorParallel(), Full(), epochs_before=1),
    "tensor-textbook": Way(TensorParallel(cache_first_aggregate=False), Full()),
    "tensor-coefficients": Way(TensorParallel(attention="coefficients", chunks=1), Full()),
    "tensor-files": Way(TensorParallel(on_disk="rows", chunks=3, scratch_dir=FOLDER), Full(), epochs_before=1),
    **{f"offload-{chunks}": offload(chunks) for chunks in (1, 2, 4, 5, 6, 7)},
    **{f"offload-4-without-{name}": offload(4, **{name: False}) for name in TECHNIQUES},
    "offload-3-with-overlap-only": offload(3, **{**dict.fromkeys(TECHNIQUES, False), "overlap": True}),
    "offload-5-without-sharing-and-reuse": offload(5, sharing=False, reuse=False),
    "offload-3-pinned": offload(3)._replace(pinned=True),
}


def dressed(topology: Topology) -> Topology:
    """The graph with relations and features of its edges."""
    return with_edge_features(with_relations(topology, RELATIONS), EDGE_DIM)


GRAPHS = {
    "multi-graph": dressed(random_topology(40, 250)),
    "weighted": dressed(random_topology(40, 250, weighted=True)),
    "isolated": dressed(topology_of(9, [(0, 4), (4, 0), (4, 4)])),
    "no-edges": dressed(topology_of(5, [])),
}
GRAPHS = {name: with_times(graph) for name, graph in GRAPHS.items()}
EPOCH = 3


class Gradient(NamedTuple):
    """What an epoch without an optimizer gives: the sums of its losses and of each parameter's gradients."""

    loss: float
    parameters: dict[str, Tensor]

    def difference(self, other: Gradient) -> float:
        """The largest difference, relative to the largest number of each tensor (at least 1)."""
        found = abs(self.loss - other.loss) / max(1.0, abs(other.loss))
        assert self.parameters.keys() == other.parameters.keys()
        for name, theirs in other.parameters.items():
            scale = max(1.0, theirs.abs().max().item())
            found = max(found, (self.parameters[name] - theirs).abs().max().item() / scale)
        return found

    def same_bits(self, other: Gradient) -> bool:
        """Whether nothing differs."""
        same = (torch.equal(mine, other.parameters[name]) for name, mine in self.parameters.items())
        return self.loss == other.loss and self.parameters.keys() == other.parameters.keys() and all(same)


Key = tuple[str, Case]
"""A way and a case."""
Found = dict[Key, Gradient]


MADE = one_of_each()
OPAQUE = [name for name, conv in MADE.items() if not conv.aggregation.sliceable]
ROUNDS = {**DECOUPLED, **PROPAGATED}
FIXED = [name for name, conv in MADE.items() if has_fixed_weights(Layer(conv))]
FIXED += [name for name, options in ROUNDS.items() if not {"heads", "num_relations"} & options.keys()]
"""Sums whose weights the graph fixes."""
SUMS = [
    name for name, conv in MADE.items() if (summing := Layer(conv).aggregate_first()) and summing.has_static_aggregate
]
"""Layers whose sums of raw features have no parameters, though they may project first."""
SPARSE = [name for name, conv in MADE.items() if conv.accepts_sparse]
PARTIAL = ("sparse", "blocks")
HALF = [name for name, conv in MADE.items() if conv.accepts_half]
KINDS = ("gcn-aggregate-first", "sage-project-first", "gat-concatenated", "ggcn")
CASES = [
    *(Case(conv, input_dropout=0.2) for conv in CONVS),
    *(Case(conv, "weighted", "one-node-part") for conv in CONVS),
    *(Case(conv, "isolated", "ranges") for conv in CONVS),
    *(Case(conv, "no-edges", "ranges") for conv in KINDS),
    *(Case(conv, features=form, input_dropout=0.2) for form in PARTIAL for conv in KINDS if conv in SPARSE),
    *(Case(conv, features="half", dtype=torch.float32) for conv in KINDS if conv in HALF),
    *(Case(conv, "weighted", task="multi") for conv in KINDS),
    *(Case(conv, "weighted", input_dropout=0.2) for conv in DECOUPLED),
    *(Case(conv, "isolated", "one-node-part") for conv in DECOUPLED),
    *(Case(conv, features="sparse") for conv in DECOUPLED),
    *(Case(conv, "weighted", input_dropout=0.2) for conv in PROPAGATED),
    *(Case(conv, "isolated", "one-node-part") for conv in PROPAGATED),
    *(Case(conv, features="half", dtype=torch.float32) for conv in PROPAGATED),
]
ALL_CASES = [
    *(Case(*of, dropout) for of in product((*CONVS, *ROUNDS), GRAPHS, DEALS) for dropout in (0, 0.2)),
    *(Case(conv, graph, features=form, input_dropout=0.2) for conv in SPARSE for graph in GRAPHS for form in PARTIAL),
    *(Case(conv, graph, features="half", dtype=torch.float32) for conv in HALF for graph in GRAPHS),
    *(Case(conv, graph, features="half") for conv in HALF for graph in GRAPHS),
    *(Case(conv, graph, task="multi") for conv in CONVS for graph in GRAPHS),
]
FIRST = [*CASES[: len(CONVS)], *(case for case in CASES if case.conv in ROUNDS and case.features == "dense")]
ENOUGH = {
    "tensor": [case for case in CASES if case.conv not in OPAQUE],
    "tensor-coefficients": [case for case in CASES if case.conv.startswith("decoupled-attention")],
    "tensor-files": [case for case in CASES if case.conv not in OPAQUE],
    "tensor-textbook": [Case(conv, "weighted", "one-node-part") for conv in KINDS],
    "split-everything": FIRST,
    "split-sources": [Case(conv, "weighted", "one-node-part") for conv in KINDS],
    "migrate": [Case(conv, "weighted", "one-node-part") for conv in KINDS],
    "migrate-travel": FIRST,
    "migrate-merged": [Case(conv, "weighted") for conv in KINDS],
    "orchestrate-cold": [Case(conv, "weighted", "one-node-part") for conv in KINDS],
    "orchestrate-aggregate": [
        *(Case(conv, "weighted", "one-node-part") for conv in SUMS),
        *(Case(conv, "isolated", "ranges") for conv in SUMS[:1]),
        *(Case(conv, features="half", dtype=torch.float32) for conv in SUMS if conv in HALF and conv in KINDS),
        *(Case(conv, task="multi") for conv in SUMS if conv in KINDS),
        *(Case(conv, features="sparse") for conv in SUMS if MADE[conv].accepts_sparse),
    ],
    "migrate-one-step": [Case(conv, "weighted", task="multi") for conv in KINDS],
    **{way: [Case(KINDS[shift % len(KINDS)], "weighted")] for shift, way in enumerate(SAMPLED_WAYS)},
    **{f"split-{sampler}": [Case(conv, "weighted") for conv in KINDS[:2]] for sampler in SAMPLED_BY},
    "offload-3": FIRST,
    "offload-3-pinned": FIRST,
    "offload-7-without-techniques": [Case(conv, "weighted") for conv in KINDS],
}
"""Cases of ways that take long; other ways run in all cases."""
EVERY_WAY = {way: ENOUGH.get(way, [] if way.startswith("offload") else CASES) for way in WAYS}
EVERY_CASE = [(way, case) for way, cases in EVERY_WAY.items() for case in cases]
FEW_CASES = 5
"""A quick test of a way with more cases than this has a third of them."""


def quick_cases(shift: int, way: str) -> list[Case]:
    """A third of a way's cases, each layer at least once; another third for another shift."""
    cases = EVERY_WAY[way]
    if WAYS[way].pinned:  # chunk by chunk they do what the way does that has files
        return [case for case in cases if case.conv in (*KINDS, *ROUNDS)]
    if len(cases) <= FEW_CASES:
        return list(cases)
    by_conv = {conv: [case for case in cases if case.conv == conv] for conv in dict.fromkeys(c.conv for c in cases)}
    return [
        case
        for start, of_conv in enumerate(by_conv.values(), shift)
        for case in (of_conv[start % 3 :: 3] or [of_conv[start % len(of_conv)]])
    ]


QUICK = [(way, case) for shift, way in enumerate(EVERY_WAY) for case in quick_cases(shift, way)]
CHUNKED = [*CASES[: len(CONVS)], *(case for case in CASES[len(CONVS) :] if case.conv in (*KINDS, *ROUNDS))]
EVERY_CHUNKING = [(way, case) for way in WAYS for case in CHUNKED if way.startswith("offload")]
DEALT = [way for way in WAYS if way not in SAMPLED_WAYS and (not way.startswith("offload") or way == "offload-3")]
DEALT += ["split-labor", "split-fastgcn"]
FIFTH = 5
"""Each way runs in every fifth of all cases, another fifth than the next way: all ways in all cases take hours."""
EVERY_DEAL = [
    (way, case)
    for shift, way in enumerate(DEALT)
    for case in ALL_CASES[shift % FIFTH :: FIFTH]
    if not (way.startswith("tensor") and case.conv in OPAQUE)
    and (
        way != "orchestrate-aggregate"
        or (case.conv in SUMS and case.features not in PARTIAL and not case.input_dropout)
    )
]


def problem_of(case: Case, share: GraphShard, batches: BatchConfig) -> Problem:
    """The problem on a share; about half of the nodes are to be trained on."""
    num_nodes = share.topology.num_nodes
    train, model, features = torch.arange(0, num_nodes, 2), model_of(case), features_of(case, num_nodes)
    task, labels = make_task(case.task, num_nodes)
    return Problem.from_node_labels(
        share, features=features, labels=labels, train=train, task=task, model=model, seed=11, batches=batches
    )


def step_of(problem: Problem, strategy: Strategy, epochs_before: int = 0) -> Gradient:
    """What an epoch gives, as a worker has it."""
    execution = strategy.prepare(problem)
    for epoch in range(EPOCH - epochs_before, EPOCH):
        for _ in execution.steps(epoch):
            problem.model.zero_grad()
    loss, sums = 0.0, dict[str, Tensor]()
    for step in execution.steps(EPOCH):
        loss += step.loss
        for name, parameter in problem.model.named_parameters():
            if parameter.grad is not None:
                sums[name] = parameter.grad + sums.get(name, 0)
        problem.model.zero_grad()
    execution.close()
    return Gradient(loss, sums)


def reference(case: Case, way: Way) -> Gradient:
    """What the reference of a way gives on one worker, on edges that nothing was derived from yet."""
    return step_of(problem_of(case, FullGraphShard(underived(GRAPHS[case.graph])), way.batches), way.reference)


def underived(given: Topology) -> Topology:
    """The same edges, that nothing was derived from yet."""
    return replace(given)


def references(keys: Iterable[Key]) -> Found:
    """What ways should give in some cases."""
    known, found = dict[tuple[tuple[str, BatchConfig], Case], Gradient](), {}
    for name, case in keys:
        way = WAYS[name]
        if (way.expected, case) not in known:
            known[way.expected, case] = reference(case, way)
        found[name, case] = known[way.expected, case]
    return found


def broken_keys(mutant: Mutant) -> list[Key]:
    """Where a mutant should be found."""
    return [(way, case) for way in mutant.breaks for case in (Case(conv, "weighted") for conv in mutant.convs)]


def mutated_references() -> Mapping[str, Found]:
    """What the reference gives under each mutant."""
    found = {}
    for name, mutant in MUTANTS.items():
        with mutant.broken():
            found[name] = references(broken_keys(mutant))
    return found


def part_of(case: Case, comm: Comm) -> PartitionShard:
    """A worker's share."""
    topology = GRAPHS[case.graph]
    return PartitionShard(topology, DEALS[case.deal](topology.num_nodes, comm.size), comm)


def gradients(place: WorkerContext, keys: Sequence[Key]) -> Found:
    """What ways give in some cases, as a worker that is a process has it."""
    found = {}
    # Rows of others are read here, from the same host, and asked for, from another.
    with on_hosts(place.comm, spread_over(place.comm, 2)):
        for pinned, mine in split_by_memory(keys):
            with storage_reads(pinned):
                found |= steps(place, mine)
    return found


def split_by_memory(keys: Sequence[Key]) -> Iterator[tuple[bool, list[Key]]]:
    """Those whose rows are in files, and those whose rows are in pinned memory, if there are any."""
    for pinned in (False, True):
        if mine := [key for key in keys if WAYS[key[0]].pinned == pinned]:
            yield pinned, mine


def storage_reads(pinned: bool) -> AbstractContextManager[object]:
    """All rows of `offload` are where they are beside a GPU, or where they are without one."""
    return patch.object(storage, "_reads_pinned_memory", lambda device: pinned)


def steps(place: WorkerContext, keys: Sequence[Key]) -> Found:
    """What ways give in some cases, as a worker has it."""
    found = {}
    for case in dict.fromkeys(case for _, case in keys):
        share = part_of(case, place.comm)
        for name in (name for name, other in keys if other == case):
            way = WAYS[name]
            found[name, case] = step_of(problem_of(case, share, way.batches), way.strategy, way.epochs_before)
    return found
