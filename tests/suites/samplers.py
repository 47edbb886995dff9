"""What every sampler promises: sums are right on average, draws are those of a node or a layer. Mutants of them.

A check raises an `AssertionError` if a promise is broken. Draws are keyed, so a check gives the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.graph.sampling import edge_sampler
from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR, WITH_REPLACEMENT
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.ops.edge_weight import graph_edge_weight, mean_weight, symmetric_weight
from outgrow.ops.sampling.layerwise import DrawnNodes
from outgrow.ops.sampling.uniform import sample_uniform
from support import random_topology, topology_of

STEPS, NODES = 1500, 40
WEIGHTED = random_topology(NODES, 500, weighted=True)
"""With parallel edges, self-loops, and degrees of 0 to some dozens."""


class Sampling(NamedTuple):
    """A sampler, its fan-out, and whether it draws by weight."""

    sampler: str
    fanout: int
    weighted: bool = False

    def of(self, view: Topology, layers: int = 1) -> NeighborSampler:
        """The sampler of some layers with one view."""
        return NeighborSampler([view] * layers, [self.fanout] * layers, 5, weighted=self.weighted, sampler=self.sampler)


SAMPLINGS = {
    "replaced": Sampling(WITH_REPLACEMENT, 4),
    "replaced by weight": Sampling(WITH_REPLACEMENT, 4, weighted=True),
    "labor": Sampling(LABOR, 4),
    "fastgcn": Sampling(FASTGCN, 15),
}
"""Those whose sums are unbiased, beside neighbour sampling."""
WEIGHTS: dict[str, tuple[Callable[[Block, torch.dtype], Tensor | None], bool]] = {
    "sum": (graph_edge_weight, False),
    "mean": (mean_weight, False),
    "gcn": (symmetric_weight, True),
}
"""Weights of edges of linear layers, and whether the layer has self-loops."""


def weighted_sums(block: Block, weight: Tensor | None, x_V: Tensor) -> Tensor:
    """``[Vd]``: what a linear layer adds up."""
    row = torch.arange(block.edges.num_dst).repeat_interleave(block.edges.indptr.diff())
    value = x_V[block.src_nodes[block.edges.indices.long()]]
    value = value if weight is None else value * weight[:, 0]
    return torch.zeros(block.edges.num_dst, dtype=torch.float64).index_add_(0, row, value)


def check_sums(sampling: Sampling, weights: str) -> None:
    """The mean over many steps is the sum over all in-edges, for every node."""
    weight_of, self_loops = WEIGHTS[weights]
    view = WEIGHTED.view(self_loops=self_loops)
    x_V = torch.randn(NODES, dtype=torch.float64, generator=torch.manual_seed(0))
    wanted = weighted_sums(view.block, weight_of(view.block, torch.float64), x_V)
    sampler, sums = sampling.of(view), []
    for step in range(STEPS):
        (block,) = sampler.sample_blocks(view.nodes, 0, step)
        sums.append(weighted_sums(block, weight_of(block, torch.float64), x_V))
    every = torch.stack(sums)
    error = (every.mean(0) - wanted) / (every.std(0) / STEPS**0.5 + 1e-6)
    assert error.abs().max() < 5, error
    assert error.square().mean() < 2
    assert every.std(0).max() > 0.01


def kept_by(sampler: NeighborSampler, seeds: Tensor, step: int) -> dict[int, list[tuple[int, float]]]:
    """The edges that each seed keeps, and how many each represents."""
    (block,) = sampler.sample_blocks(seeds, 0, step)
    assert block.edge_ids is not None
    weight = torch.ones(block.edges.num_edges) if block.sample_weight is None else block.sample_weight
    ends, kept = block.edges.indptr.tolist(), [*zip(block.edge_ids.tolist(), weight.tolist(), strict=True)]
    return {v: kept[low:high] for v, low, high in zip(seeds.tolist(), ends, ends[1:], strict=False)}


def check_batches(sampling: Sampling, weights: str) -> None:
    """What a node keeps does not depend on what else is in the batch."""
    view = WEIGHTED.view(self_loops=WEIGHTS[weights][1])
    sampler = sampling.of(view)
    for step in range(20):
        whole = kept_by(sampler, view.nodes, step)
        assert {v: kept for part in view.nodes.split(7) for v, kept in kept_by(sampler, part, step).items()} == whole


CROWDED = topology_of(60, [(u, v) for v in range(20) for u in range(20, 60)])
"""Twenty nodes with the same forty in-neighbours."""


def check_shared_sources(sampling: Sampling, weights: str) -> None:
    """By LABOR, nodes with the same in-neighbours keep the same ones; each as often as any other."""
    del weights
    often, steps = np.zeros(60), 4000
    for step in range(steps):
        (block,) = sampling.of(CROWDED).sample_blocks(torch.arange(20), 0, step) if step < 5 else _first_row(step)
        assert block.edges.indptr.diff().tolist() == [sampling.fanout] * block.edges.num_dst
        assert len(block.src_nodes) == block.edges.num_dst + sampling.fanout
        often[block.src_nodes[block.edges.num_dst :].numpy()] += 1
    share = sampling.fanout / 40
    score = (often[20:] - steps * share) / (steps * share * (1 - share)) ** 0.5
    assert abs(score).max() < 4.5


_ONE_ROW = Sampling(LABOR, 4).of(CROWDED)


def _first_row(step: int) -> list[Block]:
    return _ONE_ROW.sample_blocks(torch.arange(1), 0, step)


CHECKS = {"sums": check_sums, "batches": check_batches, "shared sources": check_shared_sources}


@contextmanager
def _instead(name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    with patch.object(edge_sampler, name, change(getattr(edge_sampler, name))):
        yield


def numbers_of_the_rows() -> AbstractContextManager[None]:
    """LABOR's numbers are keyed by the destination too."""

    def changed(right: Callable[..., Any]) -> Callable[..., Any]:
        return lambda rows, indices, weight, fanout, key, bits, out: sample_uniform(rows, fanout, key, bits, out)

    return _instead("sample_labor", changed)


