"""Mutants of the ranking of links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from outgrow.inference import link_ranking
from outgrow.inference.link_ranking import KnownLinks, LinkRanker
from outgrow.inference.query_scores import QueryScores


@contextmanager
def known_answers_ranked() -> Iterator[None]:
    """Other true answers count as wrong ones."""
    none = torch.empty(0, dtype=torch.int64)
    with patch.object(KnownLinks, "answers_to", lambda self, queries, side: (none, none)):
        yield


@contextmanager
def heads_asked_for_as_tails() -> Iterator[None]:
    """Heads are ranked by what links from the queried node to them would score."""
    with patch.object(link_ranking, "ENDS", ("tail", "tail")):
        yield


@contextmanager
def ties_worse() -> Iterator[None]:
    """No candidate with an equal score counts as better."""
    count_above, count_pairs = QueryScores.count_above, QueryScores.count_pairs

    def first_row(counts: Tensor) -> Tensor:
        return counts * torch.tensor([[1], [0]])

    with (
        patch.object(QueryScores, "count_above", lambda self, *given: first_row(count_above(self, *given))),
        patch.object(QueryScores, "count_pairs", lambda self, *given: first_row(count_pairs(self, *given))),
    ):
        yield


@contextmanager
def queried_node_always_ranked() -> Iterator[None]:
    """The queried node is a candidate, whether it should be or not."""
    right = LinkRanker.__init__

    def begin(self: LinkRanker, *given: Any, **options: Any) -> None:
        right(self, *given, **{**options, "rank_self": True})

    with patch.object(LinkRanker, "__init__", begin):
        yield


MUTANTS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (known_answers_ranked, heads_asked_for_as_tails, ties_worse, queried_node_always_ranked)
}
