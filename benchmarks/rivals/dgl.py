"""DGL: `dgl.nn_device` layers on a graph whose sparse formats are made beforehand; 32-bit ids, DGL's faster form."""

from __future__ import annotations

from typing import Any

import dgl
import torch
from dgl import nn as layers
from rivals.common import Arrays, Job, main, read_arrays, read_relation, read_relations, widths
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


def _relational(job: Job) -> Kind:
    relations, bases = read_relations(job.folder)
    return Kind(
        make=lambda given, wanted, heads: layers.RelGraphConv(given, wanted, relations, "basis", bases),
        named=lambda layer: {
            "basis": layer.linear_r.W,
            "share": layer.linear_r.coeff,
            "itself": layer.loop_weight,
            "bias": layer.h_bias,
        },
    )


def _relations(job: Job, arrays: Arrays) -> tuple[torch.Tensor, torch.Tensor]:
    """Relation of each edge, ``[E]``, and one over the edges of the same destination and relation, ``[E, 1]``."""
    relation = torch.from_numpy(read_relation(job.folder)).to(torch.int64)
    pair = torch.from_numpy(arrays.edge_index[1]) * read_relations(job.folder).relations + relation
    _, place, counts = torch.unique(pair, return_inverse=True, return_counts=True)
    return relation, (1.0 / counts)[place][:, None]


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
    sizes = widths(job.folder)
    if job.model == "rgcn":
        relation, mean = _relations(job, arrays)
        return drive(job, _relational(job), sizes, lambda layer, x: layer(graph, x, relation, mean), arrays)
    return drive(job, KINDS[job.model], sizes, lambda layer, x: layer(graph, x).flatten(1), arrays)


if __name__ == "__main__":
    main(work, ("dgl",))
