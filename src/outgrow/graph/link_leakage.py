"""What links to validate and to test on share with training: duplicates, inverses, relations that invert one another.

Of FB15k and WN18 most test links have their inverse in training, so that a model which only learns to invert relations
is good (Toutanova and Chen, CVSC 2015; Dettmers et al., AAAI 2018). What is found is reported, and nothing is removed:
figures that were published are those of the whole split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.graph import Graph
from outgrow.graph.inverse_relations import has_inverses
from outgrow.graph.link_triples import LinkTriples
from outgrow.ops.backend import as_numpy, parallel_kernel, prange

_SAME, _PARALLEL, _INVERSE, _UNSEEN = 1, 2, 4, 8
_BLOCK_EDGES = 1 << 22
_SHOWN = 5
_THRESHOLD = 0.99


class SharedLinks(NamedTuple):
    """What the links of a part share with others.

    Attributes:
        total: Number of links.
        repeated: Those that occur before in the same part.
        duplicates: Those that are training links too.
        inverses: Those ``(h, r, t)`` of which a training link ``(t, r', h)`` leads back, of any relation.
        parallels: Those whose nodes a training link of another relation joins in the same direction.
        validated: Test links that are validation links too.
        unseen: Those with a node that no training link has.
    """

    total: int
    repeated: int
    duplicates: int
    inverses: int
    parallels: int
    validated: int = 0
    unseen: int = 0


class InversePair(NamedTuple):
    """A relation, another one that mostly leads back, and the share of the first one's edges that it leads back.

    Attributes:
        relation: Name of the relation.
        inverse: Name of the one that leads back; of a symmetric relation the same.
        share: Share of the edges of ``relation`` other than loops.
    """

    relation: str
    inverse: str
    share: float


class LinkLeakage(NamedTuple):
    """What held-out links share with training.

    Attributes:
        val: Of the validation links.
        test: Of the test links.
        near_inverse: Relations that another nearly inverts, by falling share; empty for edges without relations.
        reversed_share: Share of training links, loops excepted, of which another one leads back.
    """

    val: SharedLinks
    test: SharedLinks
    near_inverse: tuple[InversePair, ...]
    reversed_share: float


def find_leakage(graph: Graph) -> LinkLeakage | None:
    """Return what the held-out links of a graph share with its edges; None for a graph without such links.

    Relations nearly invert one another from a share of ``0.99 - (f_v + f_t)`` on, with the shares of validation and
    test links among all (Dettmers et al., section 5). Inverse relations that were added on request do not count.

    Args:
        graph: The graph, with edges sorted by source within each row, as readers sort them.
    """
    links = graph.held_out_links
    if links is None:
        return None
    limit = _count_own_relations(graph.relation_names)
    val, test = (_find_shared(graph, part, limit) for part in links)
    both = np.concatenate([_as_table(links.val), _as_table(links.test)])
    named = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    validated = int(np.isin(named[len(links.val) :], named[: len(links.val)]).sum())
    counts, totals, reversed_share = _count_inverses(graph, limit)
    held = len(links.val) + len(links.test)
    least = _THRESHOLD - held / max(1, held + sum(totals.values()))
    pairs = [
        InversePair(graph.relation_names[one], graph.relation_names[other], count / totals[one])
        for (one, other), count in sorted(counts.items())
        if graph.relation_names and count >= least * totals[one]
    ]
    pairs.sort(key=lambda pair: -pair.share)
    return LinkLeakage(val, test._replace(validated=validated), tuple(pairs), reversed_share)


def describe_leakage(graph: Graph) -> dict[str, str]:
    """Return what held-out links share with training, as facts for people; none of a graph without such links."""
    found = find_leakage(graph)
    if found is None:
        return {}
    facts = {"validation links": _describe_part(found.val), "test links": _describe_part(found.test)}
    if found.near_inverse:
        facts["near-inverse relations"] = _describe_pairs(found.near_inverse)
    facts["training links that another leads back"] = f"{found.reversed_share:.1%}"
    return facts


def warn_of_leakage(graph: Graph, found: LinkLeakage) -> None:
    """Warn, in one line, of held-out links whose answers are in training; say nothing if there are none."""
    leaks = [
        f"of {part.total:,} {name} links {_list_shared(part)}"
        for name, part in (("validation", found.val), ("test", found.test))
        if part.duplicates or part.inverses or part.repeated or part.validated
    ]
    if not leaks:
        return
    pairs = f"; nearly inverse: {_describe_pairs(found.near_inverse)}" if found.near_inverse else ""
    warn_about_data(f"{graph.name} leaks: {'; '.join(leaks)}{pairs}; all of them are kept")


def _describe_part(part: SharedLinks) -> str:
    shared = _list_shared(part) or "none of them shares anything with training"
    unseen = _list_counts(part, [(part.unseen, "have a node without training links")])
    return f"{part.total:,}: {shared}{'; ' if unseen else ''}{unseen}"


def _list_shared(part: SharedLinks) -> str:
    counts = [
        (part.duplicates, "are training links too"),
        (part.inverses, "have their inverse in training"),
        (part.parallels, "have another relation in training"),
        (part.validated, "are validation links too"),
        (part.repeated, "are repetitions"),
    ]
    return _list_counts(part, counts)


def _list_counts(part: SharedLinks, counts: list[tuple[int, str]]) -> str:
    return ", ".join(f"{count:,} ({count / part.total:.1%}) {what}" for count, what in counts if count)


def _describe_pairs(pairs: tuple[InversePair, ...]) -> str:
    named = [
        f"{pair.relation} and {'itself' if pair.inverse == pair.relation else pair.inverse} ({pair.share:.0%})"
        for pair in pairs[:_SHOWN]
    ]
    return ", ".join(named) + (f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else "")


def _count_own_relations(names: tuple[str, ...]) -> int:
    """Return the number of relations without inverses that were added, which follow the others."""
    return len(names) // 2 if has_inverses(names) else max(1, len(names))


def _as_table(links: LinkTriples) -> NDArray[np.int64]:
    return np.stack([as_numpy(column) for column in links], 1)


def _find_shared(graph: Graph, links: LinkTriples, limit: int) -> SharedLinks:
    marks = np.zeros(len(links), np.int8)
    ends = as_numpy(links.head), as_numpy(links.relation), as_numpy(links.tail)
    _mark_shared(*_edges_of(graph), *ends, limit, marks)
    own = np.unique(np.concatenate([ends[0], ends[2]]))
    unseen = own[~_have_edges(graph, own)]
    marks[np.isin(ends[0], unseen) | np.isin(ends[2], unseen)] |= _UNSEEN
    return SharedLinks(
        total=len(links),
        repeated=len(links) - len(np.unique(_as_table(links), axis=0)),
        duplicates=int((marks & _SAME > 0).sum()),
        inverses=int((marks & _INVERSE > 0).sum()),
        parallels=int((marks & _PARALLEL > 0).sum()),
        unseen=int((marks & _UNSEEN > 0).sum()),
    )


def _have_edges(graph: Graph, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which nodes are ends of an edge."""
    indptr, indices, _ = _edges_of(graph)
    found: NDArray[np.bool_] = indptr[nodes + 1] > indptr[nodes]
    for first, last in _blocks(len(indices)):
        found |= np.isin(nodes, indices[first:last])
    return found


def _count_inverses(graph: Graph, limit: int) -> tuple[Counter[tuple[int, int]], Counter[int], float]:
    """Return the edges by relation and one that leads back, the edges by relation, and the share that is led back."""
    indptr, indices, relation = _edges_of(graph)
    counts: Counter[tuple[int, int]] = Counter()
    totals: Counter[int] = Counter()
    led_back = 0
    for first, last in _blocks(len(indices)):
        rows = np.searchsorted(indptr, np.arange(first, last), side="right") - 1
        own = relation[first:last].astype(np.int64) if len(relation) else np.zeros(last - first, np.int64)
        plain = (rows != indices[first:last]) & (own < limit)
        totals.update(_count_values(own[plain]))
        found = np.zeros(last - first, np.int64)
        none = np.empty(0, np.int64)
        _list_inverses(indptr, indices, relation, rows, first, plain, limit, found, none, none)
        led_back += int((found > 0).sum())
        ends = np.cumsum(found)
        there = np.empty(int(ends[-1]) if len(ends) else 0, np.int64)
        _list_inverses(indptr, indices, relation, rows, first, plain, limit, found, ends, there)
        pairs = np.repeat(own, found) * limit + there
        counts.update({divmod(code, limit): count for code, count in _count_values(pairs).items()})
    return counts, totals, led_back / max(1, sum(totals.values()))


def _edges_of(graph: Graph) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
    topology = graph.topology
    relation = np.empty(0, np.int8) if topology.relation is None else as_numpy(topology.relation)
    return as_numpy(topology.indptr), as_numpy(topology.indices), relation


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, _BLOCK_EDGES):
        yield first, min(count, first + _BLOCK_EDGES)


