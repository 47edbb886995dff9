"""Workers that are killed: the script itself, and that it would notice what is not as promised."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import kill_workers
import pytest
from disturbed import Ending, Kill, Place, left_in, readable, sweep, violations

LOSS = [3.0, 2.0, 1.0]
REFERENCE = {"loss": LOSS, "epochs": 3, "val_accuracy": 0.5, "test_accuracy": 0.4, "best_epoch": 3}
KILL = Kill(moment="epochs", rank=2, epochs=1)
WHOLE = Ending(code=0, seconds=1, errors="", summary=REFERENCE, checkpoints=True, metrics=tuple(LOSS))
FAILED = Ending(code=1, seconds=1, errors="error: worker 2 of 4 was killed by SIGKILL", checkpoints=True)
AGAIN = replace(WHOLE, errors="worker 2 of 4 was killed by SIGKILL; all workers start again (restart 1)")
EARLY = replace(FAILED, checkpoints=False)
REFUSED = Ending(code=2, seconds=1, errors="error: the run in x has no checkpoint")


@pytest.mark.parametrize(
    ("kill", "restarts", "first", "resumed"),
    [
        (KILL, 0, FAILED, WHOLE),
        (KILL, 0, replace(FAILED, partial=("epoch-00000002.partial",)), WHOLE),
        (KILL, 0, EARLY, REFUSED),
        (KILL, 1, AGAIN, None),
        (Kill(moment="end"), 0, WHOLE, None),
        (replace(KILL, done=True), 0, WHOLE, None),
        (replace(KILL, done=True), 1, WHOLE, None),
    ],
)
def test_what_is_promised(kill: Kill, restarts: int, first: Ending, resumed: Ending | None) -> None:
    assert violations(kill, restarts, first, resumed, REFERENCE) == []


@pytest.mark.parametrize(
    ("restarts", "first", "resumed"),
    [
        (0, replace(FAILED, code=None), WHOLE),
        (0, replace(FAILED, code=2), WHOLE),
        (0, replace(FAILED, errors="error: worker 1 of 4 was killed by SIGKILL"), WHOLE),
        (0, replace(FAILED, left=("outgrow-abc",)), WHOLE),
        (0, replace(FAILED, broken=("epoch-00000002.pt",)), WHOLE),
        (0, FAILED, replace(WHOLE, code=1)),
        (0, FAILED, replace(WHOLE, summary={**REFERENCE, "loss": [3.0, 2.0, 1.0000001]})),
        (0, FAILED, replace(WHOLE, metrics=(3.0, 2.0, 2.0, 1.0))),
        (0, FAILED, replace(WHOLE, partial=("epoch-00000002.partial",))),
        (0, EARLY, WHOLE),
        (0, WHOLE, None),
        (1, WHOLE, None),
        (1, replace(AGAIN, summary={**REFERENCE, "val_accuracy": 0.6}), None),
        (1, replace(AGAIN, code=1), None),
    ],
)
def test_what_is_not(restarts: int, first: Ending, resumed: Ending | None) -> None:
    assert violations(KILL, restarts, first, resumed, REFERENCE)


def test_what_is_left_behind_is_found(tmp_path: Path) -> None:
    place = Place(out=tmp_path / "run", scratch=tmp_path / "tmp")
    (place.scratch / "outgrow-x").mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={"TMPDIR": str(place.scratch)}
    ) as p:
        found = left_in(place, patience_seconds=0)
        assert [what.split(":")[0] for what in found] == [f"process {p.pid}", "outgrow-x"]
        began = time.monotonic()
        sweep(p, place)
        assert time.monotonic() - began < 30
    (tmp_path / "torn.pt").write_bytes(b"half")
    assert not readable(tmp_path / "torn.pt")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_that_are_killed(tmp_path: Path) -> None:
    words = ["--runs", "2", "--moments", "epochs", "checkpoint", "--restarts", "1", "--seed", "3"]
    assert kill_workers.main([*words, "--json", str(tmp_path / "kills.json")]) == 0
