"""How high a model ranks true links among all that might be in their place: mean reciprocal rank, hits at k.

For each link both ends are asked for: which node is the tail of this head and relation, which the head of this tail.
Candidates are all nodes of the type of the answer but the one asked for: loops are no links. Other true answers are no
competitors ("filtered"; Bordes et al., NeurIPS 2013), in whatever part of the split; of candidates with the same score
half count as better.
Letters: ``n`` own nodes, ``F`` columns, ``Q`` questions, ``A`` answers that are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.shard import Share
from outgrow.graph.link_split import Links
from outgrow.nn.decoder import Decoder
from outgrow.ops.link_scores import count_above
from outgrow.ops.rows.gather import spans

HITS = (1, 3, 10)
"""The ``k`` of hits at k."""
CHUNK_BYTES = 64 << 20
"""Of the scores that are there at a time, with what is compared."""


class _Questions(NamedTuple):
    """Which node has a link of a relation with this one?

    Attributes:
        node: ``[Q]`` int64.
        relation: ``[Q]`` int64.
        answer: ``[Q]`` int64, the node that is right.
    """

    node: Tensor
    relation: Tensor
    answer: Tensor

    def take(self, at: Tensor) -> _Questions:
        return _Questions(*(each[at] for each in self))


class Answers:
    """All links that are known, as answers to questions. Final.

    Args:
        known: The links; loops are none.
        num_nodes: ``V``.
        directed: Whether a link says nothing of its reverse.
    """

    def __init__(self, known: Links, num_nodes: int, *, directed: bool) -> None:
        self._num_nodes = num_nodes
        self._relations = int(known.relation.max()) + 1 if len(known) else 1
        sides = [self._named(_asked(known, side)) for side in (0, 1)]
        self._sides = [torch.unique(names) for names in (sides if directed else [torch.cat(sides)])]

    def of(self, asked: _Questions, side: int) -> tuple[Tensor, Tensor]:
        """``[A]`` and ``[A]`` int64: number of the question, and an answer to it; none twice.

        Args:
            asked: The questions.
            side: Whether they ask for tails (0) or for heads (1).
        """
        known = self._sides[min(side, len(self._sides) - 1)]
        names = self._named(asked._replace(answer=torch.zeros_like(asked.answer)))
        first = torch.searchsorted(known, names)
        count = torch.searchsorted(known, names + self._num_nodes) - first
        return torch.repeat_interleave(count), known[spans(first, count)] % self._num_nodes

    def _named(self, asked: _Questions) -> Tensor:
        """One number for a node, a relation and an answer."""
        return (asked.node * self._relations + asked.relation) * self._num_nodes + asked.answer


class Ranks(NamedTuple):
    """Ranks of the answers to all questions.

    Attributes:
        rank: ``[Q]`` float64, from 1.
    """

    rank: Tensor

    def figures(self) -> dict[str, float]:
        """``mrr``, and ``hits@k`` for some k; NaN if nothing was asked."""
        known = {"mrr": 1 / self.rank} | {f"hits@{k}": (self.rank <= k).double() for k in HITS}
        return {name: values.mean().item() for name, values in known.items()}


class Ranking:
    """Ranks links by the output of a model. Final.

    All workers ask the same questions; each compares the right answer with the nodes that it owns.

    Args:
        share: The nodes that the worker owns.
        decoder: Scores links.
        links: What to rank.
        answers: To these questions and others.
        ends: ``[T + 1]`` int64: nodes ``ends[t]`` to ``ends[t + 1] - 1`` are of type ``t``.
    """

    def __init__(self, share: Share, decoder: Decoder, links: Links, answers: Answers, ends: Tensor) -> None:
        self.share, self.decoder, self.links, self.answers, self.ends = share, decoder, links, answers, ends

    @torch.no_grad()
    def ranks(self, out: Tensor) -> Ranks:
        """The ranks of all answers. All workers together.

        Args:
            out: ``[n, F]`` of the own nodes.
        """
        own, found = self.share.own, list[Tensor]()
        for first, last in pairwise(self.ends.tolist()):
            low, high = torch.searchsorted(own, torch.tensor([first, last])).tolist()
            candidates, nodes = out[low:high].double(), own[low:high]
            for asked, side in self._asking(first, last):
                found.append(self._rank(out, asked, side, candidates, nodes))
        return Ranks(torch.cat(found) if found else torch.empty(0, dtype=torch.float64))

    def _asking(self, first: int, last: int) -> Iterator[tuple[_Questions, int]]:
        """Chunks of questions whose answers are nodes ``first`` to ``last - 1``, and whether these are heads."""
        share = self.share
        size = max(1, CHUNK_BYTES * share.comm.size // (8 * max(1, share.topology.num_nodes)))
        for side in (0, 1):
            asked = _asked(self.links, side)
            here = ((asked.answer >= first) & (asked.answer < last)).nonzero()[:, 0]
            for part in torch.split(here, size) if len(here) else ():
                yield asked.take(part), side

    def _rank(self, out: Tensor, asked: _Questions, side: int, candidates: Tensor, nodes: Tensor) -> Tensor:
        comm = self.share.comm
        # in float64, since how products are rounded depends on the place of a row among others
        score_QN = (self._queries(out, asked).double() @ candidates.T).float()
        at, mine = _places(nodes, asked.answer)
        right = score_QN.new_zeros(len(at))
        right[mine] = score_QN[mine, at[mine]]
        comm.sum_(right)
        question, answer = self.answers.of(asked, side)
        itself = torch.arange(len(asked.node))
        question, answer = torch.cat([question, itself]), torch.cat([answer, asked.node])
        at, mine = _places(nodes, answer)
        question, at = question[mine], at[mine]
        better = count_above(score_QN, right)
        theirs, bar = score_QN[question, at], right[question]
        for row, taken in enumerate((~(theirs <= bar), theirs == bar)):
            better[row] -= torch.bincount(question[taken.cpu()], minlength=len(asked.node))
        above, same = torch.unbind(comm.sum_(better).double())
        return 1 + above + same / 2

    def _queries(self, out: Tensor, asked: _Questions) -> Tensor:
        """``[Q, F]`` on all workers, from the one that owns each node."""
        at, mine = _places(self.share.own, asked.node)
        queries = out.new_zeros(len(at), out.shape[1])
        queries[mine] = self.decoder.queries(out[at[mine]], asked.relation[mine].to(out.device))
        return self.share.comm.sum_(queries, Kind.ACTIVATIONS)


def _asked(links: Links, side: int) -> _Questions:
    """For the tails of links (side 0), or for their heads."""
    node, answer = (links.head, links.tail) if side == 0 else (links.tail, links.head)
    return _Questions(node, links.relation, answer)


def _places(own: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """``[N]`` int64 and ``[N]`` bool: places of nodes among ascending ``own``, and which are there."""
    at = torch.searchsorted(own, nodes).clamp(max=max(0, len(own) - 1))
    there = own[at] == nodes if len(own) else torch.zeros(len(nodes), dtype=torch.bool)
    return at, there
