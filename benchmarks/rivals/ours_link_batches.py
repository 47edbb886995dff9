"""Outgrow's batches of links, R-GCN and DistMult, for `link_batches.py`.

python -m rivals.ours_link_batches JSON     (in benchmarks/, where outgrow is installed)
"""

from __future__ import annotations

import json
import time

import torch
from rivals.link_batches import LEARNING_RATE, Task

import outgrow as og


def main() -> None:
    """Train."""
    task = Task.read()
    facts = task.facts
    graph = og.from_arrays(
        task.edge_index, features=task.array("features"), relation=task.array("relation"), num_nodes=facts["nodes"]
    )
    model = og.nn.RGCN(
        facts["inputs"], facts["hidden"], facts["hidden"], num_relations=facts["relations"], bases=facts["bases"]
    ).with_decoder(og.nn.DistMult(facts["hidden"], facts["relations"]))
    options = {"batch_size": task.batch_size, "fanout": tuple(task.fanout), "exclude": "none", "eval": "none"}
    options |= {"val_links": 0.0, "test_links": 0.0}
    prefetch = {"prefetch": 0} if task.form == "0" else {}
    training = og.prepare(graph, model, strategy=og.Sampled(**prefetch), device="cpu", **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    seconds, of_processor, losses = [], [], []
    with training:
        for epoch in range(1, task.epochs + 1):
            began, before, total, count = time.perf_counter(), time.process_time(), 0.0, 0
            for number, step in enumerate(training.steps(epoch), 1):
                optimizer.step()
                optimizer.zero_grad()
                total, count = total + step.loss * step.num_seeds, count + step.num_seeds
                if number == task.batches:
                    break
            seconds.append(time.perf_counter() - began)
            of_processor.append(time.process_time() - before)
            losses.append(total / count)
    told = {"seconds": seconds, "processor_seconds": of_processor, "losses": losses, "links": count}
    print(json.dumps({**told, "batches": task.batches}))


if __name__ == "__main__":
    main()
