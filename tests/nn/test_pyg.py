"""Convolutions of PyG used unchanged: as PyG computes them, however the work is cut; some are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from layer_table import Foreign
from torch import Tensor, nn

from layer_plans import largest_difference, plans_for, results, whole
from outgrow.core.errors import InputError
from outgrow.engine.inference import infer_full_graph
from outgrow.engine.shard import layer_topology
from outgrow.nn import Epilogue, Layer, Model, PyGConv
from outgrow.nn.pyg import edge_index
from support import destinations_of, normal, random_topology, with_edge_features, with_relations

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    pyg = pytest.importorskip("torch_geometric.nn", reason="needs the extra pyg")

IN, OUT, RELATIONS, EDGE_DIM = 5, 6, 3, 4
TYPED = with_relations(random_topology(30, 160), RELATIONS)
WEIGHTED = random_topology(30, 160, weighted=True)
CONVS: dict[str, Callable[[], nn.Module]] = {
    "sage": lambda: pyg.SAGEConv(IN, OUT),
    "sage-lstm-free-median": lambda: pyg.SAGEConv((IN, IN), OUT, aggr="median"),
    "graph": lambda: pyg.GraphConv(IN, OUT),
    "gin": lambda: pyg.GINConv(nn.Linear(IN, OUT)),
    "gat": lambda: pyg.GATConv((IN, IN), OUT // 2, heads=2, add_self_loops=False),
    "gatv2": lambda: pyg.GATv2Conv(IN, OUT, add_self_loops=False),
    "transformer": lambda: pyg.TransformerConv(IN, OUT // 2, heads=2),
    "general": lambda: pyg.GeneralConv(IN, OUT),
    "rgcn": lambda: pyg.RGCNConv(IN, OUT, RELATIONS, num_bases=2),
    "film": lambda: pyg.FiLMConv(IN, OUT, RELATIONS),
}


def wrapped(conv: nn.Module, **options: int) -> Layer:
    torch.manual_seed(0)
    return Layer(PyGConv(conv, IN, OUT, **options)).double()


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("name", CONVS)
def test_what_pyg_computes_however_the_work_is_cut(name: str, self_loops: bool) -> None:
    conv = CONVS[name]()
    if self_loops and name in ("rgcn", "film"):
        with pytest.raises(InputError, match="a loop has none"):
            wrapped(conv, self_loops=True)
        return
    layer = wrapped(conv, self_loops=self_loops)
    topology, x = layer_topology(TYPED, layer), normal(30, IN)
    index = torch.stack([topology.indices.long(), destinations_of(topology.block.edges)])
    extra = () if topology.relation is None or not layer.conv.num_relations else (topology.relation.long(),)
    assert torch.equal(layer(topology.block, x, x), conv.eval()((x, x), index, *extra))
    reference = results(whole, layer, TYPED, x, 7)
    assert {plan.__name__ for plan in plans_for(layer)} == {"chunks", "gathered"}
    for plan in plans_for(layer):
        assert largest_difference(results(plan, layer, TYPED, x, 7), reference) <= 1e-12


@pytest.mark.parametrize("name", ["graph", "sage"])
def test_weights_of_edges_go_where_they_are_taken(name: str) -> None:
    conv = CONVS[name]()
    layer, x, block = wrapped(conv), normal(30, IN), WEIGHTED.block
    assert block.edges.weight is not None
    plain, weighted = conv((x, x), edge_index(block.edges)), layer(block, x, x)
    if name == "sage":
        assert torch.equal(weighted, plain)
        return
    assert torch.equal(weighted, conv((x, x), edge_index(block.edges), edge_weight=block.edges.weight.double()))
    assert not torch.allclose(weighted, plain)


def test_the_edge_index_is_built_once_per_block() -> None:
    edges = random_topology(30, 160).block.edges
    assert edge_index(edges) is edge_index(edges)
    assert torch.equal(edge_index(edges), torch.stack([edges.indices.long(), destinations_of(edges)]))


def test_inference_in_chunks_is_that_of_the_whole() -> None:
    torch.manual_seed(0)
    layers = [Layer(PyGConv(pyg.GraphConv(a, b), a, b), Epilogue(activation=torch.relu)) for a, b in ((5, 6), (6, 3))]
    model, x = Model(layers).double(), normal(30, IN)
    torch.testing.assert_close(
        infer_full_graph(model, WEIGHTED, x, chunk_bytes=500),
        infer_full_graph(model, WEIGHTED, x),
        rtol=1e-12,
        atol=1e-12,
    )


def test_one_that_drops_is_not_exact_and_drops_in_training_alone() -> None:
    layer = wrapped(pyg.GATConv(IN, OUT, add_self_loops=False, dropout=0.5))
    x, block = normal(30, IN), TYPED.block
    assert not layer.conv.exact
    assert torch.equal(layer(block, x, x), layer(block, x, x))
    assert not torch.equal(layer(block.with_rng_key(1), x, x), layer(block, x, x))
    mlp = nn.Sequential(nn.Linear(IN, OUT), nn.Dropout(0.1))
    assert not wrapped(pyg.GINConv(mlp)).conv.exact
    assert wrapped(pyg.GATConv(IN, OUT, add_self_loops=False)).conv.exact


class Counting(nn.Module):
    """Keeps a statistic of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(IN, OUT)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.linear(x[1])
        return out


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pyg.GCNConv(IN, OUT, add_self_loops=False), "bipartite"),
        (lambda: pyg.GATConv(IN, OUT), "add_self_loops=False"),
        (lambda: pyg.GINConv(nn.Sequential(nn.Linear(IN, OUT), nn.BatchNorm1d(OUT))), "layer norm"),
        (Counting, "buffers"),
        (lambda: pyg.SAGEConv(-1, OUT), "in_channels"),
        (lambda: pyg.SAGEConv(IN, OUT + 1), r"\[2, 7\]"),
        (lambda: pyg.SAGEConv(IN + 1, OUT), "cannot be wrapped"),
        (lambda: nn.Linear(IN, OUT), "cannot be wrapped"),
    ],
    ids=["not bipartite", "self-loops", "batch norm", "buffers", "lazy", "wider", "input", "no convolution"],
)
def test_those_that_cannot_be_used_are_refused(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(InputError, match=words):
        PyGConv(make(), IN, OUT)


def test_wrapping_changes_neither_the_convolution_nor_the_stream_of_random_numbers() -> None:
    conv = pyg.TransformerConv(IN, OUT, dropout=0.5)
    state = {name: value.clone() for name, value in conv.state_dict().items()}
    before = torch.get_rng_state()
    PyGConv(conv, IN, OUT)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in conv.state_dict().items())


