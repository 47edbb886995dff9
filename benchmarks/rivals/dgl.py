"""DGL: `dgl.nn_device` layers on a graph whose sparse formats are made beforehand; 32-bit ids, DGL's faster form."""

from __future__ import annotations

from typing import Any

import dgl
import torch
from dgl import nn as layers
from rivals.common import Arrays, Job, main, read_arrays, widths
from rivals.layers import Kind, drive, mlp, named_mlp

KINDS = {
    "gcn": Kind(
        make=lambda given, wanted, heads: layers.GraphConv(given, wanted, norm="both", allow_zero_in_degree=True),
        named=lambda layer: {"weight": layer.weight, "bias": layer.bias},
    ),
    "sage": Kind(
        make=lambda given, wanted, heads: layers.SAGEConv(given, wanted, "mean"),
        named=lambda layer: {
            "itself": layer.fc_self.weight.T,
            "neighbour": layer.fc_neigh.weight.T,
            "bias": layer.fc_self.bias,
        },
    ),
    "gin": Kind(
        make=lambda given, wanted, heads: layers.GINConv(mlp(given, wanted), "sum", learn_eps=True),
        named=lambda layer: {"eps": layer.eps, **named_mlp(layer.apply_func)},
    ),
    "gat": Kind(
        make=lambda given, wanted, heads: layers.GATConv(given, wanted // heads, heads, allow_zero_in_degree=True),
        named=lambda layer: {
            "weight": layer.fc.weight.T,
            "source": layer.attn_l,
            "target": layer.attn_r,
            "bias": layer.bias,
        },
        activation=torch.nn.functional.elu,
    ),
}


def _graph(job: Job, arrays: Arrays) -> Any:
    ids = torch.int64 if job.form == "int64" else torch.int32
    indptr, indices = torch.from_numpy(arrays.indptr).to(ids), torch.from_numpy(arrays.indices).to(ids)
    graph = dgl.graph(("csc", (indptr, indices, [])), num_nodes=len(arrays.labels))
    if job.model in ("gcn", "gat"):
        graph = dgl.add_self_loop(dgl.remove_self_loop(graph))
    graph.create_formats_()
    return graph


def work(job: Job) -> dict[str, Any]:
    """Train; see `rivals.common.main`."""
    arrays = read_arrays(job.folder)
    graph = _graph(job, arrays)
    return drive(job, KINDS[job.model], widths(job.folder), lambda layer, x: layer(graph, x).flatten(1), arrays)


if __name__ == "__main__":
    main(work, ("dgl",))
