"""Train on several hosts: the processes of torchrun are the workers.

One machine, to try it:

    torchrun --nproc-per-node 2 examples/two_hosts.py

Two hosts, the same command on each; --nproc-per-node is the number of workers on a host:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint FIRST-HOST:29500 examples/two_hosts.py

examples/two_hosts.sh does that. Every host needs the script and the graph: a data set by name, or a store at the same
path. A store is mapped, so the workers of a host share it, and its partition is kept; `outgrow convert` writes one.
Without torchrun the script trains on one worker, with the same losses.
"""

from __future__ import annotations

import argparse
import os

import outgrow as og
import torch


def main() -> None:
    """Train as one of the workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="wordnet", help="a data set by name, or a store (wordnet)")
    parser.add_argument("--hidden", type=int, default=64, help="width of the hidden layer (64)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs to train (20)")
    parser.add_argument("--out", help="directory for the files of the run; written by the first worker (none)")
    options = parser.parse_args()

    # Each process loads the graph and builds the model; the initial weights that count are those of the first worker.
    graph = og.load(options.graph)

    torch.manual_seed(0)
    shape = (graph.num_features, options.hidden, graph.num_classes)
    model = og.nn.SAGE(*shape, layers=2, dropout=0.5, norm=True)

    # Without `workers`: they are those of torchrun. Each owns some of the nodes and sends the others the rows that they
    # need. With `out`, `torchrun --max-restarts 2` goes on from the last checkpoint after a worker has died.
    run = og.train(graph, model, epochs=options.epochs, strategy=og.Full(), lr=0.01, optimizer="adamw", out=options.out)

    # All workers have the trained model; one of them speaks.
    if os.environ.get("RANK", "0") == "0":
        print(f"workers: {run.summary['workers']}, test accuracy: {run.test_accuracy:.3f}")
        print(f"loss: {run.loss[0]:.6f} after the first epoch, {run.loss[-1]:.6f} after the last")
        for link, kinds in run.ledger.items():
            if kinds:  # bytes, by what they were
                print(f"{link}: {sum(kinds.values()) / 1e6:.1f} MB crossed: {', '.join(kinds)}")
        if run.directory is not None:
            print(f"files of the run: {run.directory}")


if __name__ == "__main__":
    main()
