"""Optimizers of embedding rows. Each row is updated by its owner alone, so the update is the same whoever that is.

``adam`` updates all rows in every step, as `torch.optim.Adam` does; ``sparse-adam`` only those that have a gradient,
with moments that stay as they are for the others and the number of all steps in the correction of their bias, as
`torch.optim.SparseAdam` does; ``adagrad`` is `torch.optim.Adagrad`, for which both are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from outgrow.core.validation import validate_choice
from outgrow.ops.row_updates import AdamStep, step_adagrad, step_adam

ADAM, SPARSE_ADAM, ADAGRAD = "adam", "sparse-adam", "adagrad"
EMBEDDING_OPTIMIZERS = (ADAM, SPARSE_ADAM, ADAGRAD)
"""Optimizers of node embeddings by name."""


@dataclass(frozen=True, kw_only=True)
class RowOptimizer:
    """An optimizer of rows.

    Attributes:
        name: One of `EMBEDDING_OPTIMIZERS`.
        lr: Learning rate.
        betas: Decay of both moments of Adam.
        eps: Added to the root of the second moment of Adam.
    """

    name: str = ADAM
    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        validate_choice("embedding_optimizer", self.name, dict.fromkeys(EMBEDDING_OPTIMIZERS))

    @property
    def updates_all_rows(self) -> bool:
        """Whether rows without a gradient are changed too."""
        return self.name == ADAM

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of what is kept of each element."""
        return ("square-sum",) if self.name == ADAGRAD else ("first-moment", "second-moment")

    def update_rows(self, values: Tensor, grad: Tensor, states: Sequence[Tensor], step: int, lr: float) -> None:
        """Update rows and their states in place.

        Args:
            values: ``[n, F]``.
            grad: ``[n, F]``.
            states: ``[n, F]`` for each of ``state_names``.
            step: Number of this step, from 1.
            lr: Learning rate of this step.
        """
        if self.name == ADAGRAD:
            step_adagrad(values, grad, states[0], lr)
        else:
            first, second = states
            step_adam(values, grad, first, second, AdamStep(lr, self.betas, self.eps, step))
