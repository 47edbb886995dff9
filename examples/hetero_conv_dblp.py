"""A convolution of its own for each edge type: `HeteroConv` of SAGE, on the whole graph.

    python examples/hetero_conv_dblp.py                                     # a generated graph
    python examples/hetero_conv_dblp.py --graph heco-acm --data-dir DATA    # papers, authors and subjects of ACM

The workload of PyG's examples/hetero/hetero_conv_dblp.py. Types with features are projected first; all nodes of a type
without features get one learned row, as a single constant feature gives them there.
"""

from __future__ import annotations

import argparse

import outgrow as og
import torch
from torch.nn.functional import leaky_relu


def main() -> None:
    """Train, and score the model of the best epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="ogbn-mag@0.01", help="a data set by name, a store or a graph file")
    parser.add_argument("--data-dir", help="folder to look in first for the files of a data set")
    parser.add_argument("--strategy", default="full", help="how to train (full)")
    parser.add_argument("--epochs", type=int, default=100, help="epochs to train (100)")
    options = parser.parse_args()
    graph, hidden = og.load(options.graph, data_dir=options.data_dir), 64

    torch.manual_seed(0)
    spans = {name: graph.types.type_columns(name) for name in graph.types.names}
    widths = {name: last - first for name, (first, last) in spans.items() if last > first}
    empty = [name for name in graph.types.names if name not in widths]
    encoder = og.nn.HeteroEncoder(widths, hidden, without_input=empty, shared_columns=graph.types.shares_columns)

    def make_layer(out: int, then: og.nn.Epilogue | None = None) -> og.nn.Layer:
        convs = {edge_type: og.nn.SAGEConv(hidden, out) for edge_type in graph.types.edge_types}
        return og.nn.Layer(og.nn.HeteroConv(convs, combine="sum"), then)

    layers = [make_layer(hidden, og.nn.Epilogue(activation=leaky_relu)), make_layer(graph.num_classes)]
    model = og.nn.Model(layers, encoder=encoder)
    settings = {"epochs": options.epochs, "lr": 0.005, "weight_decay": 0.001, "patience": None}
    run = og.train(graph, model, strategy=options.strategy, **settings)
    print(f"loss: {run.loss[0]:.3f} after the first epoch, {run.loss[-1]:.3f} after the last")
    print(f"val accuracy: {run.val_accuracy:.3f}, test accuracy: {run.test_accuracy:.3f}")


if __name__ == "__main__":
    main()
