"""Nothing is left of simulated hosts, however the commands and the process that made them end."""

import contextlib
import os
import signal
import time
from typing import Any

import netlab
import psutil
import pytest
from labs import LONG, left_of, running, shell, start, wait_for


@pytest.mark.parametrize(("script", "code"), [("sleep 0.3; exit 7", 7), ("sleep 0.3; kill -9 $$", -9)])
def test_the_first_failure_ends_all(lab: Any, script: str, code: int) -> None:
    began = time.monotonic()
    outcome = shell(lab, f"setsid {LONG} & {LONG}", script, "exit 0")
    assert (outcome.code, outcome.host) == (code, 1)
    assert time.monotonic() - began < netlab.GRACE_SECONDS
    assert running(lab) == []


def test_who_does_not_listen_is_killed(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlab, "GRACE_SECONDS", 0.5)
    outcome = shell(lab, f"trap '' TERM; {LONG}; {LONG}", "sleep 0.3; exit 7", "exit 0")
    assert outcome.code == 7
    assert running(lab) == []


def test_what_runs_in_the_background_ends_with_the_commands(lab: Any) -> None:
    outcome = shell(lab, f"setsid env -i {LONG} >/dev/null 2>&1 &", f"setsid unshare --net {LONG} &", "true")
    assert outcome.code == 0
    assert running(lab) == []


def test_nothing_is_left_of_a_lab_whose_user_fails(possible: None) -> None:
    before = left_of(os.getpid())
    with contextlib.suppress(ZeroDivisionError), netlab.network(2, "200mbit"):
        during = left_of(os.getpid())
        raise ZeroDivisionError
    assert len(during) > len(before)
    assert left_of(os.getpid()) == before


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_killed_lab(possible: None, ending: signal.Signals, early: bool) -> None:
    with start("--hosts", "3", "--", "sh", "-c", f"setsid {LONG} & echo up; {LONG}") as process:
        assert process.stdout is not None
        if early:
            wait_for(
                lambda: any(f"netlab-{process.pid}-" in what and what.endswith("-h1") for what in left_of(process.pid))
            )
        else:
            assert sorted(process.stdout.readline() for _ in range(3)) == ["[0] up\n", "[1] up\n", "[2] up\n"]
        process.send_signal(ending)
        process.wait()
        assert process.returncode == (-9 if ending == signal.SIGKILL else 128 + ending)
        wait_for(lambda: not left_of(process.pid))
        time.sleep(0.2)
        assert not left_of(process.pid)


def test_leftovers_are_removed_at_the_next_start(possible: None) -> None:
    with start("--hosts", "2", "--", "sh", "-c", f"echo up; {LONG}") as process:
        assert process.stdout is not None
        process.stdout.readline()
        watchers = [child for child in psutil.Process(process.pid).children() if "netlab_end" in str(child.cmdline())]
        assert len(watchers) == 1
        watchers[0].kill()
        process.kill()
    assert left_of(process.pid)
    with netlab.network(1, "200mbit"):
        assert not left_of(process.pid)
