"""No silent disagreement between one worker and three, between position and name, or between PyG's layer and ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from suites.disagreements import AGREED, CHECKS, INEXACT, MUTANTS, REFUSED

FEW, MANY = 4, 50
OUTCOMES = {
    "weights": {AGREED, REFUSED},
    "types": {AGREED},
    "masks": {AGREED},
    "modules": {AGREED, INEXACT},
}

pytestmark = [
    pytest.mark.usefixtures("pooled"),
    pytest.mark.filterwarnings("ignore::outgrow.ModelWarning", "ignore::outgrow.DataWarning"),
]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Models draw their parameters from torch's generator."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("kind", CHECKS)
def test_some_cases(kind: str) -> None:
    for seed in range(FEW):
        torch.manual_seed(seed)
        CHECKS[kind](seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", CHECKS)
def test_many_cases(kind: str) -> None:
    outcomes = Counter[str]()
    for seed in range(MANY):
        torch.manual_seed(seed)
        outcomes[CHECKS[kind](seed)] += 1
    # None of the kinds is only refused, or only trained where some of it should be refused.
    assert outcomes.keys() == OUTCOMES[kind]
    assert min(outcomes.values()) >= MANY // 10, outcomes


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str) -> None:
    _, kind, breaks = MUTANTS[mutant]
    with breaks():
        assert any(_disagrees(kind, seed) for seed in range(MANY))


def _disagrees(kind: str, seed: int) -> bool:
    torch.manual_seed(seed)
    try:
        CHECKS[kind](seed)
    except AssertionError:
        return True
    return False
