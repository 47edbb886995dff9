"""PyG's relational layers: `RGCNConv`, a pass per relation, and `FastRGCNConv`, a weight matrix per edge."""

from __future__ import annotations

from typing import Any

import torch
from rivals.common import Job, main, read_arrays, read_relation
from rivals.layers import drive
from rivals.pyg import relational_kind
from rivals.wordnet import RAW, read_facts, read_raw
from torch_geometric.nn import FastRGCNConv, RGCNConv

LAYERS = {"rgcn": RGCNConv, "fast": FastRGCNConv}


def work(job: Job) -> dict[str, Any]:
    """Train; see `rivals.common.main`."""
    facts, arrays = read_facts(job), read_arrays(job.folder)
    if job.model == RAW:
        arrays = arrays._replace(features=read_raw(job.folder).dense())
    edge_index = torch.from_numpy(arrays.edge_index)
    edge_type = torch.from_numpy(read_relation(job.folder)).to(torch.int64)
    kind = relational_kind(job, LAYERS[job.form])
    return drive(job, kind, facts.widths, lambda conv, x: conv(x, edge_index, edge_type), arrays)


if __name__ == "__main__":
    main(work, ("torch_geometric",))