def _count_values(numbers: NDArray[np.int64]) -> dict[int, int]:
    values, counts = np.unique(numbers, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


@parallel_kernel
def _mark_shared(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    relation: NDArray[Any],
    head: NDArray[np.int64],
    link_relation: NDArray[np.int64],
    tail: NDArray[np.int64],
    limit: int,
    out: NDArray[Any],
) -> None:
    for i in prange(len(head)):
        h, r, t = head[i], link_relation[i], tail[i]
        mark = 0
        row = indices[indptr[t] : indptr[t + 1]]
        at = indptr[t] + np.searchsorted(row, h)
        while at < indptr[t + 1] and indices[at] == h:
            own = relation[at] if len(relation) else 0
            if own == r:
                mark |= _SAME
            elif own < limit:
                mark |= _PARALLEL
            at += 1
        row = indices[indptr[h] : indptr[h + 1]]
        at = indptr[h] + np.searchsorted(row, t)
        # A loop would be its own inverse.
        while h != t and at < indptr[h + 1] and indices[at] == t:
            if (relation[at] if len(relation) else 0) < limit:
                mark |= _INVERSE
            at += 1
        out[i] = mark


@parallel_kernel
def _list_inverses(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    relation: NDArray[Any],
    rows: NDArray[np.int64],
    first: int,
    plain: NDArray[np.bool_],
    limit: int,
    count: NDArray[np.int64],
    ends: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Count the distinct relations that lead each edge of a block back; with ``ends`` list them instead."""
    for i in prange(len(rows)):
        if not plain[i]:
            continue
        source = indices[first + i]
        row = indices[indptr[source] : indptr[source + 1]]
        at = indptr[source] + np.searchsorted(row, rows[i])
        found, before = 0, -1
        # Edges of two nodes are sorted by relation, so equal ones are adjacent.
        while at < indptr[source + 1] and indices[at] == rows[i]:
            own = relation[at] if len(relation) else 0
            if own < limit and own != before:
                if len(ends):
                    out[ends[i] - count[i] + found] = own
                found += 1
                before = own
            at += 1
        if not len(ends):
            count[i] = found