def one_number_for_parallel_edges() -> AbstractContextManager[None]:
    """LABOR keeps the first of parallel edges more often than the second: the later ones are never kept."""

    def changed(right: Callable[..., Any]) -> Callable[..., Any]:
        def sample(rows: Any, indices: Any, weight: Any, *rest: Any) -> Any:
            first = np.diff(indices, prepend=-1) != 0
            return right(rows, indices, first.astype(np.float32), *rest)

        return sample

    return _instead("sample_labor", changed)


def labor_edges_count_once() -> AbstractContextManager[None]:
    """An edge that LABOR keeps represents itself alone."""
    return _instead("sample_labor", _with_sample_weight(lambda rows, out, kept: 1))


def draws_count_once() -> AbstractContextManager[None]:
    """The weight of an edge drawn twice is that of an edge drawn once."""

    def changed(rows: Any, out: Any, kept: int) -> Any:
        return np.repeat(rows[2] / SAMPLINGS["replaced"].fanout, np.diff(out[0]))

    return _instead("sample_with_replacement", _with_sample_weight(changed))


def _with_sample_weight(weight_of: Callable[[Any, Any, int], Any]) -> Callable[..., Callable[..., Any]]:
    def changed(right: Callable[..., Any]) -> Callable[..., Any]:
        def sample(rows: Any, *rest: Any) -> Any:
            kept = right(rows, *rest)
            rest[-1][2][:kept] = weight_of(rows, rest[-1], kept)
            return kept

        return sample

    return changed


def importance_not_undone() -> AbstractContextManager[None]:
    """An edge from a node that was drawn often by its importance counts as much as any other: without 1/q."""

    def changed(right: Callable[..., Any]) -> Callable[..., Any]:
        def draw(bounds: Any, draws: int, key: int) -> DrawnNodes:
            drawn = right(bounds, draws, key)
            times = drawn.sample_weight * draws * np.diff(bounds, prepend=0)[drawn.nodes]
            return drawn._replace(sample_weight=(times * len(bounds) / draws).astype(np.float32))

        return draw

    return _instead("draw_nodes", changed)


def nodes_drawn_once() -> AbstractContextManager[None]:
    """A node that was drawn several times for a layer counts once."""

    def changed(right: Callable[..., Any]) -> Callable[..., Any]:
        def draw(bounds: Any, draws: int, key: int) -> DrawnNodes:
            drawn = right(bounds, draws, key)
            share = np.diff(bounds, prepend=0)[drawn.nodes]
            return drawn._replace(sample_weight=(1 / (draws * share)).astype(np.float32))

        return draw

    return _instead("draw_nodes", changed)


@contextmanager
def nodes_drawn_for_a_batch() -> Iterator[None]:
    """The nodes of a layer depend on which rows are asked for."""
    right = edge_sampler.EdgeSampler.sample

    def sample(self: Any, nodes: Any, key: int, *rest: Any) -> Any:
        return right(self, nodes, key + int(nodes[0]) if len(nodes) else key, *rest)

    with patch.object(edge_sampler.EdgeSampler, "sample", sample):
        yield


Broken = tuple[str, str, str, Callable[[], AbstractContextManager[None]]]
MUTANTS: dict[str, Broken] = {
    each.__name__: (check, sampling, weights, each)
    for check, sampling, weights, each in (
        ("shared sources", "labor", "sum", numbers_of_the_rows),
        ("sums", "labor", "sum", one_number_for_parallel_edges),
        ("sums", "labor", "mean", labor_edges_count_once),
        ("sums", "replaced", "mean", draws_count_once),
        ("sums", "fastgcn", "gcn", importance_not_undone),
        ("sums", "fastgcn", "sum", nodes_drawn_once),
        ("batches", "fastgcn", "sum", nodes_drawn_for_a_batch),
    )
}
"""By name, the check that finds a mutant, in which case, and what makes it."""
