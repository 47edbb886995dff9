"""HGT on a graph of several types, on the whole of it.

    python examples/hgt_dblp.py                                     # a generated graph, as ogbn-mag at a hundredth
    python examples/hgt_dblp.py --graph heco-acm --data-dir DATA    # papers, authors and subjects of ACM
    python examples/hgt_dblp.py --graph my.store --strategy offload

The workload of PyG's examples/hetero/hgt_dblp.py (Hu et al., Heterogeneous graph transformer, WWW 2020): a projection
of the features of each type, or a learned row for each node of a type without features, one layer and a linear map.
A ``HeteroData`` of PyG, its DBLP among them, is a graph too: ``og.load(data)``.
"""

from __future__ import annotations

import argparse

import outgrow as og
import torch


def main() -> None:
    """Train, and score the model of the best epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="ogbn-mag@0.01", help="a data set by name, a store or a graph file")
    parser.add_argument("--data-dir", help="folder to look in first for the files of a data set")
    parser.add_argument("--strategy", default="full", help="how to train (full)")
    parser.add_argument("--epochs", type=int, default=100, help="epochs to train (100)")
    options = parser.parse_args()
    graph = og.load(options.graph, data_dir=options.data_dir)
    print(f"{graph}: {', '.join('-'.join(each) for each in graph.types.edge_types)}")

    torch.manual_seed(0)
    model = og.nn.HGT(graph.num_features, 64, graph.num_classes, types=graph.types, heads=2, layers=1, dropout=0.0)
    settings = {"epochs": options.epochs, "lr": 0.005, "weight_decay": 0.001, "patience": None}
    run = og.train(graph, model, strategy=options.strategy, **settings)
    print(f"loss: {run.loss[0]:.3f} after the first epoch, {run.loss[-1]:.3f} after the last")
    print(f"val accuracy: {run.val_accuracy:.3f}, test accuracy: {run.test_accuracy:.3f}")


if __name__ == "__main__":
    main()
