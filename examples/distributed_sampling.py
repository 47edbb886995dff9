"""Train in mini-batches on two workers, with a loop of your own that og.launch runs in each.

    python examples/distributed_sampling.py
    torchrun --nproc-per-node 2 examples/distributed_sampling.py    # the same

The workload of PyG's examples/multi_gpu/distributed_sampling.py. At each step the parameters have the gradient over
all workers, so every worker's optimizer takes the same step; a batch is that of one worker, whatever their number, and
so are the losses. By default the graph is generated, with the statistics of ogbn-products at 1/50 of its size.
"""

from __future__ import annotations

import argparse

import outgrow as og
import torch


def run(options: argparse.Namespace) -> str | None:
    """Train as one of the workers; the first one returns what has come of it."""
    graph = og.load(options.graph)
    torch.manual_seed(0)
    model = og.nn.SAGE(graph.num_features, options.hidden, graph.num_classes, dropout=0.5)
    with og.prepare(graph, model, batch_size=options.batch_size, fanout=(25, 10)) as training:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
        for epoch in range(options.epochs):
            loss = 0.0
            for step in training.steps(epoch):
                optimizer.step()
                optimizer.zero_grad()
                loss += step.loss * step.num_seeds / len(graph.split.train)
            val = training.evaluate("val")
            if training.rank == 0:
                print(f"epoch {epoch + 1:02d}, loss: {loss:.4f}, val accuracy: {val['accuracy']:.3f}")
        test = training.evaluate("test")
    if training.rank > 0:
        return None
    return f"workers: {training.num_workers}, last loss: {loss:.6f}, test accuracy: {test['accuracy']:.3f}"


def main() -> None:
    """Start the workers, and print what the first one returns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="products@0.02", help="a data set, a store or a graph file (products@0.02)")
    parser.add_argument("--hidden", type=int, default=64, help="width of the hidden layer (64)")
    parser.add_argument("--epochs", type=int, default=10, help="epochs to train (10)")
    parser.add_argument("--batch-size", type=int, default=256, help="nodes of a mini-batch (256)")
    parser.add_argument("--workers", type=int, default=2, help="number of workers (2)")
    options = parser.parse_args()
    found = og.launch(run, options, workers=options.workers)
    if found:
        print(found)


if __name__ == "__main__":
    main()
