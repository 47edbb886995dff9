"""What the rivals of `link_batches.py` share: the task, the decoder, what is timed and told.

It runs in the environments of the rivals, so it needs NumPy and torch only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

LEARNING_RATE = 0.01


class Task(NamedTuple):
    """What a process does: see `main` of each rival.

    Attributes:
        folder: Folder of the graph.
        batch_size: Links of a batch.
        fanout: Neighbours to draw for each hop.
        epochs: Epochs to train.
        batches: Batches of an epoch; of a full one, unless it is cut off.
        threads: Threads of torch.
        form: Which form of the library.
    """

    folder: Path
    batch_size: int
    fanout: list[int]
    epochs: int
    batches: int
    threads: int
    form: str

    @staticmethod
    def read() -> Task:
        """The task that is given as JSON."""
        given = json.loads(sys.argv[1])
        torch.set_num_threads(given["threads"])
        torch.manual_seed(0)
        return Task(Path(given.pop("folder")), **given)

    @property
    def facts(self) -> dict[str, int]:
        """Sizes of the graph and the model."""
        found: dict[str, int] = json.loads((self.folder / "data.json").read_text())
        return found

    def array(self, name: str) -> Tensor:
        """An array of the graph."""
        return torch.from_numpy(np.load(self.folder / f"{name}.npy"))

    @property
    def edge_index(self) -> Tensor:
        """``[2, E]``: sources above destinations, sorted by destination."""
        indptr = self.array("indptr")
        tails = torch.arange(len(indptr) - 1).repeat_interleave(indptr.diff())
        return torch.stack([self.array("indices").long(), tails])


class DistMult(nn.Module):
    """Scores of links, and the binary cross-entropy of links and negatives."""

    def __init__(self, columns: int, relations: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.randn(relations, columns) / columns**0.5)

    def loss(self, heads: Tensor, tails: Tensor, relations: Tensor, truth: Tensor) -> Tensor:
        """Return the mean loss of pairs of rows."""
        score = (heads * self.relation[relations] * tails).sum(1)
        return functional.binary_cross_entropy_with_logits(score, truth)


def train(task: Task, parameters: Iterable[nn.Parameter], batches: Any, loss_of: Any) -> None:
    """Train, and tell the seconds of each epoch, the losses and the memory.

    Args:
        task: The task.
        parameters: Of all modules.
        batches: Gives the batches of an epoch.
        loss_of: Gives the loss of a batch, and how many links it has.
    """
    optimizer = torch.optim.Adam(list(parameters), lr=LEARNING_RATE)
    seconds, of_processor, losses = [], [], []
    for _ in range(task.epochs):
        began, before, total, count = time.perf_counter(), time.process_time(), 0.0, 0
        for batch in islice(batches(), task.batches):
            optimizer.zero_grad()
            loss, links = loss_of(batch)
            loss.backward()
            optimizer.step()
            total, count = total + loss.item() * links, count + links
        seconds.append(time.perf_counter() - began)
        of_processor.append(time.process_time() - before)
        losses.append(total / count)
    told = {"seconds": seconds, "processor_seconds": of_processor, "losses": losses, "links": count}
    print(json.dumps({**told, "batches": task.batches}))
