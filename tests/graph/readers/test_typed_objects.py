"""Shapes of HeteroData against PyG's own ``to_homogeneous``, or against the same data with all said explicitly."""

import numpy as np
import pytest
import torch

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning

pytest.importorskip("torch_geometric")

from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.transforms import ToSparseTensor, ToUndirected

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:Sparse invariant checks")
PAPERS, AUTHORS, VENUES = 7, 5, 3


def make_data(seed=0, *, widths=(4, 4), venues=True):
    draws = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["paper"].x = torch.randn(PAPERS, widths[0], generator=draws)
    data["author"].x = torch.randn(AUTHORS, widths[1], generator=draws)
    data["paper"].y = torch.tensor([2, 0, 1, 2, 1, 0, 2])
    data["paper"].train_mask = torch.arange(PAPERS) < 3
    data["paper"].val_mask = torch.arange(PAPERS) == 4
    data["author", "writes", "paper"].edge_index = draw_edges(AUTHORS, PAPERS, 9, draws)
    data["paper", "cites", "paper"].edge_index = draw_edges(PAPERS, PAPERS, 8, draws)
    if venues:
        data["venue"].num_nodes = VENUES
        data["paper", "in", "venue"].edge_index = draw_edges(PAPERS, VENUES, 6, draws)
    return data


def draw_edges(src, dst, count, draws):
    ends = torch.stack([torch.randint(size, (count,), generator=draws) for size in (src, dst)])
    ends[:, 0] = torch.tensor([src - 1, dst - 1])
    return torch.unique(ends, dim=1)


def edges_of(graph):
    topology = graph.topology
    rows = [*graph.edge_index.tolist()]
    rows.append([0] * graph.num_edges if topology.relation is None else topology.relation.tolist())
    rows.append([1.0] * graph.num_edges if topology.weight is None else topology.weight.tolist())
    return sorted(zip(*rows, strict=True))


def dense(graph):
    rows = graph.features
    return (rows if isinstance(rows, torch.Tensor) else rows.to_dense()).numpy()


def assert_like_pyg(graph, data):
    """The edges and types of ``to_homogeneous``, which offsets the types in the order of ``node_types``."""
    whole = data.to_homogeneous(node_attrs=[], edge_attrs=[])
    rows = torch.cat([whole.edge_index, whole.edge_type[None]]).T.tolist()
    assert [edge[:3] for edge in edges_of(graph)] == sorted(map(tuple, rows))
    assert graph.num_nodes == whole.num_nodes
    sizes = torch.bincount(whole.node_type, minlength=len(data.node_types)).tolist()
    counts = [(kind.name, kind.last - kind.first) for kind in graph.node_types]
    assert counts == [*zip(data.node_types, sizes, strict=True)]
    assert graph.relation_names == tuple("__".join(kind) for kind in data.edge_types)


def assert_same(graph, other):
    assert edges_of(graph) == edges_of(other)
    assert np.array_equal(dense(graph), dense(other))
    assert (graph.node_types, graph.relation_names) == (other.node_types, other.relation_names)
    assert np.array_equal(graph.labels, other.labels)
    for part in ("train", "val", "test"):
        assert torch.equal(getattr(graph.split, part), getattr(other.split, part))


def reversed_types(data):
    made = HeteroData()
    for name in reversed(data.node_types):
        for key, value in data[name].items():
            made[name][key] = value
    for kind in reversed(data.edge_types):
        made[kind].edge_index = data[kind].edge_index
    return made


