"""The worker to blame is the first of the worst, whatever its peers say."""

from __future__ import annotations

import itertools
import pickle

import pytest

from outgrow.core.errors import InputError, OutgrowError, WorkerError
from outgrow.runtime.distributed.failures import WorkerExit, root_cause_error
from outgrow.runtime.distributed.job_files import FailureRecord


def ending(
    rank: int, *, silent: float | None = None, code: int | None = None, record: FailureRecord | None = None
) -> WorkerExit:
    """How a worker ended."""
    return WorkerExit(rank=rank, silent_seconds=silent, exit_code=code, record=record, output="last line")


def raised(seconds: float, *, lost_peer: bool = False, error: OutgrowError | None = None) -> FailureRecord:
    """What a worker wrote down."""
    return FailureRecord(message="E: bad", report="at home", is_peer_failure=lost_peer, seconds=seconds, error=error)


WORST_FIRST = [
    ending(0, silent=30.2, record=raised(1)),
    ending(1, code=-9),
    ending(2, code=1, record=raised(5)),
    ending(3, code=1, record=raised(6)),
    ending(4, code=3),
    ending(5, code=1, record=raised(1, lost_peer=True)),
    ending(6, code=1, record=raised(2, lost_peer=True)),
    ending(7),
]
WHAT = [
    "worker 0 of 9 was silent for 30 s",
    "worker 1 of 9 was killed by SIGKILL",
    "worker 2 of 9 failed: E: bad",
    "worker 3 of 9 failed: E: bad",
    "worker 4 of 9 ended with exit code 3 before it was done",
    "worker 5 of 9 failed: E: bad",
    "worker 6 of 9 failed: E: bad",
]


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(range(len(WORST_FIRST)), 2)))
def test_the_worst_ending_takes_the_blame(first: int, second: int) -> None:
    pair = [WORST_FIRST[first], WORST_FIRST[second]]
    for endings in (pair, pair[::-1]):
        error = root_cause_error(endings, 9)
        assert isinstance(error, WorkerError)
        assert error.what == WHAT[first]


@pytest.mark.parametrize(
    ("code", "name", "repair"),
    [(-9, "SIGKILL", "memory"), (-11, "SIGSEGV", "crashed"), (-7, "SIGBUS", "full"), (-15, "SIGTERM", "somebody")],
)
def test_signals_have_names_and_repairs(code: int, name: str, repair: str) -> None:
    error = root_cause_error([ending(0, code=code)], 1)
    assert error.what == f"worker 0 of 1 was killed by {name}"
    assert repair in error.repair
    assert "last line" in str(error)


def test_a_signal_without_a_name() -> None:
    assert root_cause_error([ending(0, code=-40)], 1).what == "worker 0 of 1 was killed by signal 40"


def test_our_own_errors_come_back() -> None:
    ours = InputError("w", needed="n", got="g", repair="r")
    error = root_cause_error([ending(0, record=raised(2, lost_peer=True)), ending(1, record=raised(1, error=ours))], 2)
    assert error is ours
    assert isinstance(error.__cause__, WorkerError)
    assert "at home" in str(error.__cause__)


def test_errors_keep_the_report_of_the_worker() -> None:
    error = pickle.loads(pickle.dumps(root_cause_error([ending(0, record=raised(1))], 1)))
    assert isinstance(error, WorkerError)
    assert str(error).endswith("\n\nat home")
