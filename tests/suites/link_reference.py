"""What the steps of links should give: in plain torch and Python, link by link, on a graph without the hidden edges."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from outgrow.graph.topology import Topology
from outgrow.nn import DistMult, Model
from outgrow.ops.link_scores import sample_negatives
from outgrow.ops.rng import fold_in, permute_range
from suites.exactness import EPOCH, Gradient
from suites.link_steps import GRAPHS, OUT, SEED, Case, LossOptions, features_of, fresh, model_of
from support import destinations_of, whole_blocks

ORDER_KEY = -1
PAIRS_KEY, NEGATIVES_KEY, CANDIDATES_KEY = (int.from_bytes(name) for name in (b"PAIR", b"LINK", b"CAND"))


def number_of(key: int) -> float:
    """The number in [0, 1) of a 64-bit hash."""
    return (key >> 11) * 2.0**-53


class Link(NamedTuple):
    """A link and the number of its edge."""

    head: int
    tail: int
    relation: int
    number: int


class Facts:
    """The links of a case in one step, edge by edge."""

    def __init__(self, case: Case, step: int) -> None:
        self.case, self.topology = case, fresh(case)
        ends = list(GRAPHS[case.graph][1])
        self.spans = list(pairwise(ends))
        tail, head = destinations_of(self.topology.block.edges).tolist(), self.topology.indices.tolist()
        self.directed = self.topology.relation is not None
        kinds = [0] * len(head) if self.topology.relation is None else self.topology.relation.tolist()
        edges = [Link(h, t, r, number) for number, (h, t, r) in enumerate(zip(head, tail, kinds, strict=True))]
        self.known = [
            link for link in edges if link.head != link.tail and (not case.relations or link.relation in case.relations)
        ]
        predicted = {frozenset(link[:2]) for link in self.known}
        if case.batch:
            self._ask_batch(edges, step)
            return
        first, last = step / case.steps, (step + 1) / case.steps
        asked = last if not case.hide or case.hide >= 1 / case.steps else first + case.hide
        self.asked = [link for link in self.known if first <= self.draw(link) < asked]
        until = first + case.hide
        self.kept = [
            link.head == link.tail
            or frozenset(link[:2]) not in predicted
            or not (first <= self.draw(link) < until or self.draw(link) + 1 < until)
            for link in edges
        ]

    def _ask_batch(self, edges: list[Link], step: int) -> None:
        """Ask about a batch of links, and leave out what lies between their ends."""
        first, count, key = step * self.case.batch, len(self.known), fold_in(SEED, EPOCH, ORDER_KEY)
        places = permute_range(first, min(count, first + self.case.batch), count, key).tolist()
        self.asked = [self.known[place] for place in places]
        pairs = {frozenset(link[:2]) for link in self.asked} if self.case.exclude else set()
        self.kept = [frozenset(link[:2]) not in pairs for link in edges]

    def answers(self, side: int, node: int, relation: int) -> set[int]:
        """The nodes that a query for the end other than ``side`` has as answers: without relations, both ways."""
        found = {link[1 - side] for link in self.known if (link[side], link.relation) == (node, relation)}
        return found if self.directed else found | {link[side] for link in self.known if link[1 - side] == node}

    def draw(self, link: Link) -> float:
        low, high = sorted(link[:2])
        return number_of(fold_in(fold_in(SEED, EPOCH, PAIRS_KEY), low, high))

    def visible(self) -> tuple[Topology, Tensor]:
        """The graph without the hidden edges."""
        kept = torch.tensor(self.kept)
        before = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])
        given = self.topology
        return Topology(
            indptr=before[given.indptr],
            indices=given.indices[kept],
            relation=None if given.relation is None else given.relation[kept],
            weight=None if given.weight is None else given.weight[kept],
        ), kept

    def span_of(self, node: int) -> tuple[int, int]:
        return next((first, last) for first, last in self.spans if first <= node < last)

    def candidates(self, span: tuple[int, int], key: int) -> list[int]:
        """The nodes of a type that stand in for all links of the step."""
        case, kind = self.case, self.spans.index(span)
        key = fold_in(key, CANDIDATES_KEY, kind)
        if case.sampling == "all" or case.loss == "k-vs-all":
            return list(range(*span))
        if case.sampling == "shared":
            size = span[1] - span[0]
            return sorted(span[0] + each for each in permute_range(0, min(size, case.negatives), size, key).tolist())
        if case.sampling == "degree":
            return self._drawn_by_degree(span, key)
        time = dict[int, float]()
        for link in self.asked:
            for place, node in enumerate(link[:2]):
                drawn = number_of(fold_in(fold_in(key, place), link.number))
                if span[0] <= node < span[1]:
                    time[node] = min(drawn, time.get(node, 2.0))
        return sorted(sorted(time, key=lambda node: time[node])[: case.negatives])

    def _drawn_by_degree(self, span: tuple[int, int], key: int) -> list[int]:
        """Nodes drawn one after the other, without those drawn before."""
        weight = {node: sum(node in link[:2] for link in self.known) ** 0.75 for node in range(*span)}
        linked = [node for node in weight if weight[node]]
        count, found = min(self.case.negatives, len(linked)), list[int]()
        ends = torch.tensor([*weight.values()], dtype=torch.float64).cumsum(0).tolist()
        for number in range(16 * count if 2 * count <= len(linked) else 0):
            node = span[0] + bisect.bisect_right(ends, number_of(fold_in(key, number)) * ends[-1])
            if node not in found and len(found) < count:
                found.append(node)
        time = {
            node: -math.log1p(-number_of(fold_in(fold_in(key, 1), node - span[0]))) / weight[node]
            for node in linked
            if node not in found
        }
        return sorted((found + sorted(time, key=lambda node: time[node]))[:count])


def num_steps(case: Case) -> int:
    """The steps of an epoch."""
    return math.ceil(len(Facts(case, 0).known) / case.batch) if case.batch else case.steps


def reference(case: Case) -> Gradient:
    """The losses and the gradients of an epoch, link by link."""
    model = model_of(case)
    named = dict(model.named_parameters())
    total, sums = 0.0, {name: torch.zeros_like(value) for name, value in named.items()}
    for step in range(num_steps(case)):
        facts, key = Facts(case, step), fold_in(SEED, EPOCH, step)
        if not facts.asked:
            continue
        topology, _ = facts.visible()
        out = model(whole_blocks(model, topology), features_of(case), key)
        loss = loss_of(case, facts, model, out, key)
        total += loss.item()
        for name, part in zip(named, torch.autograd.grad(loss, list(named.values()), allow_unused=True), strict=True):
            if part is not None:
                sums[name] += part
    return Gradient(total, sums)


def loss_of(case: Case, facts: Facts, model: Model, out: Tensor, key: int) -> Tensor:
    """The mean loss of the links that a step asks about."""
    assert model.decoder is not None

    def score(head: int | list[int], relation: int, tail: int | list[int]) -> Tensor:
        product = out[head] * out[tail]
        if isinstance(model.decoder, DistMult):
            return (product * model.decoder.relation[relation]).sum(-1)
        return product.sum(-1) / OUT**0.5

    parts = []
    if case.loss == "k-vs-all":
        queries = {
            (side, link[side], link.relation, facts.span_of(link[1 - side])) for link in facts.asked for side in (0, 1)
        }
        parts = [all_answers(facts, query, score) for query in sorted(queries)]
        return torch.stack(parts).mean()
    shared = {span: facts.candidates(span, key) for span in facts.spans} if case.sampling != "uniform" else {}
    for link in facts.asked:
        positive = score(link.head, link.relation, link.tail)
        if not shared:
            parts.append(grade(case, positive, own_negatives(case, link, key, score)))
            continue
        for side in (0, 1):
            node, answer = link[side], link[1 - side]
            known = facts.answers(side, node, link.relation) if case.filters else {answer}
            ends = shared[facts.span_of(answer)]
            wrong = [each for each in ends if each not in known and (case.itself or each != node)]
            scores = score(*((node, link.relation, wrong) if side == 0 else (wrong, link.relation, node)))
            parts.append(grade(case, positive, scores, len(ends)))
    loss = torch.stack(parts).mean()
    if case.regularizer is not None:
        power = 3 if case.regularizer == "n3" else 2
        rows = [row for link in facts.asked for row in (out[link.head], out[link.tail])]
        if isinstance(model.decoder, DistMult):
            rows += [model.decoder.relation[link.relation] for link in facts.asked]
        loss = loss + 0.3 * torch.stack(rows).abs().pow(power).sum() / len(facts.asked)
    return loss


def own_negatives(case: Case, link: Link, key: int, score: Callable[..., Tensor]) -> Tensor:
    """The scores of what is drawn for one link alone."""
    pairs = []
    for k in range(case.negatives):
        given = (torch.tensor([each]) for each in (link.head, link.tail, link.number))
        ends = torch.tensor(GRAPHS[case.graph][1])
        kept, drawn = (int(each) for each in sample_negatives(*given, ends, fold_in(key, NEGATIVES_KEY, k)))
        pairs.append((link.head, drawn) if kept == link.head else (drawn, link.tail))
    heads, tails = (list(ends) for ends in zip(*pairs, strict=True))
    return score(heads, link.relation, tails)


def grade(case: Case, positive: Tensor, negatives: Tensor, count: int | None = None) -> Tensor:
    """The loss of one link from its score and those of its negatives."""
    options, size = LossOptions(), len(negatives) if count is None else count
    assert options.margin is not None
    assert options.adversarial_temperature is not None
    if case.loss == "bce":
        return (-functional.logsigmoid(positive) - functional.logsigmoid(-negatives).sum()) / (1 + size)
    if case.loss == "softmax":
        return -torch.log_softmax(torch.cat([positive[None], negatives]), 0)[0]
    if case.loss == "margin":
        return torch.relu(options.margin - positive + negatives).sum() / max(1, size)
    weight = torch.softmax(options.adversarial_temperature * negatives, 0).detach()
    wrong = (weight * functional.logsigmoid(-negatives - options.margin)).sum()
    return -(functional.logsigmoid(options.margin + positive) + wrong) / 2


def all_answers(facts: Facts, query: tuple[int, int, int, tuple[int, int]], score: Callable[..., Tensor]) -> Tensor:
    """The mean binary cross-entropy of all nodes as answers to a query."""
    side, node, relation, span = query
    known = facts.answers(side, node, relation)
    smoothing, size = LossOptions().label_smoothing, span[1] - span[0]
    others = [each for each in range(*span) if facts.case.itself or each != node]
    found = score(*((node, relation, others) if side == 0 else (others, relation, node)))
    aims = found.new_tensor([(1 - smoothing) * (each in known) + smoothing / size for each in others])
    return (functional.softplus(found) - aims * found).sum() / size