def with_empty_types(data):
    data["shop"].num_nodes = 0
    data["paper", "sold_in", "shop"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    return data


def with_isolated_type(data):
    data["alone"].x = torch.zeros(2, 4)
    return data


def with_parallel_edges(data):
    index = data["author", "writes", "paper"].edge_index
    data["author", "writes", "paper"].edge_index = torch.cat([index, index[:, :3]], 1)
    return data


LIKE_PYG = {
    "widths agree": lambda: make_data(venues=False),
    "widths differ": lambda: make_data(widths=(4, 2)),
    "no features": make_data,
    "types in another order": lambda: reversed_types(make_data()),
    "reverse edges": lambda: ToUndirected()(make_data()),
    "empty types": lambda: with_empty_types(make_data()),
    "a type without edges": lambda: with_isolated_type(make_data(venues=False)),
    "parallel edges": lambda: with_parallel_edges(make_data()),
}


@pytest.mark.parametrize("shape", LIKE_PYG)
def test_edges_and_types_are_those_of_pyg(shape):
    data = LIKE_PYG[shape]()
    graph = og.load(data)
    assert_like_pyg(graph, data)
    paper = next(kind for kind in graph.node_types if kind.name == "paper")
    assert graph.labels[paper.first : paper.last].tolist() == data["paper"].y.tolist()
    assert (graph.labels[: paper.first] == -1).all()
    assert (graph.split.train - paper.first).tolist() == [0, 1, 2]
    assert (graph.split.val - paper.first).tolist() == [4]


def without_count(data):
    del data["venue"].num_nodes
    data["venue"].kind = "journal"
    return data


def named_by_edges_only(data):
    made = make_data(venues=False)
    made["paper", "in", "venue"].edge_index = data["paper", "in", "venue"].edge_index
    return made


def sparse_features(layout):
    def change(data):
        data["paper"].x = data["paper"].x.to_sparse(layout=layout)
        return data

    return change


def as_adjacency(data):
    return ToSparseTensor(layout=torch.sparse_csr, remove_edge_index=True)(data)


def rectangular_edge_index(data):
    kind = ("author", "writes", "paper")
    data[kind].edge_index = torch.sparse_coo_tensor(
        data[kind].edge_index, torch.ones(data[kind].num_edges), (AUTHORS, PAPERS)
    )
    return data


def labels_by_index(data):
    at = torch.tensor([4, 0, 1, 2, 3, 6, 5])
    data["paper"].y_index, data["paper"].y = at, data["paper"].y[at]
    return data


def index_split(data):
    for part in ("train", "val"):
        data["paper"][f"{part}_idx"] = data["paper"][f"{part}_mask"].nonzero().view(-1)
        del data["paper"][f"{part}_mask"]
    return data


EXPLICIT = {
    "a type without a count": without_count,
    "a type that only edges name": named_by_edges_only,
    "features in COO": sparse_features(torch.sparse_coo),
    "features in CSR": sparse_features(torch.sparse_csr),
    "adj_t": as_adjacency,
    "a matrix whose shape tells its direction": rectangular_edge_index,
    "labels of some nodes": labels_by_index,
    "a split of ids": index_split,
}


@pytest.mark.filterwarnings("ignore::outgrow.core.user_warnings.DataWarning")
@pytest.mark.parametrize("shape", EXPLICIT)
def test_other_forms_are_the_same_graph(shape):
    assert_same(og.load(EXPLICIT[shape](make_data())), og.load(make_data()))


@pytest.mark.parametrize("labels", [[0, 2, 1, 0, -1], [0, 1, 1, 0, 0]])
def test_classes_of_several_types_that_have_no_names_are_of_each_type(labels):
    """Also where they are equally many: numbers do not tell that they mean the same."""
    data = make_data()
    data["author"].y = torch.tensor(labels)
    data["author"].test_mask = torch.tensor([True, True, False, False, False])
    graph = og.load(data)
    assert graph.labels is None
    assert {each.name: each.num_classes for each in graph.type_labels} == {"paper": 3, "author": max(labels) + 1}
    assert graph.type_labels[1].labels.tolist() == labels
    assert graph.split.test.tolist() == [PAPERS, PAPERS + 1]
    assert graph.num_classes == 3 + max(labels) + 1


def test_several_labels_a_node_of_one_type():
    data = make_data()
    data["paper"].y = torch.randint(2, (PAPERS, 6), generator=torch.Generator().manual_seed(0))
    graph = og.load(data)
    assert (graph.multi_label, graph.num_classes) == (True, 6)
    assert torch.equal(graph.labels[:PAPERS].long(), data["paper"].y)
    assert not graph.labels[PAPERS:].any()
    data["paper"].y = torch.rand(PAPERS)
    graph = og.load(data)
    assert graph.has_targets
    assert torch.equal(graph.labels[:PAPERS], data["paper"].y)
    assert graph.labels[PAPERS:].isnan().all()


def test_weights_of_some_edge_types():
    data = make_data()
    kind = ("author", "writes", "paper")
    data[kind].edge_weight = torch.rand(data[kind].num_edges, 1)
    with pytest.warns(DataWarning, match="those of paper__cites__paper, paper__in__venue get weight 1"):
        graph = og.load(data)
    weights = {edge[2]: [] for edge in edges_of(graph)}
    for *_, relation, weight in edges_of(graph):
        weights[relation].append(weight)
    assert sorted(weights[0]) == sorted(data[kind].edge_weight.view(-1).tolist())
    assert set(weights[1]) == set(weights[2]) == {1.0}


def test_masks_of_several_splits():
    data = make_data()
    data["paper"].train_mask = torch.stack([torch.arange(PAPERS) == 0, torch.arange(PAPERS) == 1], 1)
    data["paper"].val_mask = torch.stack([torch.arange(PAPERS) == 2, torch.arange(PAPERS) == 3], 1)
    graph = og.load(data)
    assert [split.train.tolist() for split in graph.splits] == [[0], [1]]
    assert og.load(data, split_index=1).split.val.tolist() == [3]
    data["author"].train_mask = torch.zeros(AUTHORS, 3, dtype=torch.bool)
    with pytest.raises(InputError, match="the masks cannot be used"):
        og.load(data)


def test_half_precision_of_several_widths():
    data = make_data(widths=(4, 2))
    for name in ("paper", "author"):
        data[name].x = data[name].x.half()
    assert np.array_equal(dense(og.load(data))[:PAPERS, :4], data["paper"].x.float().numpy())


def test_edges_as_matrices_of_one_type():
    edge_index = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 3]])
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0])
    plain = Data(x=torch.rand(4, 2), edge_index=edge_index, edge_weight=weight)
    graph = og.load(ToSparseTensor(attr="edge_weight", layout=torch.sparse_csr)(plain.clone()))
    assert edges_of(graph) == edges_of(og.load(plain))
    both = torch.cat([edge_index, edge_index.flip(0)], 1)
    symmetric = torch.sparse_coo_tensor(both, torch.ones(8), (4, 4))
    assert edges_of(og.load(Data(x=plain.x, edge_index=symmetric))) == edges_of(
        og.load(Data(x=plain.x, edge_index=both))
    )
    for layout in (torch.sparse_coo, torch.sparse_csr):
        directed = torch.sparse_coo_tensor(edge_index, weight, (4, 4)).to_sparse(layout=layout)
        with pytest.raises(InputError, match="edge_index cannot be used") as refused:
            og.load(Data(x=plain.x, edge_index=directed))
        assert "adj_t" in refused.value.repair
    with pytest.raises(InputError, match="edge_type beside a sparse matrix"):
        og.load(Data(x=plain.x, adj_t=symmetric, edge_type=torch.zeros(8, dtype=torch.long)))


