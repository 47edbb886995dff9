"""By which bandwidths the order of chunks is planned, and by which it is chosen."""

from __future__ import annotations

import pytest

from outgrow.planning.cost_model import Pace
from outgrow.planning.estimators.offload_chunks import rates_of
from outgrow.planning.hardware.profile import profile_of
from outgrow.planning.traffic import Place
from outgrow.strategies.offload.reorder import DISK_BANDWIDTHS, PINNED_BANDWIDTHS, Throughputs


@pytest.mark.parametrize(("machine", "fixed"), [("2-core-cpu", DISK_BANDWIDTHS), ("4xA100", PINNED_BANDWIDTHS)])
def test_training_orders_chunks_by_bandwidths_of_machines_that_come_with_outgrow(
    machine: str, fixed: Throughputs
) -> None:
    """So that plans for these machines count what training moves."""
    profile = profile_of(machine)
    assert rates_of(Pace.of(profile, Place(workers=profile.workers), 4)) == fixed


@pytest.mark.parametrize("fixed", [DISK_BANDWIDTHS, PINNED_BANDWIDTHS])
def test_rows_that_stay_cost_less_than_rows_that_move(fixed: Throughputs) -> None:
    """Else no order would be looked for in which rows stay."""
    assert fixed.reuse > max(fixed.host, fixed.device)
