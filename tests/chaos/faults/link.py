"""Links between hosts that are cut."""

from __future__ import annotations

import time

from command import Run
from judge import Promise

from faults.base import UnavailableError

_RATE = "1gbit"
_SAID = r"silent for|cannot be reached|connection|out of reach"


class Link:
    """The link of a host is cut, and restored after a while. Needs root, for hosts that are network namespaces.

    Args:
        seconds: How long there is none.
        heartbeat_seconds: Longest silence that the run bears.
    """

    def __init__(self, seconds: float, heartbeat_seconds: float) -> None:
        self._seconds, self._heartbeat_seconds = seconds, heartbeat_seconds

    @property
    def words(self) -> list[str]:
        return ["--heartbeat", f"{self._heartbeat_seconds:g}"]

    def ready(self, run: Run) -> None:
        """Make the hosts."""
        import netlab

        try:
            run.lab = run.stack.enter_context(netlab.network(run.workload.workers, _RATE))
        except netlab.UnavailableError as error:
            raise UnavailableError(str(error)) from error

    def strike(self, run: Run) -> Promise | None:
        if run.over:
            return None
        host = run.draw.randrange(run.workload.workers)
        done = run.done(0)
        self._set(run, host, "down")
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline and any(process.poll() is None for process in run.processes):
            time.sleep(0.05)
        self._set(run, host, "up")
        what = f"the link of host {host} was cut for {self._seconds:g} s"
        if self._seconds < self._heartbeat_seconds:
            return Promise(what=what, ends=None if done else False)
        return Promise(what=what, ends=None if done else True, said=_SAID, torn=True)

    def mend(self, run: Run) -> None:
        """Nothing to mend: the link is there again."""

    def _set(self, run: Run, host: int, state: str) -> None:
        import netlab_links

        assert run.lab is not None
        netlab_links.tool(run.lab.name, f"ip -n {run.lab.name}-bridge link set p{host} {state}")
