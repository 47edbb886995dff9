"""Answers to questions for links: which nodes may be the other end, and which are known to be.

A question names a node and a relation, and asks for tails (the node is the head) or for heads. All edges of a graph are
known links, and so are those that it comes with to validate and to test on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.graph.inverse_relations import has_inverses
from outgrow.ops.backend import as_numpy
from outgrow.ops.rows.gather import concat_ranges

_BLOCK_EDGES = 1 << 22


class LinkQuestions(NamedTuple):
    """Questions for the other end of links, all of one relation.

    Attributes:
        nodes: ``[Q]`` int64, the nodes asked about.
        relation: Number of the relation; None for links of any relation.
        asks_tails: Whether the nodes are heads, so that tails are asked for; else heads are.
    """

    nodes: Tensor
    relation: int | None
    asks_tails: bool


class KnownAnswers(NamedTuple):
    """Nodes that are known to answer some questions, by ascending node; each once for a question.

    Attributes:
        question: ``[A]`` int64, the number of a question.
        answer: ``[A]`` int64, a node.
    """

    question: Tensor
    answer: Tensor


def find_known_answers(graph: Graph, questions: LinkQuestions) -> KnownAnswers:
    """Return the other ends of all known links of the nodes asked about.

    Without relations a link is one in both directions, as where it is evaluated. Where a graph has the inverse of each
    relation, a link of either is one of both. Edges are read in blocks.

    Args:
        graph: The graph; may be mapped from a file.
        questions: The questions.
    """
    distinct, place = torch.unique(questions.nodes, return_inverse=True)
    asked = as_numpy(distinct)
    pairs = list[NDArray[np.int64]]()
    for relation, is_head in _equivalent_forms(graph, questions):
        for head, number, tail in _iterate_links(graph):
            own, other = (head, tail) if is_head else (tail, head)
            there = np.isin(own, asked)
            if relation is not None:
                there &= number == relation
            pairs.append(np.stack([np.searchsorted(asked, own[there]), other[there].astype(np.int64)], 1))
    found = (
        torch.from_numpy(np.unique(np.concatenate(pairs), axis=0)) if pairs else torch.empty((0, 2), dtype=torch.int64)
    )
    # Nodes may be asked about more than once.
    first = torch.searchsorted(found[:, 0].contiguous(), place)
    count = torch.searchsorted(found[:, 0].contiguous(), place, right=True) - first
    question = torch.repeat_interleave(torch.arange(len(place)), count)
    answer = found[concat_ranges(first, count), 1]
    order = torch.argsort(answer, stable=True)
    return KnownAnswers(question[order], answer[order])


def find_answer_ranges(graph: Graph, questions: LinkQuestions) -> list[tuple[int, int]]:
    """Return the ranges of nodes that may answer: of each node type that edges of the relation lead to.

    Returns:
        First node and the node after the last one of each type, ascending; all nodes where they have no types.

    Raises:
        InputError: No edge of the relation has a node of the type asked about at that end.
    """
    if not graph.node_types:
        return [(0, graph.num_nodes)]
    borders = np.asarray(graph.type_borders)
    own = set(np.unique(np.searchsorted(borders[1:], as_numpy(questions.nodes), side="right")).tolist())
    pairs = set[tuple[int, int]]()
    for relation, is_head in _equivalent_forms(graph, questions):
        for pair in _list_type_pairs(graph, relation, borders):
            pairs.add(pair if is_head else pair[::-1])
    names = [kind.name for kind in graph.node_types]
    if lost := own - {first for first, _ in pairs}:
        name = "links" if questions.relation is None else f"links of {graph.relation_names[questions.relation]!r}"
        end = "heads" if questions.asks_tails else "tails"
        raise InputError(
            f"{name} have no {end} of the type {names[min(lost)]!r}",
            needed=f"{end} of {', '.join(names[each] for each in sorted({first for first, _ in pairs})) or 'no type'}",
            got=f"a node of the type {names[min(lost)]!r}",
            repair="ask for another relation, or give the node as the other end of links",
        )
    return [
        (int(borders[each]), int(borders[each + 1])) for each in sorted({other for one, other in pairs if one in own})
    ]


def _equivalent_forms(graph: Graph, questions: LinkQuestions) -> list[tuple[int | None, bool]]:
    """Return the relations and sides of links that answer: the relation itself, and its inverse the other way."""
    relation, asks_tails = questions.relation, questions.asks_tails
    if graph.topology.relation is None:
        return [(None, True), (None, False)]
    forms: list[tuple[int | None, bool]] = [(relation, asks_tails)]
    if has_inverses(graph.relation_names):
        half = graph.num_relations // 2
        forms.append((None if relation is None else (relation + half) % (2 * half), not asks_tails))
    return forms


def _iterate_links(graph: Graph) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Yield heads, relations and tails of all known links, loops included, in blocks."""
    for first, last, head, number in _iterate_edges(graph):
        # Edges are sorted by destination: of a block only the rows that it touches are looked at.
        ends = as_numpy(graph.topology.indptr)
        yield head, number, np.searchsorted(ends, np.arange(first, last), side="right") - 1
    for part in graph.held_out_links or ():
        yield as_numpy(part.head), as_numpy(part.relation), as_numpy(part.tail)


def _iterate_edges(graph: Graph) -> Iterator[tuple[int, int, NDArray[Any], NDArray[Any]]]:
    topology = graph.topology
    for first in range(0, topology.num_edges, _BLOCK_EDGES):
        last = min(first + _BLOCK_EDGES, topology.num_edges)
        relation = topology.relation
        number = np.zeros(last - first, np.int8) if relation is None else as_numpy(relation[first:last])
        yield first, last, as_numpy(topology.indices[first:last]), number


def _list_type_pairs(graph: Graph, relation: int | None, borders: NDArray[Any]) -> set[tuple[int, int]]:
    """Return the types of head and tail of the links of a relation."""
    kinds = len(borders) - 1
    found = set[tuple[int, int]]()
    for head, number, tail in _iterate_links(graph):
        mine = slice(None) if relation is None else number == relation
        ends = (np.searchsorted(borders[1:], each[mine], side="right") for each in (head, tail))
        first, second = ends
        found |= {divmod(code, kinds) for code in np.unique(first * kinds + second).tolist()}
    return found
