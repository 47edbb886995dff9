"""A model of one kind of edges for several: `to_hetero` of SAGE, in mini-batches.

    python examples/to_hetero_mag.py                  # ogbn-mag, generated at a hundredth of its size
    python examples/to_hetero_mag.py --graph ogbn-mag@0.1 --strategy split --workers 2

The workload of PyG's examples/hetero/to_hetero_mag.py: papers have features, and there all other types vectors of
metapath2vec; here each of their nodes learns a row. Batches have seeds among the papers to train on, which alone have
labels, and as many in-edges of each node as ``--fanout`` says.
"""

from __future__ import annotations

import argparse

import outgrow as og
import torch


def main() -> None:
    """Train, and score the model of the best epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="ogbn-mag@0.01", help="a data set by name, a store or a graph file")
    parser.add_argument("--strategy", default="sampled", help="how to train (sampled)")
    parser.add_argument("--workers", type=int, default=1, help="worker processes (1)")
    parser.add_argument("--fanout", type=int, default=10, help="in-edges that a layer samples of a node (10)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs to train (20)")
    options = parser.parse_args()
    graph, hidden = og.load(options.graph), 64

    torch.manual_seed(0)
    types = graph.types
    spans = {name: types.type_columns(name) for name in types.names}
    widths = {name: last - first for name, (first, last) in spans.items() if last > first}
    nodes = {name: types.type_nodes(name)[1] - types.type_nodes(name)[0] for name in types.names if name not in widths}
    encoder = og.nn.HeteroEncoder(widths, hidden, embeddings=nodes, shared_columns=types.shares_columns)
    relu = og.nn.Epilogue(activation=torch.relu)
    layers = [og.nn.Layer(og.nn.SAGEConv(hidden, hidden), relu), og.nn.Layer(og.nn.SAGEConv(hidden, graph.num_classes))]
    model = og.nn.to_hetero(og.nn.Model(layers, encoder=encoder), graph)

    batches = {"batch_size": 1024, "fanout": (options.fanout,) * 2}
    settings = {"strategy": options.strategy, "workers": options.workers, "epochs": options.epochs, "lr": 0.01}
    run = og.train(graph, model, patience=None, **batches, **settings)
    print(f"loss: {run.loss[0]:.3f} after the first epoch, {run.loss[-1]:.3f} after the last")
    print(f"val accuracy: {run.val_accuracy:.3f}, test accuracy: {run.test_accuracy:.3f}")


if __name__ == "__main__":
    main()
