"""Who lives, who computes, who is silent, who has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outgrow.runtime.distributed import heartbeat
from outgrow.runtime.distributed.heartbeat import Heartbeat, LivenessProbe, touch_heartbeat


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as process:
        time.sleep(0.2)
        yield process
        process.kill()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(heartbeat.time, "monotonic", lambda: self.now)

    def silence(self, pulse: LivenessProbe, seconds: float, step: float = 0.5) -> float:
        """What a pulse says in the end, if it is looked at in steps."""
        for _ in range(round(seconds / step)):
            self.now += step
            pulse.silent_seconds()
        return pulse.silent_seconds()


def test_silence_is_counted_from_the_last_beat(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, beat = Clock(monkeypatch), tmp_path / "beat"
    beat.touch()
    pulse = LivenessProbe(beat, sleeper.pid)
    assert clock.silence(pulse, 10) == 10
    os.utime(beat, (5, 5))
    assert clock.silence(pulse, 3) == 2.5  # the first look found the beat
    assert not pulse.has_ended()


def test_time_in_which_nobody_looked_is_no_silence(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, beat = Clock(monkeypatch), tmp_path / "beat"
    beat.touch()
    assert clock.silence(LivenessProbe(beat, sleeper.pid), 1000, step=500) == 2


def test_computing_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beat = tmp_path / "beat"
    beat.touch()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        pulse = LivenessProbe(beat, process.pid)
        clock = Clock(monkeypatch)
        clock.silence(pulse, 2)
        time.sleep(1)
        assert pulse.silent_seconds() == 0
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.1)
        assert clock.silence(pulse, 5) >= 4.5
        process.kill()


def test_a_process_that_has_ended_is_not_waited_for(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    beat = tmp_path / "beat"
    beat.touch()
    pulse = LivenessProbe(beat, sleeper.pid)
    sleeper.kill()
    end = time.monotonic() + 5
    while not pulse.has_ended():
        assert time.monotonic() < end
    pulse.silent_seconds()
    assert sleeper.returncode is None
    assert sleeper.wait() == -signal.SIGKILL
    assert pulse.has_ended()
    pulse.silent_seconds()


def test_beats_go_on_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)
    beats: list[None] = []
    with Heartbeat(lambda: beats.append(None), os.getppid(), tmp_path):
        time.sleep(0.3)
    count = len(beats)
    assert count > 3
    time.sleep(0.05)
    assert len(beats) == count
    assert tmp_path.exists()


@pytest.mark.parametrize(("parent", "beats"), [("os.getppid()", "'out of time'"), ("1234567", "None")])
def test_a_process_without_a_reason_to_live_ends(tmp_path: Path, parent: str, beats: str) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    code = (
        "import os, time; from pathlib import Path; from outgrow.runtime.distributed.heartbeat import Heartbeat\n"
        f"with Heartbeat(lambda: {beats}, {parent}, Path({str(folder)!r})): time.sleep(100)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("out of time\n" if "time" in beats else "the process that started this one is gone\n")
    assert not folder.exists()


def test_without_its_file_the_run_is_over(tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    beat.touch()
    assert touch_heartbeat(beat) is None
    beat.unlink()
    assert touch_heartbeat(beat) == "the run is over"
