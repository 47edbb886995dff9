"""Training and inference on stores of parts, each of which lacks the features of other parts' nodes, for a suite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from layer_table import OUT
from torch import Tensor

from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.problem import Problem
from outgrow.engine.shard import GraphShard, PartitionShard, make_shard
from outgrow.graph.graph import Graph, NodeType, Split
from outgrow.graph.partition.methods import HashPartitioner
from outgrow.graph.partition.partition import Partition
from outgrow.graph.store.part_stores import choose_part_store, write_part_stores
from outgrow.graph.store.reader import open_store
from outgrow.graph.topology import Topology
from outgrow.inference.modes import EXACT, LAYERWISE, SAMPLED, InferenceChooser
from outgrow.nn.layer import Features
from outgrow.nn.tasks import NodeClassification
from outgrow.ops.block_rows import BlockRows
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from suites.cases import Case, features_of, model_of
from suites.exactness import GRAPHS, Gradient, step_of

FEW = BatchConfig(size=11, fanout=(3, 2, 4))
WAYS: Mapping[str, tuple[Strategy, BatchConfig]] = {
    "full": (Full(), FULL_GRAPH),
    "sampled": (Sampled(), FEW),
    "sampled-cached": (Sampled(cache=0.2), FEW),
    "sampled-cached-by-hosts": (Sampled(cache=0.2, cache_scope="host", cache_by="presampling"), FEW),
    "split": (SplitParallel(), FEW),
    "migrate": (Migrate(move_model=True, merge=False), FEW),
    "migrate-gathered-late": (Migrate(move_model=True, merge=False, pregather=False), FEW),
    "orchestrate": (Orchestrate(hot_ratio=0.2), FEW),
}
CASES = (
    Case("sage-aggregate-first", "weighted"),
    Case("gcn", "multi-graph", features="sparse"),
    Case("gatv2-shared", "multi-graph", features="blocks"),
)
METHOD = HashPartitioner(seed=3)


class Seen(NamedTuple):
    """A gradient, and outputs of own nodes by mode of evaluation."""

    gradient: Gradient
    outputs: dict[str, Tensor]


def topology_of(case: Case) -> Topology:
    """The edges of a case's graph and their weights, in the order that a store has them in."""
    given = GRAPHS[case.graph]
    order = np.lexsort((given.indices.numpy(), np.repeat(np.arange(given.num_nodes), np.diff(given.indptr.numpy()))))
    weight = None if given.weight is None else given.weight[torch.from_numpy(order)]
    return Topology(indptr=given.indptr, indices=given.indices[torch.from_numpy(order)], weight=weight)


def graph_of(case: Case) -> Graph:
    """The graph of a case, with labels and features."""
    topology = topology_of(case)
    num_nodes = topology.num_nodes
    features: Features = features_of(case, num_nodes)
    kinds: tuple[NodeType, ...] = ()
    if isinstance(features, BlockRows):
        low, high = (rows for rows in features.rows)
        assert isinstance(low, slice)
        assert isinstance(high, slice)
        widths = [block.shape[1] for block in features.blocks]
        kinds = (
            NodeType(name="a", first=0, last=low.stop, num_columns=widths[0]),
            NodeType(name="b", first=low.stop, last=high.start),
            NodeType(name="c", first=high.start, last=num_nodes, num_columns=widths[1]),
        )
    train, rest = torch.arange(0, num_nodes, 2), torch.arange(1, num_nodes, 2)
    return Graph(
        name=case.conv,
        topology=topology,
        features=features,
        labels=torch.arange(num_nodes) % OUT,
        num_classes=OUT,
        split=Split(train=train, val=rest[:5], test=rest[5:]),
        node_types=kinds,
    )


def partition_of(case: Case, num_parts: int) -> Partition:
    """The partition of a case's graph."""
    return METHOD.partition_nodes(topology_of(case), num_parts)


def write_parts(folder: Path, num_parts: int) -> None:
    """Write the stores of all cases."""
    for number, case in enumerate(CASES):
        write_part_stores(graph_of(case), partition_of(case, num_parts), METHOD.cache_key, folder / str(number))


def train_both(place: WorkerContext, folder: Path) -> dict[tuple[str, int], tuple[Seen, Seen]]:
    """Of each way and case what a worker sees that has the whole graph, and one that has its part."""
    comm, found = place.comm, {}
    for number, case in enumerate(CASES):
        whole = graph_of(case)
        part = open_store(choose_part_store(folder / str(number), comm.rank, comm.local_ranks))
        owner = partition_of(case, comm.size).part
        for name, (strategy, batches) in WAYS.items():
            # Nothing that is kept with a graph is shared by both.
            first = PartitionShard(whole.topology, owner, comm)
            second = make_shard(part.topology, comm, METHOD, None, self_loops=False, part=part.part)
            found[name, number] = (
                _see(whole, first, case, strategy, batches),
                _see(part, second, case, strategy, batches),
            )
    return found


def _see(graph: Graph, share: GraphShard, case: Case, strategy: Strategy, batches: BatchConfig) -> Seen:
    def make_problem() -> Problem:
        assert graph.features is not None
        assert graph.labels is not None
        return Problem.from_node_labels(
            share,
            features=graph.features,
            labels=graph.labels,
            train=graph.split.train,
            task=NodeClassification(),
            model=model_of(case),
            seed=11,
            batches=batches,
        )

    gradient = step_of(make_problem(), strategy)
    problem = make_problem()
    execution = strategy.prepare(problem)
    chooser = InferenceChooser(problem, execution, FEW, uses_minibatches=strategy.uses_minibatches)
    outputs = {}
    for mode in (EXACT, LAYERWISE, SAMPLED):
        inference = chooser.choose(mode, share.filter_owned(graph.split.test)).inference
        assert inference is not None
        outputs[mode] = torch.cat([rows for _, rows in inference.run()])
    execution.close()
    return Seen(gradient, outputs)
