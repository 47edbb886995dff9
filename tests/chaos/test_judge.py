"""That what is not as promised would be noticed, and that what is left behind is found."""

import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from judge import Promise, verdict
from place import Ending, Place, left_in, marked, readable, sweep

LOSS = [3.0, 2.0, 1.0]
METRICS = tuple((loss, 0.5) for loss in LOSS)
REFERENCE = {
    "loss": LOSS,
    "epochs": 3,
    "val_accuracy": 0.5,
    "test_accuracy": 0.4,
    "best_epoch": 3,
    "metrics": METRICS,
}
SAID = "worker 2 of 4 was killed by SIGKILL"
ERROR = f"epoch 1\nerror: {SAID}\n  needed:  life\n  got:     death\n  repair:  again\n"
KILL = Promise(what=SAID, ends=True, said=SAID, codes=(1,), torn=True)
AGAIN = Promise(what=SAID, ends=False, said=r"start again \(restart 1\)")
ALONE = Promise(what=SAID, ends=True, codes=(-9,), mute=True, torn=True)
FULL = Promise(what="the disk was filled", ends=None, said="No space left")
WHOLE = Ending(code=0, seconds=1, errors="", summary=REFERENCE, checkpoints=True, metrics=METRICS)
FAILED = Ending(code=1, seconds=1, errors=ERROR, checkpoints=True)
AGAIN_WHOLE = replace(WHOLE, errors=f"{SAID}; all workers start again (restart 1)")
EARLY = replace(FAILED, checkpoints=False)
NO_ROOM = replace(FAILED, code=2, errors=ERROR.replace(SAID, "No space left on device"))
FROM_START = replace(WHOLE, errors="the run in x has no checkpoint yet: it starts from the beginning")
REFUSED = Ending(code=2, seconds=1, errors="error: the run in x has no checkpoint")


@pytest.mark.parametrize(
    ("promise", "first", "resumed", "outcome"),
    [
        (KILL, FAILED, WHOLE, "resumed"),
        (KILL, replace(FAILED, partial=("epoch-00000002.partial",)), WHOLE, "resumed"),
        (KILL, EARLY, REFUSED, "no checkpoint"),
        (KILL, EARLY, FROM_START, "no checkpoint"),
        (replace(KILL, ends=None), WHOLE, None, "went on"),
        (AGAIN, AGAIN_WHOLE, None, "went on"),
        (ALONE, Ending(code=-9, seconds=1, errors="", checkpoints=True), WHOLE, "resumed"),
        (FULL, NO_ROOM, WHOLE, "resumed"),
        (FULL, WHOLE, None, "went on"),
        (None, WHOLE, None, "over"),
    ],
)
def test_what_is_promised(promise: Promise | None, first: Ending, resumed: Ending | None, outcome: str) -> None:
    found = verdict(promise, first, resumed, REFERENCE)
    assert (found.outcome, found.violations) == (outcome, ())


@pytest.mark.parametrize(
    ("promise", "first", "resumed"),
    [
        (KILL, replace(FAILED, code=None), WHOLE),
        (KILL, replace(FAILED, code=2), WHOLE),
        (KILL, replace(FAILED, errors=ERROR.replace("worker 2", "worker 1")), WHOLE),
        (KILL, replace(FAILED, errors=ERROR.replace("repair", "hope")), WHOLE),
        (KILL, replace(FAILED, errors=f"Traceback\n{SAID}"), WHOLE),
        (KILL, replace(FAILED, left=("outgrow-abc",)), WHOLE),
        (KILL, replace(FAILED, broken=("epoch-00000002.pt",)), WHOLE),
        (KILL, FAILED, None),
        (KILL, FAILED, replace(WHOLE, code=1)),
        (KILL, FAILED, replace(WHOLE, summary={**REFERENCE, "loss": [3.0, 2.0, 1.0000001]})),
        (KILL, FAILED, replace(WHOLE, metrics=(*METRICS[:2], *METRICS[1:]))),
        (KILL, FAILED, replace(WHOLE, metrics=(*METRICS[:2], (1.0, 0.6)))),
        (KILL, FAILED, replace(WHOLE, partial=("epoch-00000002.partial",))),
        (KILL, EARLY, WHOLE),
        (KILL, EARLY, replace(FROM_START, summary={**REFERENCE, "loss": [3.0, 2.0, 1.0000001]})),
        (KILL, WHOLE, None),
        (AGAIN, WHOLE, None),
        (AGAIN, replace(AGAIN_WHOLE, summary={**REFERENCE, "val_accuracy": 0.6}), None),
        (AGAIN, replace(AGAIN_WHOLE, code=1), None),
        (FULL, replace(NO_ROOM, partial=("epoch-00000002.partial",)), WHOLE),
        (FULL, FAILED, WHOLE),
        (None, FAILED, WHOLE),
    ],
)
def test_what_is_not(promise: Promise | None, first: Ending, resumed: Ending | None) -> None:
    assert verdict(promise, first, resumed, REFERENCE).violations


def test_what_is_left_behind_is_found(tmp_path: Path) -> None:
    place = Place(out=tmp_path / "run", scratch=tmp_path / "tmp", store=tmp_path / "store")
    (place.scratch / "host-1" / "outgrow-x").mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={"TMPDIR": str(place.scratch / "host-1")},
        text=True,
    ) as process:
        deadline = time.monotonic() + 20
        while not list(marked(place.scratch)) and time.monotonic() < deadline:
            time.sleep(0.01)
        found = left_in(place.scratch, patience_seconds=0)
        assert [what.split(":")[0] for what in found] == [f"process {process.pid}", "outgrow-x"]
        began = time.monotonic()
        sweep([process], place.scratch)
        assert time.monotonic() - began < 30
    (tmp_path / "torn.pt").write_bytes(b"half")
    assert not readable(tmp_path / "torn.pt")


def test_files_that_were_not_written_to_their_end_are_found(tmp_path: Path) -> None:
    place = Place(out=tmp_path / "run", scratch=tmp_path / "tmp", store=tmp_path / "store")
    for folder, name in ((place.out / "checkpoint", "epoch-00000002.partial"), (place.out, ".summary.json.partial")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (place.out / "checkpoint" / "epoch-00000001.pt").write_bytes(b"half")
    place.metrics_file.write_text('{"loss": 1.0, "val_score": 0.5}\n{"loss": 0.')
    ending = place.ending(1, 2.0, "", ())
    assert ending.partial == ("epoch-00000002.partial", ".summary.json.partial")
    assert ending.broken == ("epoch-00000001.pt",)
    assert ending.checkpoints
    assert ending.metrics[0] == (1.0, 0.5)
    assert all(math.isnan(figure) for figure in ending.metrics[1])
