"""The last layer computes the rows of nodes with targets alone, with the gradients of all rows.

Of a typed model these are the types with targets; of others the nodes themselves, where they are few.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from outgrow.core.graph_types import GraphTypes
from outgrow.engine.batches import FULL_GRAPH
from outgrow.engine.full_graph import FullGraphEpoch
from outgrow.engine.last_layer import FEW_ROWS
from outgrow.engine.problem import Problem
from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard
from outgrow.inference.modes import ChosenInference, InferenceChooser
from outgrow.nn.attention import GATConv
from outgrow.nn.convolution import GCNConv, SAGEConv, SAGEMaxConv
from outgrow.nn.edge_messages import GINEConv
from outgrow.nn.epilogue import Epilogue
from outgrow.nn.gin import GINConv
from outgrow.nn.hetero import HeteroConv
from outgrow.nn.layer import Conv, Layer
from outgrow.nn.model import Model, layer_key
from outgrow.nn.pyg import PyGConv
from outgrow.nn.relational import RGCNConv
from outgrow.nn.tasks import NodeClassification
from outgrow.ops.rng import fold_in
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.full import Full
from suites.checks import on_workers
from suites.typed import BORDERS, EDGE_DIM, EDGE_TYPES, GRAPHS, NAMES, ForeignWithFeatures
from support import normal, whole_blocks

WIDTH, SEED = 6, 5
TYPES = GraphTypes(names=NAMES, borders=BORDERS, columns=(0, 0, 0, 0, WIDTH), edge_types=EDGE_TYPES)
GRAPH = GRAPHS["types"]
NODES = GRAPH.num_nodes
PAPERS = torch.arange(BORDERS[2], BORDERS[3])
TRAIN = torch.arange(BORDERS[2], BORDERS[3], 2)
LABELS = torch.arange(NODES) % WIDTH
OWNERS = {
    "scattered": lambda size: torch.arange(NODES) * 7 % NODES % size,
    "papers alone on a worker": lambda size: torch.isin(torch.arange(NODES), PAPERS[3:]).long() % size,
    "no paper on a worker": lambda size: (torch.arange(NODES) >= BORDERS[2]).long() % size,
}


CONVS: dict[str, Callable[[], Conv]] = {
    "sage": lambda: SAGEConv(WIDTH, WIDTH),
    # Scores cross beside values, in an order of their own.
    "gat": lambda: GATConv(WIDTH, WIDTH, 2, self_loops=False),
}


def make_model(conv: str) -> Model:
    torch.manual_seed(2)
    drop = Epilogue(activation=torch.relu, dropout=0.3)
    layers = [Layer(HeteroConv({each: CONVS[conv]() for each in EDGE_TYPES}), then) for then in (drop, drop, None)]
    model = Model(layers).double()
    model.bind_types(TYPES)
    return model


def make_epoch(shard: GraphShard, train: Tensor, conv: str = "sage") -> FullGraphEpoch:
    task = NodeClassification()
    given = {
        "features": normal(NODES, WIDTH),
        "labels": LABELS,
        "train": train,
        "task": task,
        "model": make_model(conv),
    }
    problem = Problem.from_node_labels(shard, seed=SEED, **given)  # type: ignore[arg-type]
    return FullGraphEpoch(problem.model, shard, problem.input, problem.objective, SEED)


def whole_gradients(train: Tensor, conv: str) -> tuple[float, list[Tensor]]:
    """The loss and gradients of all rows of all layers, by autograd alone."""
    model, key = make_model(conv), fold_in(SEED, 0, 0)
    x = normal(NODES, WIDTH)
    for number, layer in enumerate(model.layers_list()):
        x = layer(GRAPH.block.with_rng_key(layer_key(key, number)), x, x)
    loss = torch.nn.functional.cross_entropy(x[train], LABELS[train])
    return loss.item(), list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


def require_whole_gradients(epoch: FullGraphEpoch, train: Tensor, conv: str = "sage") -> None:
    loss, expected = whole_gradients(train, conv)
    assert epoch.run_step(0)[0] == pytest.approx(loss, rel=1e-12)
    for parameter, grad in zip(epoch.model.parameters(), expected, strict=True):
        # Modules of a type without targets have no gradient where nobody computes them.
        got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(got, torch.zeros_like(parameter) if grad is None else grad, rtol=1e-10, atol=1e-12)


def check_workers(comm: Comm, deal: str, conv: str) -> None:
    epoch = make_epoch(PartitionShard(GRAPH, OWNERS[deal](comm.size), comm), TRAIN, conv)
    require_whole_gradients(epoch, TRAIN, conv)
    assert epoch.last_rows is not None


def test_one_worker_computes_the_papers_alone() -> None:
    epoch = make_epoch(FullGraphShard(GRAPH), TRAIN)
    require_whole_gradients(epoch, TRAIN)
    assert epoch.last_rows is not None
    assert isinstance(epoch.last_rows.rows, range)
    assert epoch.last_rows.rows.start == PAPERS[0]
    assert epoch.last_rows.rows.stop <= PAPERS[-1] + 1


def test_targets_everywhere_need_all_rows() -> None:
    train = torch.arange(NODES)
    epoch = make_epoch(FullGraphShard(GRAPH), train)
    assert epoch.last_rows is None
    require_whole_gradients(epoch, train)


test_two_workers = on_workers(
    {f"{deal}, {conv}": partial(check_workers, deal=deal, conv=conv) for deal in OWNERS for conv in CONVS}, 2
)


FEW = torch.arange(1, NODES, 3)
DEALS = {
    "scattered": OWNERS["scattered"],
    "all targets on a worker": lambda size: torch.isin(torch.arange(NODES), FEW).long() % size,
    "most targets on a worker": lambda size: torch.isin(torch.arange(NODES), FEW[2:]).long() % size,
}
LAYERS: dict[str, Callable[[], Conv]] = {
    "gcn": lambda: GCNConv(WIDTH, WIDTH),
    "sage": lambda: SAGEConv(WIDTH, WIDTH),
    "gin": lambda: GINConv(WIDTH, WIDTH),
    "max": lambda: SAGEMaxConv(WIDTH, WIDTH),
    # Draws depend on the ids of edges, which are no longer consecutive.
    "gat": lambda: GATConv(WIDTH, WIDTH, 2, attention_dropout=0.5),
    "rgcn": lambda: RGCNConv(WIDTH, WIDTH, num_relations=len(EDGE_TYPES)),
    "edge features": lambda: GINEConv(WIDTH, WIDTH, edge_dim=EDGE_DIM),
    "pyg": lambda: PyGConv(ForeignWithFeatures(WIDTH, WIDTH), WIDTH, WIDTH, edge_dim=EDGE_DIM),
}


def make_plain_model(conv: str) -> Model:
    torch.manual_seed(3)
    drop = Epilogue(activation=torch.relu, dropout=0.3)
    return Model([Layer(LAYERS[conv](), drop), Layer(LAYERS[conv]())]).double()


def check_few_targets(comm: Comm | None, deal: str, conv: str, train: Tensor = FEW) -> FullGraphEpoch:
    """The loss and the gradients are those of all rows, by autograd alone."""
    shard = FullGraphShard(GRAPH) if comm is None else PartitionShard(GRAPH, DEALS[deal](comm.size), comm)
    model, task = make_plain_model(conv), NodeClassification()
    problem = Problem.from_node_labels(
        shard, features=normal(NODES, WIDTH), labels=LABELS, train=train, task=task, model=model, seed=SEED
    )
    epoch = FullGraphEpoch(model, shard, problem.input, problem.objective, SEED)
    reference = make_plain_model(conv)
    out = reference(whole_blocks(reference, GRAPH), normal(NODES, WIDTH), fold_in(SEED, 0, 0))
    loss = torch.nn.functional.cross_entropy(out[train], LABELS[train])
    expected = torch.autograd.grad(loss, list(reference.parameters()))
    assert epoch.run_step(0)[0] == pytest.approx(loss.item(), rel=1e-12)
    found = [each.grad for each in model.parameters()]
    torch.testing.assert_close(found, list(expected), rtol=1e-10, atol=1e-12)
    return epoch


@pytest.mark.parametrize("conv", LAYERS)
def test_one_worker_computes_few_targets_alone(conv: str) -> None:
    epoch = check_few_targets(None, "", conv)
    assert epoch.last_rows is not None
    assert isinstance(epoch.last_rows.rows, Tensor)
    assert epoch.last_rows.block.edges.num_dst == len(FEW)
    assert epoch.edges[-1].num_edges < epoch.edges[0].num_edges / 2


MOST_TARGETS = int(FEW_ROWS * NODES)


def test_all_rows_are_computed_where_many_are_read() -> None:
    assert check_few_targets(None, "", "sage", torch.arange(MOST_TARGETS)).last_rows is not None
    assert check_few_targets(None, "", "sage", torch.arange(MOST_TARGETS + 1)).last_rows is None


def check_plain_workers(comm: Comm, deal: str, conv: str) -> None:
    assert check_few_targets(comm, deal, conv).last_rows is not None


test_few_targets_on_two_workers = on_workers(
    {f"{deal}, {conv}": partial(check_plain_workers, deal=deal, conv=conv) for deal in DEALS for conv in LAYERS}, 2
)


def check_scored_rows(comm: Comm | None, deal: str, conv: str, scored: Tensor = FEW) -> ChosenInference:
    """The output of some nodes is that of all nodes, at these."""
    shard = FullGraphShard(GRAPH) if comm is None else PartitionShard(GRAPH, DEALS[deal](comm.size), comm)
    model = make_plain_model(conv).eval()
    problem = Problem.from_node_labels(
        shard,
        features=normal(NODES, WIDTH),
        labels=LABELS,
        train=FEW,
        task=NodeClassification(),
        model=model,
        seed=SEED,
    )
    chooser = InferenceChooser(problem, Full().prepare(problem), FULL_GRAPH, uses_minibatches=False)
    own = shard.filter_owned(scored)
    chosen, whole = (chooser.choose("auto", own, every_output=each) for each in (False, True))
    assert chosen.inference is not None
    assert whole.inference is not None
    [(nodes, found)] = chosen.inference.run()
    [(every_node, out)] = whole.inference.run()
    torch.testing.assert_close(found, out[torch.searchsorted(every_node, nodes)], rtol=1e-12, atol=1e-14)
    return chosen


@pytest.mark.parametrize("conv", LAYERS)
def test_one_worker_scores_few_nodes_alone(conv: str) -> None:
    chosen = check_scored_rows(None, "", conv)
    assert (chosen.num_nodes, chosen.in_memory) == (len(FEW), False)


def test_of_many_nodes_all_are_computed() -> None:
    assert check_scored_rows(None, "", "sage", torch.arange(MOST_TARGETS)).num_nodes == MOST_TARGETS
    assert check_scored_rows(None, "", "sage", torch.arange(MOST_TARGETS + 1)).num_nodes == NODES


def check_scored_on_workers(comm: Comm, deal: str, conv: str) -> None:
    check_scored_rows(comm, deal, conv)


test_scored_nodes_on_two_workers = on_workers(
    {f"{deal}, {conv}": partial(check_scored_on_workers, deal=deal, conv=conv) for deal in DEALS for conv in LAYERS}, 2
)
