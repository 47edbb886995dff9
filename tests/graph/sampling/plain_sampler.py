"""What each node keeps of its in-edges, in plain Python."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from functools import cache
from itertools import accumulate

import numpy as np

from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR, NEIGHBOR, WITH_REPLACEMENT, Fanout
from outgrow.graph.topology import Topology
from outgrow.ops.rng import fold_in
from support import destinations_of

Kept = list[tuple[int, float]]
"""Edges, and how many each of them represents."""


def uniform(key: int) -> float:
    return (key >> 11) / 2**53


def floyd(key: int, count: int, most: int) -> list[int]:
    chosen: set[int] = set()
    for i in range(most):
        last = count - most + i
        number = fold_in(key, i) * (last + 1) >> 64
        chosen.add(last if number in chosen else number)
    return sorted(chosen)


def first_to_arrive(key: int, weight: list[float], most: int) -> list[int]:
    numbers = [uniform(fold_in(key, j)) for j in range(len(weight))]
    times = sorted((-math.log1p(-x) / w, j) for j, (x, w) in enumerate(zip(numbers, weight, strict=True)) if w > 0)
    return sorted(j for _, j in times[:most])


def smallest_numbers(key: int, sources: list[int], weight: list[float], most: int) -> list[int]:
    """The ``c``-th further edge from a source has a number of its own."""
    copies = [sources[:j].count(source) for j, source in enumerate(sources)]
    keys = [fold_in(key, u, c) if c else fold_in(key, u) for u, c in zip(sources, copies, strict=True)]
    ranks = sorted((uniform(each) / w, j) for j, (each, w) in enumerate(zip(keys, weight, strict=True)) if w > 0)
    return sorted(j for _, j in ranks[:most])


def repeated_draws(key: int, weight: list[float] | None, count: int, draws: int) -> Counter[int]:
    """How often each place was drawn."""
    if weight is None:
        return Counter(fold_in(key, i) * count >> 64 for i in range(draws))
    bounds = [*accumulate(weight)]
    return Counter(bisect_right(bounds, bounds[-1] * uniform(fold_in(key, i))) for i in range(draws))


@cache
def importance(view: Topology) -> list[float]:
    """Shares of the squared columns of the normalised adjacency; edge by edge, since parallel edges count apart."""
    degree = np.where(view.degree.numpy() > 0, view.degree.numpy(), 1)
    size = np.ones(view.num_edges) if view.weight is None else view.weight.double().numpy()
    src, dst = view.indices.numpy(), destinations_of(view.block.edges).numpy()
    norm = np.bincount(src, size**2 / degree[src] / degree[dst], minlength=view.num_nodes)
    found: list[float] = (norm / max(norm.sum(), 1e-300)).tolist()
    return found


def drawn_nodes(view: Topology, draws: int, key: int) -> dict[int, float]:
    """The set of nodes, and how many edges an edge from each of them represents."""
    share = importance(view)
    bounds = [*accumulate(share)]
    if not bounds[-1]:
        return {}
    times = Counter(bisect_right(bounds, uniform(fold_in(key, i)) * bounds[-1]) for i in range(draws))
    return {node: count / (draws * share[node]) for node, count in times.items()}


def kept_edges(view: Topology, v: int, fanout: Fanout, key: int, weighted: bool, sampler: str = NEIGHBOR) -> Kept:
    """The in-edges that a node keeps, and how many each stands for."""
    first, end = view.indptr[v : v + 2].tolist()
    count, row_key = end - first, fold_in(key, v)
    if isinstance(fanout, tuple):
        return _kept_by_relation(view, range(first, end), fanout, row_key)
    if fanout == -1 or (count <= fanout and sampler in (NEIGHBOR, LABOR)):
        return [(e, 1.0) for e in range(first, end)]
    sources = view.indices[first:end].tolist()
    weight = view.weight[first:end].double().tolist() if weighted and view.weight is not None else None
    if sampler == FASTGCN:
        drawn = {**drawn_nodes(view, fanout, key), v: 1.0}
        return [(first + j, drawn[u]) for j, u in enumerate(sources) if u in drawn]
    total, positive = (count, count) if weight is None else (sum(weight), sum(w > 0 for w in weight))
    if sampler == WITH_REPLACEMENT:
        times = repeated_draws(row_key, weight, count, fanout) if total else {}
        return [(first + j, total / (weight[j] if weight else 1) * times[j] / fanout) for j in sorted(times)]
    if sampler == LABOR:
        places = smallest_numbers(key, sources, weight or [1.0] * count, fanout)
    else:
        places = floyd(row_key, count, fanout) if weight is None else first_to_arrive(row_key, weight, fanout)
    share = total / fanout if positive > fanout else None
    return [(first + j, 1.0 if share is None else share / (weight[j] if weight else 1)) for j in places]


def _kept_by_relation(view: Topology, row: range, fanout: tuple[int, ...], row_key: int) -> Kept:
    assert view.relation is not None
    out: Kept = []
    for relation, most in enumerate((*fanout, -1)):
        same = [e for e in row if int(view.relation[e]) == (relation if relation < len(fanout) else -1)]
        if most == -1 or len(same) <= most:
            out += [(e, 1.0) for e in same]
        else:
            ranks = floyd(fold_in(row_key, relation), len(same), most)
            out += [(same[rank], len(same) / most) for rank in ranks]
    return sorted(out)
