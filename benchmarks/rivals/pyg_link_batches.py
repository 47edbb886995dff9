"""PyG's `LinkNeighborLoader`, `RGCNConv` or `FastRGCNConv` and DistMult, in the environment of PyG.

python -m rivals.pyg_link_batches JSON     (in benchmarks/)

Forms are such as ``fast-0``: the layer, and processes that sample beside this one.
"""

from __future__ import annotations

import torch
from rivals.link_batches import DistMult, Task, train
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader
from torch_geometric.nn import FastRGCNConv, RGCNConv

LAYERS = {"rgcn": RGCNConv, "fast": FastRGCNConv}


def main() -> None:
    """Train."""
    task = Task.read()
    facts, (layer, workers) = task.facts, task.form.split("-")
    edge_index, relation = task.edge_index, task.array("relation").long()
    data = Data(x=task.array("features"), edge_index=edge_index, edge_type=relation)
    loader = LinkNeighborLoader(
        data,
        num_neighbors=task.fanout,
        edge_label_index=edge_index,
        # From 1, since the loader tells negatives by a label of 0.
        edge_label=relation + 1,
        neg_sampling={"mode": "binary", "amount": 1.0},
        batch_size=task.batch_size,
        shuffle=True,
        num_workers=int(workers),
        persistent_workers=int(workers) > 0,
    )
    make = LAYERS[layer]
    layers = nn.ModuleList(
        make(given, facts["hidden"], facts["relations"], num_bases=facts["bases"], aggr="mean")
        for given in (facts["inputs"], facts["hidden"])
    )
    decoder = DistMult(facts["hidden"], facts["relations"])

    def loss_of(batch: Data) -> tuple[torch.Tensor, int]:
        x = batch.x
        for number, each in enumerate(layers):
            x = each(x.relu() if number else x, batch.edge_index, batch.edge_type)
        heads, tails = batch.edge_label_index
        truth = (batch.edge_label > 0).float()
        links = int(truth.sum())
        # Negatives have the relations of the links, which come first.
        kinds = (batch.edge_label[:links] - 1).repeat(2)
        return decoder.loss(x[heads], x[tails], kinds, truth), links

    train(task, [*layers.parameters(), *decoder.parameters()], lambda: loader, loss_of)


if __name__ == "__main__":
    main()
