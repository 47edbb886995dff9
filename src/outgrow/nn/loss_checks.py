"""Check of a loss of the user's: is it a function of each row alone, and does it have a gradient?

Strategies compute the rows of a step in parts, in other orders and on several workers, and add their losses. That is
exact only if the loss of a row depends on no other row. Nothing but a call tells, so the loss is called on a few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from outgrow.core.errors import InputError
from outgrow.nn.losses import RowLoss, call_row_loss

CHECKED_ROWS = 8
"""How many rows the check computes."""
_SEED = 20_240_611
_ORDER = (5, 2, 7, 0, 6, 1, 4, 3)
_TOLERANCE = 1e-4
"""Relative; far above what the order of a sum changes, and far below what another set of rows does."""


def name_loss(loss: RowLoss) -> str:
    """Return the name of a loss, for people."""
    named = loss.func if isinstance(loss, partial) else loss
    return str(getattr(named, "__qualname__", type(named).__qualname__))


def check_row_loss(loss: RowLoss, targets_N: Tensor, num_outputs: int, dtype: torch.dtype) -> None:
    """Check that a loss is one number for each row, of that row alone, with a finite gradient.

    Args:
        loss: The loss.
        targets_N: ``[8, ...]``, targets as the loss is given them.
        num_outputs: Number of columns of the logits.
        dtype: Type of the logits.

    Raises:
        InputError: It is not.
    """
    if isinstance(loss, nn.Module) and any(each.requires_grad for each in loss.parameters()):
        raise _loss_error(loss, "a loss without parameters to train", "a module with some", "put them in the model")
    generator = torch.Generator().manual_seed(_SEED)
    logits = torch.randn(CHECKED_ROWS, num_outputs, dtype=dtype, generator=generator)
    with torch.random.fork_rng(devices=[]), _name_failures(loss, logits, targets_N):
        whole = _check_result(loss, logits, targets_N)
        for why, rows in _other_ways(partial(_run_rows, loss, logits, targets_N)):
            if not _alike(rows, whole):
                far = int((rows - whole).abs().argmax())
                raise _loss_error(
                    loss,
                    "a loss of each row, which depends on no other row",
                    f"one that {why}: row {far} has {whole[far]:.6g}, then {rows[far]:.6g}",
                    "compute the loss of a row of its logits and its target alone",
                )


@contextmanager
def _name_failures(loss: RowLoss, logits: Tensor, targets: Tensor) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a function of the user's may raise anything
        raise _loss_error(
            loss,
            f"a function of logits {list(logits.shape)} and targets {list(targets.shape)} of {targets.dtype}, "
            "or of some of their rows",
            f"{type(error).__name__}: {str(error)[:200]}",
            "correct the loss",
        ) from error


def _check_result(loss: RowLoss, logits: Tensor, targets: Tensor) -> Tensor:
    """Return ``[n]`` losses of all rows, after checks of their shape and gradient."""
    torch.manual_seed(_SEED)
    leaf = logits.clone().requires_grad_()
    with torch.enable_grad():
        out = call_row_loss(loss, leaf, targets)
        _check_shape(loss, out)
        if not (out.is_floating_point() and out.requires_grad):
            raise _loss_error(loss, "a loss with a gradient in the logits", "one without", "do not detach it")
        grads: Sequence[Tensor | None] = torch.autograd.grad(out.sum(), [leaf], allow_unused=True)
    [grad] = grads
    if grad is None or not grad.isfinite().all() or not out.isfinite().all():
        got = "no gradient" if grad is None else f"losses {[float(f'{each:.4g}') for each in out.tolist()]}"
        raise _loss_error(loss, "finite losses with a finite gradient", got, "correct the loss, or the targets")
    return out.detach()


def _check_shape(loss: RowLoss, out: object) -> None:
    if isinstance(out, Tensor) and out.shape == (CHECKED_ROWS,):
        return
    got = f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
    # The commonest mistake: a loss of torch that averages.
    is_scalar = isinstance(out, Tensor) and out.dim() == 0
    repair = "give reduction='none'" if is_scalar else "take the mean over the columns, so that each row has one number"
    raise _loss_error(loss, f"one number for each of {CHECKED_ROWS} rows: shape [{CHECKED_ROWS}]", got, repair)


def _run_rows(loss: RowLoss, logits: Tensor, targets: Tensor, rows: Sequence[int], seed: int = _SEED) -> Tensor:
    torch.manual_seed(seed)
    at = list(rows)
    with torch.no_grad():
        out = call_row_loss(loss, logits[at], targets[at])
    # Another shape is as wrong as another value.
    return out if out.shape == (len(at),) else torch.full((len(at),), torch.nan)


def _other_ways(run: Callable[..., Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the losses of all rows as computed in other ways, and what is wrong if they differ."""
    everything = range(CHECKED_ROWS)
    half = CHECKED_ROWS // 2
    yield "draws random numbers", run(everything, seed=_SEED + 1)
    yield "is another one at the second call", run(everything)
    yield "looks across rows", torch.cat([run(everything[:half]), run(everything[half:])])
    yield "looks across rows", torch.cat([run([row]) for row in everything])
    yield "depends on the order of the rows", run(_ORDER)[torch.tensor(_ORDER).argsort()]


def _alike(one: Tensor, other: Tensor) -> bool:
    scale = max(1.0, float(other.abs().max()))
    return one.shape == other.shape and bool(((one - other).abs() <= _TOLERANCE * scale).all())


def _loss_error(loss: RowLoss, needed: str, got: str, repair: str) -> InputError:
    return InputError(f"the loss {name_loss(loss)} cannot be used", needed=needed, got=got, repair=repair)
