"""A deep residual network that reads features of edges, in mini-batches or on the whole graph.

    python examples/ogbn_proteins_deepgcn.py                              # a generated graph
    python examples/ogbn_proteins_deepgcn.py --graph my.store --strategy offload

The workload of PyG's examples/ogbn_proteins_deepgcn.py (Li et al., DeeperGCN, 2020): nodes without features get the sum
of those of their in-edges; layers are norm, ReLU, a convolution that reads features of edges and a residual. Messages
are those of GENConv, ``relu(x_u + e_uv U)``, summed as GINE does instead of by a softmax. The generated graph is
``edge-signal-12``, whose labels hang on features of edges: layers that do not read them are right in a quarter of all
cases.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import outgrow as og
import torch


def main() -> None:
    """Train, and score the model of the best epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="edge-signal-12", help="a data set by name, a store or a graph file")
    parser.add_argument("--strategy", default="full", help="how to train (full)")
    parser.add_argument("--layers", type=int, default=8, help="number of convolutions (8)")
    parser.add_argument("--hidden", type=int, default=64, help="width of the layers (64)")
    parser.add_argument("--epochs", type=int, default=100, help="epochs to train (100)")
    options = parser.parse_args()
    graph, hidden = og.load(options.graph), options.hidden
    if graph.features is None:
        features = torch.as_tensor(graph.edge_features).float()
        sums = torch.zeros(graph.num_nodes, features.shape[1]).index_add_(0, graph.edge_index[1], features)
        graph = replace(graph, features=sums)

    torch.manual_seed(0)
    encoder = og.nn.LinearEncoder(graph.num_features, hidden)
    inner = og.nn.Epilogue(norm=True, activation=torch.relu, residual=True, dropout=0.1)
    convs = [og.nn.GINEConv(hidden, hidden, graph.num_edge_features) for _ in range(options.layers)]
    layers = [og.nn.Layer(conv, inner) for conv in convs]
    model = og.nn.Model([*layers, og.nn.Layer(og.nn.SAGEConv(hidden, graph.num_classes))], encoder=encoder)

    run = og.train(graph, model, strategy=options.strategy, epochs=options.epochs, lr=0.01, patience=None)
    print(f"loss: {run.loss[0]:.3f} after the first epoch, {run.loss[-1]:.3f} after the last")
    print(f"val score: {run.val_accuracy:.3f}, test score: {run.test_accuracy:.3f}")


if __name__ == "__main__":
    main()
