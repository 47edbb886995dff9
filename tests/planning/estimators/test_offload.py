"""By which bandwidths the order of chunks is planned, and by which it is chosen."""

from __future__ import annotations

import pytest

from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimators.offload import bandwidths_from_profile
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.traffic import WorkerLayout
from outgrow.strategies.offload.reorder import DISK_BANDWIDTHS, PINNED_BANDWIDTHS, Bandwidths


@pytest.mark.parametrize(("machine", "fixed"), [("2-core-cpu", DISK_BANDWIDTHS), ("4xA100", PINNED_BANDWIDTHS)])
def test_training_orders_chunks_by_bandwidths_of_machines_that_come_with_outgrow(
    machine: str, fixed: Bandwidths
) -> None:
    """So that plans for these machines count what training moves."""
    profile = find_profile(machine)
    assert bandwidths_from_profile(CostModel.from_profile(profile, WorkerLayout(workers=profile.workers), 4)) == fixed


@pytest.mark.parametrize("fixed", [DISK_BANDWIDTHS, PINNED_BANDWIDTHS])
def test_rows_that_stay_cost_less_than_rows_that_move(fixed: Bandwidths) -> None:
    """Else no order would be looked for in which rows stay."""
    assert fixed.reuse > max(fixed.host, fixed.device)
