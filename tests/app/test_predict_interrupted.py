"""A prediction that is ended by a signal or a failure leaves the file of before, and nothing else."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.app.conftest import Command, planted

from outgrow.app import prediction_run
from processes import processes_of, wait_until_gone


@pytest.fixture(autouse=True)
def _run(outgrow: Command, tmp_path: Path, scratch: Path) -> None:
    """A small run, and a file of before; the current folder is theirs."""
    np.savez(tmp_path / "planted.npz", **planted())
    trained = outgrow("train", "planted.npz", "--model", "sage", "--hidden", 16, "--epochs", 1, "--out", "run")
    assert trained.code == 0, trained.err
    for name in ("p.npy", "p.parquet"):
        Path(name).write_bytes(b"old")


def assert_nothing_left(name: str) -> None:
    assert Path(name).read_bytes() == b"old"
    assert not list(Path().glob(".*"))


@pytest.mark.parametrize("name", ["p.npy", "p.parquet"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_as_an_error(
    name: str, number: signal.Signals, outgrow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = prediction_run.iterate_outputs

    def send_after_the_rows(*given: object) -> Iterator[object]:
        yield from compute(*given)  # type: ignore[arg-type]
        assert list(Path().glob(f".{name}.*/{name}"))  # where they are until the file is complete
        os.kill(os.getpid(), number)
        time.sleep(5)

    # A shell in the background ignores SIGINT, and nohup SIGHUP.
    before = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    monkeypatch.setattr(prediction_run, "iterate_outputs", send_after_the_rows)
    monkeypatch.setattr("outgrow.app.predictions._CHUNK_BYTES", 1000)
    try:
        assert outgrow("predict", "run", "--out", name).code == 128 + number
    finally:
        signal.signal(number, before)
    assert_nothing_left(name)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def strike(found: str, do: Callable[[], object]) -> threading.Thread:
    """Do something once there are hidden files."""

    def wait() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not list(Path().glob(found)):
            time.sleep(0.01)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def kill_a_worker(scratch: Path) -> None:
    while not (workers := [each for each in processes_of(scratch) if "worker_main" in " ".join(each.cmdline())]):
        time.sleep(0.01)
    workers[-1].kill()


# A signal that comes while a file is being opened leaves nobody who could close it.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("p.npy", signal.SIGTERM),
        pytest.param("p.parquet", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("p.npy", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_workers_too(name: str, number: signal.Signals, outgrow: Command, scratch: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sender = strike(f".{name}.*/*", lambda: os.kill(os.getpid(), number))
    try:
        assert outgrow("predict", "run", "--out", name, "--workers", 2).code == 128 + number
    finally:
        sender.join()
        signal.signal(signal.SIGINT, before)
    assert_nothing_left(name)
    wait_until_gone(scratch, 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["p.npy", "p.parquet"])
def test_a_worker_that_is_killed(name: str, outgrow: Command, scratch: Path) -> None:
    killer = strike(f".{name}.*/*", lambda: kill_a_worker(scratch))
    made = outgrow("predict", "run", "--out", name, "--workers", 2)
    killer.join()
    assert made.code == 1
    assert "was killed by SIGKILL" in made.err
    assert_nothing_left(name)
    wait_until_gone(scratch, 10)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_launcher_that_is_killed(workers: int, scratch: Path) -> None:
    np.savez("other.npz", **planted(nodes=100_000))
    command = [sys.executable, "-m", "outgrow", "predict", "run", "--graph", "other.npz", "--out", "p.npy"]
    with subprocess.Popen([*command, "--workers", str(workers)], stderr=subprocess.DEVNULL) as process:
        strike(".p.npy.*/*" if workers > 1 else ".p.npy.*", process.kill).join()
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while list(Path().glob(".*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert_nothing_left("p.npy")
    wait_until_gone(scratch, 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["p.npy", "p.parquet"])
@pytest.mark.parametrize("workers", [1, 2])
def test_no_file_may_become_as_long(name: str, workers: int) -> None:
    """As on a full disk, by a limit that the system has for processes."""
    np.savez("other.npz", **planted(nodes=40_000))
    command = [sys.executable, "-m", "outgrow", "predict", "run", "--graph", "other.npz", "--what", "logits"]
    done = subprocess.run(
        [*command, "--out", name, "--workers", str(workers)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert_nothing_left(name)
