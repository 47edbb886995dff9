"""What the rivals of `sampling.py` and `minibatch.py` share: the task, the check of a batch, what is timed.

It runs in the environments of the rivals, so it needs NumPy, torch and psutil only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from rivals.common import Job

T = TypeVar("T")
SAMPLING, TRAINING = "sampling", "sage"
LEARNING_RATE, DROPOUT = 0.003, 0.5
SAMPLED, EXACT, NEIGHBORS, LAYERWISE, WHOLE = "sampled", "exact", "neighbors", "layerwise", "whole"
"""How validation nodes are scored. ``exact`` is left to the library; the last three are exact too, and say how."""
_TASK = "task.json"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all rivals do in a round; every process has a folder of its own, in which it finds this.

    Attributes:
        arrays: Folder of the graph and the nodes.
        fanouts: Neighbours to draw for each hop outward from the seeds: some to try when sampling, one to train with.
        batch_size: Seeds of a batch.
        seed: Seed of all draws.
        seconds: Sampling with a fan-out ends after so long, however few batches there were.
        eval_batch_size: Validation nodes of a batch where they are scored on samples.
        layer_batch_size: Nodes of a batch where a layer is computed for all of them.
    """

    arrays: Path
    fanouts: tuple[tuple[int, ...], ...]
    batch_size: int
    seed: int
    seconds: float = 0.0
    eval_batch_size: int = 4096
    layer_batch_size: int = 4096

    def write(self, folder: Path) -> None:
        """Leave the task in the folder of a process."""
        (folder / _TASK).write_text(json.dumps({**asdict(self), "arrays": str(self.arrays)}))

    @staticmethod
    def read(job: Job) -> Task:
        """The task in the folder of a job."""
        found = json.loads((job.folder / _TASK).read_text())
        fanouts = tuple(tuple(fanout) for fanout in found.pop("fanouts"))
        return Task(arrays=Path(found.pop("arrays")), fanouts=fanouts, **found)

    def widths(self) -> list[int]:
        """Input, hidden and output widths of the model."""
        found: list[int] = json.loads((self.arrays / "data.json").read_text())["widths"]
        return found


def split_form(form: str) -> tuple[str, list[str]]:
    """The form to train in, and the ways to evaluate: ``"int32-2+sampled+whole"``."""
    train, *ways = form.split("+")
    return train, ways


def spelled(fanout: Sequence[int]) -> str:
    """``"25-10"``."""
    return "-".join(map(str, fanout))


class Hop(NamedTuple):
    """The edges that one hop of a batch has drawn, in global ids.

    Attributes:
        dst: ``[Vd]`` nodes of which in-edges were drawn.
        indptr: ``[Vd + 1]``; the edges drawn of ``dst[v]`` are ``indptr[v]`` to ``indptr[v + 1]``.
        src: ``[E]`` source of each edge.
    """

    dst: NDArray[np.int64]
    indptr: NDArray[np.int64]
    src: NDArray[np.int64]


class Graph(NamedTuple):
    """In-edges of all nodes, in memory of the process.

    Attributes:
        indptr: ``[V + 1]`` int64; the in-edges of node ``v`` are ``indptr[v]`` to ``indptr[v + 1]``.
        indices: ``[E]`` int32; source of each edge.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]

    @staticmethod
    def read(folder: Path) -> Graph:
        """Read what `rivals.batch_data` wrote."""
        return Graph(np.load(folder / "indptr.npy"), np.load(folder / "indices.npy"))

    def require_drawn(self, hops: Sequence[Hop], fanout: Sequence[int]) -> None:
        """Check a batch: each hop has drawn as many different in-edges of every node as it was to.

        Raises:
            ValueError: It has not, or an edge is not in the graph.
        """
        num_nodes = len(self.indptr) - 1
        every = np.sort(_names(np.arange(num_nodes), self.indptr, self.indices, num_nodes))
        for number, (hop, most) in enumerate(zip(hops, fanout, strict=True)):
            wanted = np.minimum(self.indptr[hop.dst + 1] - self.indptr[hop.dst], most)
            if not np.array_equal(np.diff(hop.indptr), wanted):
                raise ValueError(f"hop {number} has drawn {len(hop.src)} edges, and was to draw {wanted.sum()}")
            drawn = _names(hop.dst, hop.indptr, hop.src, num_nodes)
            if len(np.unique(drawn)) != len(drawn):
                raise ValueError(f"hop {number} has drawn an edge twice")
            if not np.array_equal(every[np.minimum(np.searchsorted(every, drawn), len(every) - 1)], drawn):
                raise ValueError(f"hop {number} has drawn an edge that the graph does not have")


def _names(dst: Any, indptr: Any, src: Any, num_nodes: int) -> NDArray[np.int64]:
    """``[E]``: one number for each pair of ends."""
    names: NDArray[np.int64] = np.repeat(dst, np.diff(indptr)) * np.int64(num_nodes) + src
    return names


class Sampled(NamedTuple):
    """A batch, as `sample` wants it.

    Attributes:
        num_edges: Edges drawn, all hops together.
        num_nodes: Different nodes, seeds among them.
        hops: The edges drawn, hop by hop outward from the seeds, for a number of hops; not called while time is taken.
    """

    num_edges: int
    num_nodes: int
    hops: Callable[[int], list[Hop]]


def sample(
    job: Job,
    task: Task,
    graph: Graph,
    batches: Callable[[NDArray[np.int64], tuple[int, ...]], Iterable[T]],
    describe: Callable[[T], Sampled],
) -> dict[str, Any]:
    """Draw batches with every fan-out of the task, and time them.

    Args:
        job: ``warmup`` batches that do not count, then at most ``epochs`` that do.
        task: The task.
        graph: What is drawn from.
        batches: For seeds ``[V]`` and a fan-out, the batches of consecutive seeds; iterated anew when they have ended.
        describe: What there is to know of one of them.
    """
    seeds = np.load(task.arrays / "seeds.npy")
    cells = {}
    for fanout in task.fanouts:
        stream = _endless(batches(seeds, fanout))
        _check(graph, describe(next(stream)), fanout)
        for _ in range(job.warmup):
            next(stream)
        cells[spelled(fanout)] = _timed(stream, describe, job.epochs, task.seconds)
        stream.close()
    return {"cells": cells}


def _check(graph: Graph, batch: Sampled, fanout: Sequence[int]) -> None:
    hops = batch.hops(len(fanout))
    graph.require_drawn(hops, fanout)
    if (drawn := sum(len(hop.src) for hop in hops)) != batch.num_edges:
        raise ValueError(f"a batch is said to have {batch.num_edges} edges, and its hops have drawn {drawn}")


def _timed(stream: Iterator[T], describe: Callable[[T], Sampled], most: int, longest: float) -> dict[str, float]:
    num_batches = num_edges = num_nodes = 0
    passed, began = 0.0, time.perf_counter()
    while num_batches < most and passed < longest:
        found = describe(next(stream))
        passed = time.perf_counter() - began
        num_batches += 1
        num_edges += found.num_edges
        num_nodes += found.num_nodes
    return {"seconds": passed, "batches": num_batches, "edges": num_edges, "nodes": num_nodes}


def _endless(batches: Iterable[T]) -> Generator[T, None, None]:
    while True:
        yield from batches
