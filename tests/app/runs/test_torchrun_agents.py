"""Training on several hosts, each with an agent of torchrun, of which workers and agents die; here on one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import psutil
import pytest
from tests.app.conftest import Command
from torch.distributed import TCPStore  # type: ignore[attr-defined]

EPOCHS = 400
OPTIONS = ("--model", "gcn", "--hidden", 8, "--epochs", EPOCHS, "--set", "checkpoint_every=20")
SECONDS = 120.0
"""Within which training goes on, or has ended."""


class Cluster:
    """Agents of one job, and the run that their workers train.

    Args:
        npz: The graph.
        folder: Where the run and the outputs of the agents go.
        nodes: Number of agents, as torchrun takes it.
        changes: Whether agents come and go. Those of torch 2.13 otherwise do not tell newcomers where to meet.
    """

    def __init__(self, npz: Path, folder: Path, nodes: str, *, changes: bool = False) -> None:
        # Not in one of the agents: the others would end with it.
        self.rendezvous_store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.nodes, self.npz, self.folder, self.changes = nodes, npz, folder, changes
        self.agents: list[subprocess.Popen[bytes]] = []

    def start_agent(self) -> subprocess.Popen[bytes]:
        settings = {name: value for name, value in os.environ.items() if not name.endswith("NUM_THREADS")}
        if self.changes:
            settings["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        launcher = (sys.executable, "-m", "torch.distributed.run", "--nnodes", self.nodes, "--nproc-per-node", 1)
        place = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.rendezvous_store.port}")
        rules = ("--max-restarts", 1, "--rdzv-conf", "last_call_timeout=1,join_timeout=100")
        train = ("-m", "outgrow", "train", self.npz, *OPTIONS, "--out", self.folder / "run")
        train = (*train, "--resume", "auto") if self.changes else train
        with (self.folder / f"agent-{len(self.agents)}").open("wb") as log:
            command = [str(word) for word in (*launcher, *place, *rules, *train)]
            self.agents.append(subprocess.Popen(command, env=settings, stdout=log, stderr=log))
        return self.agents[-1]

    def worker(self, agent: int) -> psutil.Process:
        [worker] = [each for each in psutil.Process(self.agents[agent].pid).children() if "outgrow" in each.cmdline()]
        return worker

    def epochs(self) -> int:
        try:
            return len((self.folder / "run" / "metrics.jsonl").read_text().splitlines())
        except FileNotFoundError:
            return 0

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not what():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)

    def finish(self, agents: Sequence[int]) -> list[float]:
        """The losses, once the agents have ended well."""
        for agent in agents:
            assert self.agents[agent].wait(SECONDS) == 0, self.logs()
        losses: list[float] = json.loads((self.folder / "run" / "summary.json").read_text())["loss"]
        return losses

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("agent-*")))

    def end(self) -> None:
        for agent in self.agents:
            for process in psutil.Process(agent.pid).children(recursive=True) if agent.poll() is None else ():
                process.kill()
            agent.kill()
            agent.wait()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, npz: Path, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(npz, tmp_path, request.param.rstrip("+"), changes=request.param.endswith("+"))
    try:
        yield made
    finally:
        made.end()


_UNDISTURBED: dict[int, list[float]] = {}


def undisturbed(outgrow: Command, npz: Path, workers: int) -> list[float]:
    """The losses of the run by as many local workers; computed once, since the graph of all tests is the same."""
    if workers not in _UNDISTURBED:
        command = ("train", npz, *OPTIONS, "--workers", workers, "--out", "whole", "--json")
        _UNDISTURBED[workers] = outgrow(*command).summary["loss"]
    return _UNDISTURBED[workers]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "victim"), [("2", 0), ("2", 1), ("3", 0), ("3", 1), ("3", 2)], indirect=["cluster"]
)
def test_a_worker_dies(cluster: Cluster, victim: int, outgrow: Command, npz: Path) -> None:
    size = int(cluster.nodes)
    for _ in range(size):
        cluster.start_agent()
    cluster.wait_for(lambda: cluster.epochs() >= 30)
    cluster.worker(victim).kill()
    assert cluster.finish(range(size)) == undisturbed(outgrow, npz, size)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["2"], indirect=True)
@pytest.mark.parametrize("seed", range(20))
def test_a_worker_dies_at_any_moment(seed: int, cluster: Cluster, outgrow: Command, npz: Path) -> None:
    """While it starts, meets the other, trains or ends."""
    draw = Random(seed)
    victim, moment = draw.randrange(2), draw.uniform(0, 15)
    agents = [cluster.start_agent(), cluster.start_agent()]
    cluster.wait_for(lambda: bool(psutil.Process(agents[victim].pid).children()))
    time.sleep(moment)
    if agents[victim].poll() is None:
        for worker in psutil.Process(agents[victim].pid).children():
            worker.kill()
    other = 1 - victim
    if agents[other].wait(SECONDS) == 0 and agents[victim].wait(SECONDS) != 0:
        # It died when the other host had ended: the run is complete, and torchrun waits for a host that comes no more.
        assert "RendezvousTimeoutError" in (cluster.folder / f"agent-{victim}").read_text()
    assert cluster.finish([other]) == undisturbed(outgrow, npz, 2)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["2+"], indirect=True)
@pytest.mark.parametrize("victim", [0, 1])
def test_an_agent_dies_and_another_comes(cluster: Cluster, victim: int, outgrow: Command, npz: Path) -> None:
    cluster.start_agent(), cluster.start_agent()
    cluster.wait_for(lambda: cluster.epochs() >= 30)
    cluster.agents[victim].kill()
    cluster.start_agent()
    assert cluster.finish([1 - victim, 2]) == undisturbed(outgrow, npz, 2)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["2"], indirect=True)
def test_an_agent_comes_late(cluster: Cluster, outgrow: Command, npz: Path) -> None:
    cluster.start_agent()
    time.sleep(8)
    cluster.start_agent()
    assert cluster.finish([0, 1]) == undisturbed(outgrow, npz, 2)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["1:2+"], indirect=True)
def test_a_job_grows(cluster: Cluster, outgrow: Command, npz: Path) -> None:
    """The first agent trains alone; its worker ends with a checkpoint when the second comes, and none has failed."""
    cluster.start_agent()
    cluster.wait_for(lambda: cluster.epochs() >= 30)
    cluster.start_agent()
    cluster.finish([0, 1])
    assert cluster.epochs() == EPOCHS
    assert json.loads((cluster.folder / "run" / "summary.json").read_text())["workers"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["2"], indirect=True)
@pytest.mark.parametrize("ended", [(0, 1), (0,), (1,)])
def test_a_job_is_ended_by_its_scheduler(ended: tuple[int, ...], cluster: Cluster) -> None:
    """SIGTERM to an agent reaches its worker; all workers agree on a last epoch, and none of them ends well."""
    cluster.start_agent(), cluster.start_agent()
    cluster.wait_for(lambda: cluster.epochs() >= 30)
    for number in ended:
        cluster.agents[number].send_signal(signal.SIGTERM)
    cluster.wait_for((cluster.folder / "run" / "summary.json").exists)
    for number, agent in enumerate(cluster.agents):
        if number in ended:
            assert agent.wait(SECONDS) != 0
        else:  # it has a restart left, and waits for another agent; to torchrun its worker is not done
            time.sleep(10)
            assert agent.poll() != 0
    summary = json.loads((cluster.folder / "run" / "summary.json").read_text())
    assert summary["stopped"] == "interrupted"
    assert (cluster.folder / "run" / "checkpoint" / f"epoch-{summary['epochs']:08d}.pt").exists()
