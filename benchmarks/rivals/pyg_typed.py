"""PyG's typed models as its examples build them: `to_hetero(SAGE)`, `HGTConv`, and `GATv2Conv` with features of edges.

Forms: ``edge-index``, edges sorted by destination; ``sparse``, transposed adjacency matrices of torch in compressed
rows, which `SAGEConv` multiplies by without a row for each edge. `HGTConv` and `GATv2Conv` take the first only:
torch_sparse and pyg_lib, whose matrices and products they could use too, were not there. ``start`` trains nothing: it
writes down the parameters that all rivals start from.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rivals.common import Arrays, Job, main, train
from rivals.typed_data import HEADS, Facts, TypedArrays, graph_folder, read_facts, read_typed, start_file
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, HGTConv, Linear, SAGEConv, to_hetero

SPARSE, START = "sparse", "start"


class SAGE(nn.Module):
    """Two layers, as in PyG's examples/hetero/to_hetero_mag.py."""

    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        self.conv1 = SAGEConv((-1, -1), hidden)
        self.conv2 = SAGEConv((-1, -1), classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return ``[V, C]``."""
        x = self.conv1(x, edge_index).relu()
        out: Tensor = self.conv2(x, edge_index)
        return out


class HGT(nn.Module):
    """An input projection for each type, two layers and a linear map, as in PyG's examples/hetero/hgt_dblp.py."""

    def __init__(self, facts: Facts, target: str) -> None:
        super().__init__()
        metadata = (facts.names, [tuple(each) for each in facts.edge_types])
        self.target = target
        self.lin_dict = nn.ModuleDict({name: Linear(-1, facts.hidden) for name in facts.names})
        self.convs = nn.ModuleList(HGTConv(facts.hidden, facts.hidden, metadata, HEADS) for _ in range(2))
        self.lin = Linear(facts.hidden, facts.classes)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        """Return ``[n, C]`` of the target type."""
        x_dict = {name: self.lin_dict[name](x).relu() for name, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        out: Tensor = self.lin(x_dict[self.target])
        return out


class GATv2(nn.Module):
    """Two layers over all nodes, whose scores read the features of edges."""

    def __init__(self, columns: int, facts: Facts) -> None:
        super().__init__()
        options = {"edge_dim": facts.edge_features, "add_self_loops": False}
        self.conv1 = GATv2Conv(columns, facts.hidden // HEADS, heads=HEADS, **options)
        self.conv2 = GATv2Conv(facts.hidden, facts.classes, heads=1, **options)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Return ``[V, C]``."""
        out: Tensor = self.conv2(self.conv1(x, edge_index, edge_attr).relu(), edge_index, edge_attr)
        return out


def target_type(facts: Facts, arrays: TypedArrays) -> str:
    """The type of the nodes of the loss."""
    at = int(np.searchsorted(facts.borders, arrays.train[0], side="right")) - 1
    return facts.names[at]


def make_module(facts: Facts, model: str, target: str) -> nn.Module:
    """A model, whose lazy parameters have no shape yet."""
    if model == "sage":
        metadata = (facts.names, [tuple(each) for each in facts.edge_types])
        with warnings.catch_warnings():
            # Types that no edge leads to are not updated, which PyG warns of.
            warnings.simplefilter("ignore")
            hetero: nn.Module = to_hetero(SAGE(facts.hidden, facts.classes), metadata, aggr="sum")
            return hetero
    return HGT(facts, target) if model == "hgt" else GATv2(facts.columns[-1], facts)


def make_inputs(facts: Facts, arrays: TypedArrays, model: str, form: str) -> tuple[Any, ...]:
    """What a model is called with."""
    dense = torch.from_numpy(arrays.dense_features(facts.columns[-1]))
    src, dst = torch.from_numpy(arrays.indices.astype(np.int64)), torch.from_numpy(arrays.targets)
    if model == "gatv2":
        return dense, torch.stack([src, dst]), torch.from_numpy(arrays.edge_features)
    x_dict = {name: dense[facts.type_nodes(name), facts.type_columns(name)].contiguous() for name in facts.names}
    relation = torch.from_numpy(arrays.relation)
    edges: dict[Any, Tensor] = {}
    for number, (source, name, end) in enumerate(facts.edge_types):
        mine = relation == number
        ends = (src[mine] - facts.type_nodes(source).start, dst[mine] - facts.type_nodes(end).start)
        shape = (len(x_dict[end]), len(x_dict[source]))
        edges[source, name, end] = _adjacency(*ends, shape) if form == SPARSE else torch.stack(ends)
    return x_dict, edges


def start(job: Job, model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Set the parameters to what all rivals start from; if that is not written down yet, draw it and write it."""
    with torch.no_grad():
        # Lazy parameters get their shapes from an input without edges.
        model(*_without_edges(inputs))
    file = start_file(job)
    if not file.exists():
        torch.manual_seed(0)
        # The priors of relations and the shares of residuals of HGT are 1, as they are in its layers.
        fixed = ("skip", "p_rel")
        drawn = {
            name: value.detach() if any(part in name.split(".") for part in fixed) else _draw(value)
            for name, value in model.named_parameters()
        }
        np.savez(file, **{name: value.numpy() for name, value in drawn.items()})
    with np.load(file) as values, torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.from_numpy(values[name]))


def _draw(like: Tensor) -> Tensor:
    # By both sides, as Glorot; a vector as if it had as many columns as rows.
    return torch.randn(like.shape) * (2 / (like.shape[0] + like.shape[-1])) ** 0.5


def _without_edges(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    none = torch.empty(2, 0, dtype=torch.int64)
    if isinstance(inputs[1], dict):
        return inputs[0], dict.fromkeys(inputs[1], none)
    return inputs[0], none, inputs[2][:0]


def work(job: Job) -> dict[str, Any]:
    """Train; see `rivals.common.main`."""
    facts = read_facts(graph_folder(job))
    name = job.model.partition(":")[2]
    arrays = read_typed(graph_folder(job), edge_features=name == "gatv2")
    target = target_type(facts, arrays)
    model = make_module(facts, name, target)
    inputs = make_inputs(facts, arrays, name, job.form)
    first = 0 if name == "gatv2" else facts.type_nodes(target).start
    start(job, model, inputs)
    if job.form == START:
        return {}
    calls: dict[str, Callable[[], Tensor]] = {
        "sage": lambda: model(*inputs)[target],
        "hgt": lambda: model(*inputs),
        "gatv2": lambda: model(*inputs),
    }
    nodes = Arrays(arrays.indptr, arrays.indices, arrays.feature_values, arrays.labels[first:], arrays.train - first)
    # The copies that are not read any more would count as memory.
    del arrays
    return train(job, model, calls[name], nodes)


def _adjacency(src: Tensor, dst: Tensor, shape: tuple[int, int]) -> Tensor:
    """The transposed adjacency matrix of edges that are sorted by destination."""
    counts = torch.bincount(dst, minlength=shape[0])
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compressed rows of torch are in beta state
        return torch.sparse_csr_tensor(indptr, src, torch.ones(len(src)), size=shape)


if __name__ == "__main__":
    main(work, ("torch_geometric",))
