"""Train a model whose convolutions are those of PyTorch Geometric, on the whole graph and in mini-batches.

    pip install 'outgrow[pyg]'
    python examples/pyg_model.py

Any convolution of PyG that takes a bipartite pair (x_src, x_dst) can be wrapped unchanged, here GATv2. It then trains
by every strategy that does not cut columns or edges. What PyG makes inside, a row for each edge, it still makes: for
large graphs prefer a layer of og.nn, or mini-batches.
"""

from __future__ import annotations

import argparse

import outgrow as og
import torch
from torch.nn import functional
from torch_geometric.nn import GATv2Conv


def attention(in_features: int, out_features: int, heads: int) -> og.nn.PyGConv:
    """GATv2 with its heads side by side.

    PyG would add self-loops to every part of the graph that it sees; Outgrow adds them to the graph, once.
    """
    conv = GATv2Conv(in_features, out_features // heads, heads=heads, add_self_loops=False)
    return og.nn.PyGConv(conv, in_features, out_features, self_loops=True)


def build(graph: og.Graph, hidden: int) -> og.nn.Model:
    """Two layers of attention, behind a projection of the features.

    The features of WordNet are sparse, and PyG's convolutions take dense rows: so an encoder makes dense rows of them.
    """
    after = og.nn.Epilogue(norm=True, activation=functional.elu, dropout=0.3)
    layers = [
        og.nn.Layer(attention(hidden, hidden, heads=4), after),
        og.nn.Layer(attention(hidden, graph.num_classes, heads=1)),
    ]
    return og.nn.Model(layers, encoder=og.nn.LinearEncoder(graph.num_features, hidden, after))


def main() -> None:
    """Train on all nodes at once, then in mini-batches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="wordnet", help="a data set by name, a store or a graph file (wordnet)")
    parser.add_argument("--hidden", type=int, default=32, help="width of hidden rows, all heads together (32)")
    parser.add_argument("--epochs", type=int, default=15, help="epochs on the whole graph (15)")
    parser.add_argument("--batch-epochs", type=int, default=2, help="epochs of mini-batches (2)")
    options = parser.parse_args()
    graph = og.load(options.graph)

    ways = {
        "the whole graph": {"epochs": options.epochs},
        "mini-batches": {"epochs": options.batch_epochs, "batch_size": 1024, "fanout": (10, 10)},
    }
    for name, how in ways.items():
        torch.manual_seed(0)
        model = build(graph, options.hidden)
        run = og.train(graph, model, lr=0.01, **how)
        seconds = sum(run.epoch_seconds) / len(run.epoch_seconds)
        print(f"{name}: test accuracy {run.test_accuracy:.3f}, {seconds:.1f} s an epoch")


if __name__ == "__main__":
    main()
