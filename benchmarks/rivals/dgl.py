"""DGL: `dgl.nn` layers on a graph whose sparse formats are made beforehand; 32-bit ids, DGL's faster form."""

from __future__ import annotations

from typing import Any

import dgl
import torch
from dgl import nn as layers
from rivals.common import HEADS, Arrays, Job, fill, main, read_arrays, start_values, train, widths
from torch import Tensor, nn


def _graph(job: Job, arrays: Arrays) -> Any:
    ids = torch.int64 if job.form == "int64" else torch.int32
    indptr, indices = torch.from_numpy(arrays.indptr).to(ids), torch.from_numpy(arrays.indices).to(ids)
    graph = dgl.graph(("csc", (indptr, indices, [])), num_nodes=len(arrays.labels))
    if job.model in ("gcn", "gat"):
        graph = dgl.add_self_loop(dgl.remove_self_loop(graph))
    graph.create_formats_()
    return graph


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
        return layers.GraphConv(given, wanted, norm="both", allow_zero_in_degree=True)

    @staticmethod
    def _sage(given: int, wanted: int, heads: int) -> nn.Module:
        return layers.SAGEConv(given, wanted, "mean")

    @staticmethod
    def _gin(given: int, wanted: int, heads: int) -> nn.Module:
        return layers.GINConv(_mlp(given, wanted), "sum", learn_eps=True)

    @staticmethod
    def _gat(given: int, wanted: int, heads: int) -> nn.Module:
        return layers.GATConv(given, wanted // heads, heads, allow_zero_in_degree=True)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        h = self.layers[0](graph, x)
        h = torch.nn.functional.elu(h.flatten(1)) if self.model == "gat" else torch.relu(h)
        return self.layers[1](graph, h).flatten(1)


def _named(model: str, layer: Any) -> dict[str, Tensor]:
    """Parameters of a layer by their common names, as views of ``[in, out]``."""
    if model == "gcn":
        return {"weight": layer.weight, "bias": layer.bias}
    if model == "sage":
        return {
            "itself": layer.fc_self.weight.T,
            "neighbour": layer.fc_neigh.weight.T,
            "bias": layer.fc_self.bias,
        }
    if model == "gin":
        first, _, second = layer.apply_func
        return {
            "eps": layer.eps,
            "first": first.weight.T,
            "first_bias": first.bias,
            "second": second.weight.T,
            "second_bias": second.bias,
        }
    return {"weight": layer.fc.weight.T, "source": layer.attn_l, "target": layer.attn_r, "bias": layer.bias}


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
    main(work, ("dgl",))
