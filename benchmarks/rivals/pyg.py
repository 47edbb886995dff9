"""PyG in its two forms: an edge index, and a torch CSR matrix of the transposed adjacency."""

from __future__ import annotations

from typing import Any

import torch
from rivals.common import HEADS, Arrays, Job, fill, main, read_arrays, start_values, train, widths
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv
from torch_geometric.utils import to_torch_csr_tensor


def _graph(job: Job, arrays: Arrays) -> Tensor:
    edge_index = torch.from_numpy(arrays.edge_index)
    if job.form == "edge_index":
        return edge_index
    return to_torch_csr_tensor(edge_index.flip(0), size=(len(arrays.labels),) * 2)


def _mlp(given: int, wanted: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(given, wanted), nn.ReLU(), nn.Linear(wanted, wanted))


class _Model(nn.Module):
    def __init__(self, model: str, sizes: tuple[int, int, int]) -> None:
        super().__init__()
        self.model = model
        make = {"gcn": self._gcn, "sage": self._sage, "gin": self._gin, "gat": self._gat}[model]
        self.layers = nn.ModuleList([make(*sizes[:2], HEADS), make(*sizes[1:], 1)])

    @staticmethod
    def _gcn(given: int, wanted: int, heads: int) -> nn.Module:
        return GCNConv(given, wanted, cached=True)

    @staticmethod
    def _sage(given: int, wanted: int, heads: int) -> nn.Module:
        return SAGEConv(given, wanted, aggr="mean")

    @staticmethod
    def _gin(given: int, wanted: int, heads: int) -> nn.Module:
        return GINConv(_mlp(given, wanted), train_eps=True)

    @staticmethod
    def _gat(given: int, wanted: int, heads: int) -> nn.Module:
        return GATConv(given, wanted // heads, heads)

    def forward(self, graph: Tensor, x: Tensor) -> Tensor:
        h = self.layers[0](x, graph)
        h = torch.nn.functional.elu(h) if self.model == "gat" else torch.relu(h)
        logits: Tensor = self.layers[1](h, graph)
        return logits


def _named(model: str, layer: Any) -> dict[str, Tensor]:
    """Parameters of a layer by their common names, as views of ``[in, out]``."""
    if model == "gcn":
        return {"weight": layer.lin.weight.T, "bias": layer.bias}
    if model == "sage":
        return {"itself": layer.lin_r.weight.T, "neighbour": layer.lin_l.weight.T, "bias": layer.lin_l.bias}
    if model == "gin":
        first, _, second = layer.nn
        return {
            "eps": layer.eps,
            "first": first.weight.T,
            "first_bias": first.bias,
            "second": second.weight.T,
            "second_bias": second.bias,
        }
    return {"weight": layer.lin.weight.T, "source": layer.att_src, "target": layer.att_dst, "bias": layer.bias}


def work(job: Job) -> dict[str, Any]:
    """Train; see `rivals.common.main`."""
    arrays = read_arrays(job.folder)
    graph, x = _graph(job, arrays), torch.from_numpy(arrays.features)
    model = _Model(job.model, widths(job.folder))
    parameters = {
        f"{i}.{name}": value for i, layer in enumerate(model.layers) for name, value in _named(job.model, layer).items()
    }
    fill(parameters, start_values(job))
    return train(job, model, lambda: model(graph, x), arrays)


if __name__ == "__main__":
    main(work, ("torch_geometric",))
