"""How links are trained on: steps of an epoch, hidden edges, the loss, negatives and the regulariser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from outgrow.engine.edge_labels import EdgeLabels
from outgrow.nn.link_losses import AllAnswers, BinaryCrossEntropy, LinkLoss
from outgrow.ops.pair_draws import PairRange
from outgrow.ops.rng import fold_in

UNIFORM, SHARED, DEGREE, IN_BATCH, ALL = "uniform", "shared", "degree", "in-batch", "all"
NEGATIVE_SAMPLING = {
    UNIFORM: "nodes drawn for each link",
    SHARED: "nodes drawn for all links of a step",
    DEGREE: "likewise, in proportion to a power of their degree",
    IN_BATCH: "ends of other links of the step",
    ALL: "all nodes",
}
"""What stands in for an end of a link."""
N3, L2 = "n3", "l2"
REGULARIZERS = {
    N3: "cubes of the absolute values of rows (Lacroix et al., ICML 2018)",
    L2: "squares of rows",
}
_PAIRS = 0x50414952
"""Part of the key of pairs, far from steps."""


class PairsOfStep(NamedTuple):
    """The pairs of nodes of one step.

    Attributes:
        asked: Those whose links are asked about; None for all pairs.
        hidden: Those whose edges are hidden; None for none.
    """

    asked: PairRange | None
    hidden: PairRange | None


@dataclass(frozen=True, kw_only=True)
class LinkSteps:
    """Steps of an epoch over the links of a graph.

    In each epoch every pair of nodes draws a number in [0, 1), and with it all edges between the two. Step ``p`` of
    ``N`` asks about the pairs from ``p / N`` to ``(p + 1) / N``, and hides those from ``p / N`` to ``p / N + hide``; it
    asks about no pair that it would not hide.

    Attributes:
        num_steps: ``N``, at least 1.
        hide: Share of the pairs whose edges a step hides from the layers; 0 for none.
    """

    num_steps: int = 1
    hide: float = 0.0

    def pairs_of_step(self, seed: int, epoch: int, number: int) -> PairsOfStep:
        """Return the pairs of step ``number``."""
        key = fold_in(seed, epoch, _PAIRS)
        first, last = number / self.num_steps, (number + 1) / self.num_steps
        if self.hide == 0:
            return PairsOfStep(None if self.num_steps == 1 else PairRange(key, first, last), None)
        end = first + self.hide
        # The larger of both, as rounding must leave no pair that is asked about and not hidden.
        hidden = PairRange(key, first, end if self.hide < 1 / self.num_steps else max(last, end))
        return PairsOfStep(PairRange(key, first, min(last, end) if end < last else last), hidden)


@dataclass(frozen=True, kw_only=True)
class Regularizer:
    """A penalty on the rows of the links of a step and on the decoder's rows of their relations.

    Attributes:
        name: A name of `REGULARIZERS`.
        weight: Factor of the mean penalty of a link.
    """

    name: str
    weight: float

    def penalize_rows(self, squared_NK: Tensor) -> Tensor:
        """Return ``[N]``: the penalty of each row, from the squares of its numbers (`Decoder.squared_magnitudes`)."""
        return (squared_NK.pow(1.5) if self.name == N3 else squared_NK).sum(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkOptions:
    """How the links of a graph are trained on.

    Attributes:
        ends: ``[T + 1]`` int64: nodes ``ends[t]`` to ``ends[t + 1] - 1`` are of type ``t``.
        negatives: Negatives of a link, or of all links of a step on either side.
        relations: ``[n]`` int64, the relations whose edges are links; None for all.
        steps: Steps of an epoch.
        loss: The loss.
        sampling: A name of `NEGATIVE_SAMPLING`.
        regularizer: The regulariser; None for none.
        filters_negatives: Whether candidates that are known answers to a query are no negatives of its links. Without,
            they are of those links whose own answer is another one; for `SoftmaxCrossEntropy` alone.
        ranks_self: Whether the node that is asked about is a negative too, as it is where it is ranked.
        excludes_targets: Whether layers do not see the edges between the ends of the links of a batch; for mini-batches
            alone, as steps over the whole graph hide edges (``steps``).
        labels: Targets of edges, which are learned in the place of which edges there are; without negatives. None for
            links.
    """

    ends: Tensor
    negatives: int = 1
    relations: Tensor | None = None
    steps: LinkSteps = field(default_factory=LinkSteps)
    loss: LinkLoss | AllAnswers = field(default_factory=BinaryCrossEntropy)
    sampling: str = UNIFORM
    regularizer: Regularizer | None = None
    filters_negatives: bool = True
    ranks_self: bool = False
    excludes_targets: bool = False
    labels: EdgeLabels | None = None

    @property
    def scores_all_nodes(self) -> bool:
        """Whether all nodes of the answer's type are candidates of each query."""
        return self.sampling == ALL or isinstance(self.loss, AllAnswers)

    @property
    def ranks_candidates(self) -> bool:
        """Whether links of a step have candidates in common, which queries are scored with."""
        return self.sampling != UNIFORM or isinstance(self.loss, AllAnswers)
