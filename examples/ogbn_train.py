"""Train GraphSAGE on products in mini-batches; the learning rate falls when the validation accuracy no longer rises.

    python examples/ogbn_train.py
    python examples/ogbn_train.py --graph ogbn-products --hidden 256    # downloads the data set

The workload of PyG's examples/ogbn_train.py with --model sage: three layers, ten neighbours a node, Adam, and
ReduceLROnPlateau. By default the graph is generated, with the statistics of ogbn-products at 1/50 of its size.
"""

from __future__ import annotations

import argparse

import outgrow as og
import torch


class PrintEpoch(og.Callback):
    """Prints what each epoch has come to."""

    def on_epoch(self, report: object) -> None:
        """After an epoch and its evaluation."""
        print(
            f"epoch {report.epoch:02d}, loss: {report.loss:.4f}, val: {report.val_score:.3f}, "
            f"learning rate: {report.lr:.1e}, {report.seconds:.1f} s"
        )


def main() -> None:
    """Train, and score the model of the best epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="products@0.02", help="a data set by name, or a store (products@0.02)")
    parser.add_argument("--hidden", type=int, default=64, help="width of the hidden layers (64)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs to train (20)")
    parser.add_argument("--batch-size", type=int, default=256, help="nodes of a mini-batch (256)")
    parser.add_argument("--fanout", type=int, default=10, help="neighbours sampled in each layer (10)")
    parser.add_argument("--patience", type=int, default=2, help="epochs without a better score before lr falls (2)")
    options = parser.parse_args()
    graph = og.load(options.graph)
    print(graph)

    torch.manual_seed(0)
    model = og.nn.SAGE(graph.num_features, options.hidden, graph.num_classes, layers=3, dropout=0.5)
    run = og.train(
        graph,
        model,
        epochs=options.epochs,
        batch_size=options.batch_size,
        fanout=(options.fanout,) * 3,
        optimizer="adam",
        lr=0.003,
        schedule="plateau",
        schedule_options={"patience": options.patience},
        callbacks=[PrintEpoch()],
        progress=False,
    )
    scores = f"val accuracy: {run.val_accuracy:.3f}, test accuracy: {run.test_accuracy:.3f}"
    print(f"best epoch: {run.summary['best_epoch']}, {scores}")


if __name__ == "__main__":
    main()
