"""PyG in its forms: an edge index, compiled or not, and a torch CSR matrix of the transposed adjacency."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from rivals.common import Arrays, Job, main, read_arrays, read_relation, read_relations, widths
from rivals.layers import Kind, drive, mlp, named_mlp
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv, GINConv, RGCNConv, SAGEConv
from torch_geometric.utils import to_torch_csr_tensor

KINDS = {
    "gcn": Kind(
        make=lambda given, wanted, heads: GCNConv(given, wanted, cached=True),
        named=lambda layer: {"weight": layer.lin.weight.T, "bias": layer.bias},
    ),
    "sage": Kind(
        make=lambda given, wanted, heads: SAGEConv(given, wanted, aggr="mean"),
        named=lambda layer: {
            "itself": layer.lin_r.weight.T,
            "neighbour": layer.lin_l.weight.T,
            "bias": layer.lin_l.bias,
        },
    ),
    "gin": Kind(
        make=lambda given, wanted, heads: GINConv(mlp(given, wanted), train_eps=True),
        named=lambda layer: {"eps": layer.eps, **named_mlp(layer.nn)},
    ),
    "gat": Kind(
        make=lambda given, wanted, heads: GATConv(given, wanted // heads, heads),
        named=lambda layer: {
            "weight": layer.lin.weight.T,
            "source": layer.att_src,
            "target": layer.att_dst,
            "bias": layer.bias,
        },
        activation=torch.nn.functional.elu,
    ),
}


def relational_kind(job: Job, conv: type[RGCNConv]) -> Kind:
    """PyG's R-GCN: by default a pass over the edges of each relation."""
    relations, bases = read_relations(job.folder)
    return Kind(
        make=lambda given, wanted, heads: conv(given, wanted, relations, num_bases=bases, aggr="mean"),
        named=lambda layer: {"basis": layer.weight, "share": layer.comp, "itself": layer.root, "bias": layer.bias},
    )


def _graph(job: Job, arrays: Arrays) -> Tensor:
    edge_index = torch.from_numpy(arrays.edge_index)
    if job.form != "csr":
        return edge_index
    csr: Tensor = to_torch_csr_tensor(edge_index.flip(0), size=(len(arrays.labels),) * 2)
    return csr


def work(job: Job) -> dict[str, Any]:
    """Train; see `rivals.common.main`."""
    arrays = read_arrays(job.folder)
    graph: tuple[Tensor, ...] = (_graph(job, arrays).to(job.device),)
    if job.model == "rgcn":
        graph += (torch.from_numpy(read_relation(job.folder)).to(job.device, torch.int64),)
    kind = relational_kind(job, RGCNConv) if job.model == "rgcn" else KINDS[job.model]
    form = cache(torch.compile) if job.form == "compiled" else lambda layer: layer
    return drive(job, kind, widths(job.folder), lambda layer, x: form(layer)(x, *graph), arrays)


if __name__ == "__main__":
    main(work, ("torch_geometric",))