class Fake(InMemoryDataset):
    name = "mine"

    def __init__(self, graphs, split=None):
        super().__init__(None)
        self.data, self.slices = self.collate(graphs)
        self.split = split
        if split is None:
            self.get_idx_split = None
            del self.get_idx_split

    def get_idx_split(self):
        return self.split


def test_data_sets_and_lists_of_one():
    plain = Data(x=torch.rand(3, 2), y=torch.tensor([0, 1, 1]), edge_index=torch.tensor([[0, 1], [1, 2]]))
    split = {"train": torch.tensor([0]), "valid": torch.tensor([2]), "test": torch.tensor([1])}
    made = og.load(Fake([plain], split))
    assert (made.name, made.split.val.tolist(), made.num_edges) == ("mine", [2], 2)
    assert og.load([plain]).num_nodes == og.load(([plain],)).num_nodes == 3
    for several in (Fake([plain, plain], split), [plain, plain], []):
        with pytest.raises(InputError, match=r"holds [02] graphs"):
            og.load(several)
    with pytest.raises(InputError, match="does not take these options"):
        og.load(plain, label="kind")


def test_triples_of_entities():
    edge_index = torch.tensor([[0, 1], [1, 2]])
    given = Data(edge_index=edge_index, edge_type=torch.tensor([0, 1]), num_nodes=4)
    given.train_idx, given.train_y = torch.tensor([3, 0]), torch.tensor([1, 0])
    given.test_idx, given.test_y = torch.tensor([2]), torch.tensor([1])
    made = og.load(given)
    assert made.labels.tolist() == [0, -1, 1, 1]
    assert (made.split.train.tolist(), made.split.test.tolist()) == ([0, 3], [2])


def test_inverse_relations_of_an_object():
    graph = og.load(make_data(venues=False), inverse_relations=True)
    assert graph.relation_names[2:] == ("author__writes__paper^-1", "paper__cites__paper^-1")
    assert graph.num_edges == 2 * og.load(make_data(venues=False)).num_edges
