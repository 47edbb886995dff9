"""Whether each strategy gives the gradient of the reference for models with modules per type, on graphs of types.

Functions here run in worker processes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from layer_table import EDGE_DIM, IN, OUT, Foreign
from torch import Tensor, nn

from outgrow.core.graph_types import EdgeType, GraphTypes
from outgrow.engine.problem import Problem
from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard
from outgrow.graph.topology import Topology
from outgrow.nn.attention import GATConv
from outgrow.nn.convolution import CommNetConv, SAGEConv, SAGEMaxConv
from outgrow.nn.edge_attention import GATv2Conv, TransformerConv
from outgrow.nn.edge_messages import EdgeConv, GINEConv, NNConv
from outgrow.nn.epilogue import Epilogue
from outgrow.nn.gated import GGCNConv
from outgrow.nn.gin import GINConv
from outgrow.nn.hetero import HeteroConv
from outgrow.nn.hgt import HGTConv
from outgrow.nn.layer import Conv, Layer
from outgrow.nn.model import Model
from outgrow.nn.pyg import PyGConv
from outgrow.nn.relation_matrices import RGCNMatrixConv
from outgrow.runtime.distributed.worker import WorkerContext
from suites.cases import DEALS
from suites.exactness import WAYS, Gradient, split_by_memory, step_of, storage_reads, underived
from suites.objectives import make_task
from support import normal, topology_of, with_edge_features

NAMES = ("author", "nobody", "paper", "venue")
BORDERS = (0, 14, 14, 33, 40)
"""A type has no nodes, and another has fewer than there are workers times two."""
EDGE_TYPES: tuple[EdgeType, ...] = (
    ("author", "writes", "paper"),
    ("paper", "written_by", "author"),
    ("paper", "cites", "paper"),
    ("paper", "in", "venue"),
    ("venue", "of", "paper"),
    ("author", "knows", "author"),
    ("venue", "without_edges", "author"),
)
TYPES = GraphTypes(names=NAMES, borders=BORDERS, columns=(0, 0, 0, 0, IN), edge_types=EDGE_TYPES)


def typed_topology(count: int, *, weighted: bool = False, seed: int = 0) -> Topology:
    """Skewed edges of each edge type but the last, parallel ones included."""
    draw = np.random.default_rng(seed)
    found = list[tuple[int, int, int]]()
    for number, (source, _, target) in enumerate(EDGE_TYPES[:-1]):
        (low, high), (first, last) = TYPES.type_nodes(source), TYPES.type_nodes(target)
        for _ in range(count):
            src = low + int((high - low) * draw.random() ** 2)
            found.append((src, first + int((last - first) * draw.random()), number))
    found.sort(key=lambda edge: (edge[1], edge[0], edge[2]))
    plain = topology_of(TYPES.num_nodes, [(src, dst) for src, dst, _ in found], weighted=weighted)
    return Topology(
        indptr=plain.indptr,
        indices=plain.indices,
        weight=plain.weight,
        relation=torch.tensor([number for _, _, number in found], dtype=torch.int8),
    )


GRAPHS = {"types": typed_topology(40), "weighted": typed_topology(30, weighted=True), "few": typed_topology(2)}
GRAPHS = {name: with_edge_features(graph, EDGE_DIM) for name, graph in GRAPHS.items()}
MIXED: tuple[Callable[[], Conv], ...] = (
    lambda: SAGEConv(IN, OUT, project_first=True),
    lambda: GGCNConv(IN, OUT),
    lambda: SAGEMaxConv(IN, OUT),
    lambda: GINConv(IN, OUT, project_first=False),
)


class ForeignWithFeatures(nn.Module):
    """What a convolution of PyG looks like whose messages are made of the features of edges, too."""

    def __init__(self, in_features: int = IN, out_features: int = OUT) -> None:
        super().__init__()
        self.message = nn.Linear(in_features + EDGE_DIM, out_features)
        self.own = nn.Linear(in_features, out_features)

    def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        src, dst = edge_index
        own: Tensor = self.own(x[1])
        return own.index_add(0, dst, torch.tanh(self.message(torch.cat([x[0][src], edge_attr], 1))))


READING: tuple[Callable[[], Conv], ...] = (
    lambda: GATv2Conv(IN, OUT, 2, edge_dim=EDGE_DIM, attention_dropout=0.3, self_loops=False),
    lambda: TransformerConv(IN, OUT, 3, edge_dim=EDGE_DIM, attention_dropout=0.3),
    lambda: NNConv(IN, OUT, EDGE_DIM, project_first=True),
    lambda: PyGConv(ForeignWithFeatures(), IN, OUT, edge_dim=EDGE_DIM),
    lambda: EdgeConv(IN, OUT),
    lambda: GATConv(IN, OUT, 2, edge_dim=EDGE_DIM, self_loops=False),
)
"""They read features of edges, but for one whose maximum of no edges is no zero."""


def every(*makers: Callable[[], Conv]) -> dict[EdgeType, Conv]:
    """A convolution for each edge type, of the makers in turn."""
    return {each: makers[number % len(makers)]() for number, each in enumerate(EDGE_TYPES)}


CONVS: dict[str, Callable[[], Conv]] = {
    "sage": lambda: HeteroConv(every(lambda: SAGEConv(IN, OUT, project_first=False))),
    "sage-mean": lambda: HeteroConv(every(lambda: SAGEConv(IN, OUT, project_first=False)), "mean"),
    "sage-max": lambda: HeteroConv(every(lambda: SAGEConv(IN, OUT, project_first=False)), "max"),
    "sage-project-first": lambda: HeteroConv(every(lambda: CommNetConv(IN, OUT, project_first=True))),
    "mixed": lambda: HeteroConv(every(*MIXED), "mean"),
    "rgcn": lambda: RGCNMatrixConv(IN, OUT, len(EDGE_TYPES), node_types=NAMES[::-1], project_first=False),
    "rgcn-blocks": lambda: RGCNMatrixConv(IN, OUT, len(EDGE_TYPES), num_blocks=2, node_types=NAMES, project_first=True),
    "hgt": lambda: HGTConv(IN, OUT, NAMES[::-1], EDGE_TYPES[::-1], heads=2),
    "gat": lambda: HeteroConv(every(lambda: GATConv(IN, OUT, 2, attention_dropout=0.3, self_loops=False))),
    "gat-and-sage": lambda: HeteroConv(
        every(
            lambda: GATConv(IN, OUT, 2, self_loops=False),
            lambda: SAGEConv(IN, OUT, project_first=False),
            lambda: GATConv(IN, OUT, 3, average=True, self_loops=False),
        ),
        "mean",
    ),
    "gat-one-reads-edges": lambda: HeteroConv(
        every(
            lambda: GATConv(IN, OUT, 2, edge_dim=EDGE_DIM, attention_dropout=0.3, self_loops=False),
            lambda: GATConv(IN, OUT, 2, self_loops=False),
            lambda: GATConv(IN, OUT, 2, self_loops=False),
        )
    ),
    "sums-read-edges": lambda: HeteroConv(
        every(lambda: GINEConv(IN, OUT, EDGE_DIM), lambda: NNConv(IN, OUT, EDGE_DIM, mean=True)), "max"
    ),
    "many-read-edges": lambda: HeteroConv(every(*READING), "mean"),
    "foreign": lambda: HeteroConv(every(lambda: PyGConv(Foreign(), IN, OUT))),
    "foreign-and-ours": lambda: HeteroConv(every(lambda: PyGConv(Foreign(), IN, OUT), *MIXED), "max"),
}


class TypedCase(NamedTuple):
    """A model with a convolution per edge type, on one graph, dealt out in one way."""

    conv: str
    graph: str = "types"
    deal: str = "scattered"
    input_dropout: float = 0.0

    @property
    def tolerance(self) -> float:
        """Largest difference that the order of additions explains."""
        return 1e-10


Key = tuple[str, TypedCase]
Found = dict[Key, Gradient]


def model_of(case: TypedCase) -> Model:
    """Three layers, of which no parameter is zero, bound to the types."""
    torch.manual_seed(1)
    hidden = Epilogue(norm=True, activation=nn.functional.elu, residual=True, dropout=0.3)
    finishes = (hidden, Epilogue(activation=torch.relu, dropout=0.2), None)
    model = Model([Layer(CONVS[case.conv](), finish) for finish in finishes], input_dropout=case.input_dropout)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.bind_types(TYPES)
    return model.double()


def problem_of(case: TypedCase, share: GraphShard, way: str) -> Problem:
    """The problem on a share; about half of the nodes are to be trained on."""
    num_nodes = share.topology.num_nodes
    task, labels = make_task("single", num_nodes)
    return Problem.from_node_labels(
        share,
        features=normal(num_nodes, IN, seed=3),
        labels=labels,
        train=torch.arange(0, num_nodes, 2),
        task=task,
        model=model_of(case),
        seed=11,
        batches=WAYS[way].batches,
    )


def references(keys: Iterable[Key]) -> Found:
    """What ways should give in some cases: what their references give on one worker."""
    known, found = {}, {}
    for name, case in keys:
        way = WAYS[name]
        if (way.expected, case) not in known:
            share = FullGraphShard(underived(GRAPHS[case.graph]))
            known[way.expected, case] = step_of(problem_of(case, share, name), way.reference)
        found[name, case] = known[way.expected, case]
    return found


def gradients(place: WorkerContext, keys: Sequence[Key]) -> Found:
    """What ways give in some cases, as a worker has it."""
    found = {}
    for pinned, mine in split_by_memory(keys):
        with storage_reads(pinned):
            found |= steps(place, mine)
    return found


def steps(place: WorkerContext, keys: Sequence[Key]) -> Found:
    """What ways give in some cases, as a worker has it."""
    found = {}
    for case in dict.fromkeys(case for _, case in keys):
        topology = GRAPHS[case.graph]
        share = PartitionShard(topology, DEALS[case.deal](topology.num_nodes, place.comm.size), place.comm)
        for name in (name for name, other in keys if other == case):
            way = WAYS[name]
            found[name, case] = step_of(problem_of(case, share, name), way.strategy, way.epochs_before)
    return found