def test_no_pyg_is_needed_to_wrap_what_looks_like_it() -> None:
    layer = Layer(PyGConv(Foreign(), 6, 6))
    assert layer.conv.exact
    assert not layer.accepts_sparse


READERS: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "gatv2": (lambda: pyg.GATv2Conv(IN, OUT, add_self_loops=False, edge_dim=EDGE_DIM), {}),
    "gine": (lambda: pyg.GINEConv(nn.Linear(IN, OUT), edge_dim=EDGE_DIM), {"edge_dim": EDGE_DIM}),
    "general": (lambda: pyg.GeneralConv(IN, OUT, in_edge_channels=EDGE_DIM), {"edge_dim": EDGE_DIM}),
    "edge-network": (lambda: pyg.NNConv(IN, OUT, nn.Linear(EDGE_DIM, IN * OUT)), {"edge_dim": EDGE_DIM}),
    "transformer": (lambda: pyg.TransformerConv(IN, OUT, edge_dim=EDGE_DIM), {}),
}


@pytest.mark.parametrize("name", READERS)
def test_features_of_edges_are_passed_on(name: str) -> None:
    make, options = READERS[name]
    conv = make()
    layer, x = wrapped(conv, **options), normal(30, IN)
    topology = with_edge_features(TYPED, EDGE_DIM)
    assert topology.edge_features is not None
    index = torch.stack([topology.indices.long(), destinations_of(topology.block.edges)])
    assert torch.equal(layer(topology.block, x, x), conv.eval()((x, x), index, edge_attr=topology.edge_features))
    reference = results(whole, layer, topology, x, 7)
    for plan in plans_for(layer):
        assert largest_difference(results(plan, layer, topology, x, 7), reference) < 1e-12
    with pytest.raises(InputError, match="4 features of each edge"):
        layer(TYPED.block, x, x)


def test_codes_are_one_hot_vectors_to_pyg() -> None:
    conv = pyg.TransformerConv(IN, OUT, edge_dim=5)
    layer, x = wrapped(conv), normal(30, IN)
    codes = torch.stack([torch.arange(TYPED.num_edges) % 4 - 1, torch.arange(TYPED.num_edges) % 2], 1).short()
    # The last row of the identity stands for -1, and its column is left out.
    first, second = torch.eye(4).double()[codes[:, 0].long()][:, :3], torch.eye(2).double()[codes[:, 1].long()]
    hot = torch.cat([first, second], 1)
    coded = replace(TYPED, edge_features=codes, feature_sizes=(3, 2))
    assert torch.equal(layer(coded.block, x, x), layer(replace(TYPED, edge_features=hot).block, x, x))


@pytest.mark.parametrize(
    ("make", "edge_dim", "found"),
    [
        (lambda: pyg.GATv2Conv(IN, OUT, add_self_loops=False, edge_dim=2), 3, "2 features of edges"),
        (lambda: pyg.SAGEConv(IN, OUT), 3, "accepts edge_attr"),
        (lambda: pyg.GATv2Conv(IN, OUT, add_self_loops=False), -1, "edge_dim"),
        (lambda: pyg.NNConv(IN, OUT, nn.Linear(EDGE_DIM, IN * OUT)), None, "edge_dim if it needs"),
    ],
)
def test_features_of_edges_that_cannot_be_passed_on(
    make: Callable[[], nn.Module], edge_dim: int | None, found: str
) -> None:
    with pytest.raises(InputError, match=found):
        PyGConv(make(), IN, OUT, edge_dim=edge_dim)
