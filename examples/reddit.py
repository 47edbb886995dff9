"""Keep a model of PyG and a loop in torch: batches come from og.NeighborLoader in place of PyG's NeighborLoader.

    pip install 'outgrow[pyg]'
    python examples/reddit.py

The workload of PyG's examples/reddit.py: two SAGEConv, trained on sampled neighbourhoods, and evaluated layer by layer
on all edges. By default the graph is generated, with the statistics of ogbn-products at 1/50 of its size; a store of a
graph that is larger than memory does as well.
"""

from __future__ import annotations

import argparse

import outgrow as og
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.nn import SAGEConv


class SAGE(torch.nn.Module):
    """Two layers of GraphSAGE."""

    def __init__(self, in_features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(in_features, hidden), SAGEConv(hidden, classes)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of the nodes of a batch, of which those of its seeds are right."""
        x = functional.dropout(self.convs[0](x, edge_index).relu(), 0.5, self.training)
        return self.convs[1](x, edge_index)

    @torch.no_grad()
    def inference(self, x: Tensor, loader: og.NeighborLoader) -> Tensor:
        """Logits of all nodes: each layer of all nodes before the next, so that no row is computed twice."""
        for conv in self.convs:
            rows = [conv(x[batch.n_id], batch.edge_index)[: batch.batch_size] for batch in loader]
            x = torch.cat(rows).relu() if conv is self.convs[0] else torch.cat(rows)
        return x


def main() -> None:
    """Train and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="products@0.02", help="a data set, a store or a graph file (products@0.02)")
    parser.add_argument("--hidden", type=int, default=64, help="width of the hidden layer (64)")
    parser.add_argument("--epochs", type=int, default=10, help="epochs to train (10)")
    parser.add_argument("--batch-size", type=int, default=256, help="nodes of a mini-batch (256)")
    options = parser.parse_args()
    graph = og.load(options.graph)
    train_loader = og.NeighborLoader(graph, "train", options.batch_size, num_neighbors=[25, 10])
    all_nodes = og.NeighborLoader(graph, None, 1024, num_neighbors=[-1], shuffle=False, features=False)

    torch.manual_seed(0)
    model = SAGE(graph.num_features, options.hidden, graph.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, options.epochs + 1):
        model.train()
        total = 0.0
        for batch in train_loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.batch_size
        model.eval()
        right = model.inference(torch.as_tensor(graph.features), all_nodes).argmax(1) == graph.labels
        val, test = (float(right[nodes].float().mean()) for nodes in (graph.split.val, graph.split.test))
        loss_mean = total / len(train_loader.seeds)
        print(f"epoch {epoch:02d}, loss: {loss_mean:.4f}, val accuracy: {val:.3f}, test accuracy: {test:.3f}")


if __name__ == "__main__":
    main()
