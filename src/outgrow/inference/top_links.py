"""The best answers to questions for links: all candidates are scored, in blocks, and the best are kept.

Letters: ``m`` rows of embeddings, ``F`` columns, ``Q`` questions, ``N`` candidates of a block, ``k`` answers of each.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.graph.link_answers import KnownAnswers, LinkQuestions
from outgrow.nn.decoder import Decoder

_BLOCK_BYTES = 64 << 20
_NO_NODE = -1


class BestAnswers(NamedTuple):
    """The best answers to each question, by falling score; of nodes with the same score the smaller number is first.

    Attributes:
        nodes: ``[Q, k]`` int64; -1 where there are fewer.
        scores: ``[Q, k]`` float32; -inf where there are fewer.
    """

    nodes: Tensor
    scores: Tensor


class EmbeddedNodes(NamedTuple):
    """Embeddings of nodes.

    Attributes:
        nodes: ``[m]`` int64, ascending.
        rows: ``[m, F]``; may be mapped from a file.
    """

    nodes: Tensor
    rows: Tensor

    def read_rows(self, nodes: Tensor) -> Tensor:
        """Return ``[n, F]`` float64 rows of some of the nodes."""
        return self.rows[torch.searchsorted(self.nodes, nodes)].double()


@torch.no_grad()
def find_best_answers(
    embedded: EmbeddedNodes,
    decoder: Decoder,
    questions: LinkQuestions,
    ranges: Sequence[tuple[int, int]],
    left_out: KnownAnswers,
    top: int,
) -> BestAnswers:
    """Return the best answers to questions, exactly: every candidate is scored.

    Scores are computed in float64 and rounded to float32, as where links are ranked: the rounding of a product may
    depend on the position of a row among others. Memory is bounded but for the answers.

    Args:
        embedded: Embeddings of all candidates and all nodes asked about.
        decoder: Scores links.
        questions: The questions.
        ranges: Ranges of candidates, ascending: first node, and the node after the last one.
        left_out: Answers that are left out. The node asked about always is, since loops are no links.
        top: ``k``.

    Raises:
        InputError: A score is not a number.
    """
    # The caller's decoder keeps its type.
    scorer = copy.deepcopy(decoder).double().eval()
    nodes = torch.full((len(questions.nodes), top), _NO_NODE)
    scores = torch.full((len(questions.nodes), top), -torch.inf)
    width = max(1, embedded.rows.shape[1])
    step = max(1, _BLOCK_BYTES // (8 * width))
    for begin, end in ranges:
        for first in range(begin, end, step):
            last = min(first + step, end)
            candidates = torch.arange(first, last)
            rows = embedded.read_rows(candidates)
            # As many questions at a time as keep scores in bounds.
            group = max(1, _BLOCK_BYTES // (8 * max(last - first, width)))
            for at in range(0, len(nodes), group):
                some = slice(at, min(at + group, len(nodes)))
                found = _score_block(embedded, scorer, questions, some, rows)
                _require_numbers(found, questions.nodes[some], first)
                _mask_answers(found, questions.nodes[some], left_out, at, first)
                nodes[some], scores[some] = _merge_best(nodes[some], scores[some], found, first, top)
    return BestAnswers(nodes, scores)


def _score_block(
    embedded: EmbeddedNodes, decoder: Decoder, questions: LinkQuestions, some: slice, rows_NF: Tensor
) -> Tensor:
    asked = embedded.read_rows(questions.nodes[some])
    relation = torch.full((len(asked),), questions.relation or 0)
    replaced = "tail" if questions.asks_tails else "head"
    return decoder.score_candidates(asked, relation, rows_NF, replaced=replaced).float()


def _mask_answers(score_QN: Tensor, asked_Q: Tensor, left_out: KnownAnswers, at: int, first: int) -> None:
    """Give answers that are left out the lowest score."""
    last = first + score_QN.shape[1]
    borders = torch.searchsorted(left_out.answer, torch.tensor([first, last]))
    here = slice(*borders.tolist())
    question, answer = left_out.question[here] - at, left_out.answer[here] - first
    mine = (question >= 0) & (question < len(score_QN))
    score_QN[question[mine], answer[mine]] = -torch.inf
    itself = ((asked_Q >= first) & (asked_Q < last)).nonzero()[:, 0]
    score_QN[itself, asked_Q[itself] - first] = -torch.inf


def _merge_best(nodes_QK: Tensor, score_QK: Tensor, found_QN: Tensor, first: int, top: int) -> tuple[Tensor, Tensor]:
    """Return the best of those before and those of a block of greater nodes."""
    place = _find_best_columns(found_QN, min(top, found_QN.shape[1]))
    scores = torch.cat([score_QK, found_QN.gather(1, place)], 1)
    nodes = torch.cat([nodes_QK, place + first], 1)
    # Stable: of equal scores the smaller node is first, which was found before.
    scores, order = torch.sort(scores, dim=1, descending=True, stable=True)
    nodes = nodes.gather(1, order)[:, :top]
    scores = scores[:, :top]
    return torch.where(torch.isneginf(scores), _NO_NODE, nodes), scores


def _find_best_columns(score_QN: Tensor, count: int) -> Tensor:
    """Return the columns of the greatest scores of each row, descending; of equal ones the first columns."""
    # Adding zero makes -0 and 0 the same.
    bits = (score_QN + 0.0).view(torch.int32).long()
    # In this order integers compare as the numbers whose bits they are.
    keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    # Keys are distinct, so `topk`, which may choose any of equal ones, has one answer.
    keys = (keys << 32) - torch.arange(score_QN.shape[1])
    return keys.topk(count, dim=1).indices


def _require_numbers(score_QN: Tensor, asked_Q: Tensor, first: int) -> None:
    wrong = torch.isnan(score_QN).nonzero()
    if len(wrong):
        question, column = wrong[0].tolist()
        raise InputError(
            "the score of a link is not a number",
            needed="finite embeddings and parameters of the decoder",
            got=f"NaN for the nodes {int(asked_Q[question])} and {first + column}",
            repair="check that the features are finite, and that the model was trained without diverging",
        )
