"""Runs a command on several simulated hosts on this machine, joined by a network of a given speed.

    python benchmarks/netlab.py --hosts 4 --rate 200mbit --torchrun -- outgrow train debian
    python benchmarks/netlab.py --hosts 2 -- ping -c 3 {master}

Every host is a network namespace with a host name of its own (h0, h1, ...) and one interface, eth0. A bridge in one
more namespace joins them, and token buckets shape every link in both directions. Hosts share processors, memory and
files. All is removed at the end, even when this process is killed. Needs root and Linux. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from netlab_end import MARK, folder, kill, new_name, remove_leftovers, watched
from netlab_links import UnavailableError, address, build, namespace, shaping, tool, unavailable

MOST_HOSTS = 254
UNAVAILABLE_CODE = 3
GRACE_SECONDS = 5.0
# A host's own name, the names of all, then the command. Nobody else sees the mount, since `ip netns exec` makes a mount
# namespace.
_ENTER = 'echo "$1" > /proc/sys/kernel/hostname && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How commands ended.

    Attributes:
        code: Exit status of the command that failed first, minus the signal if one killed it; 0 if none failed.
        host: The host of that command; None if none failed.
        stdout: What each host wrote to its standard output.
    """

    code: int
    host: int | None
    stdout: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes that the interface of a host has sent and received since the lab was made, headers included."""

    sent: int
    received: int


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A network of simulated hosts, numbered from 0; made by `network`.

    Attributes:
        name: Begins all names of namespaces; carries the process that made it.
        hosts: Number of hosts.
        rate: Speed of each link in each direction, as tc writes it.
    """

    name: str
    hosts: int
    rate: str

    def address(self, host: int) -> str:
        """The IPv4 address of a host."""
        return address(host)

    def namespace(self, host: int) -> str:
        """The network namespace of a host, as `ip netns` knows it."""
        return namespace(self.name, host)

    def interface_bytes(self, host: int) -> Traffic:
        """What the interface of a host has counted so far."""
        counters = "/sys/class/net/eth0/statistics"
        read = f"ip netns exec {self.namespace(host)} cat {counters}/tx_bytes {counters}/rx_bytes"
        sent, received = tool(self.name, read).split()
        return Traffic(sent=int(sent), received=int(received))

    def run(self, commands: Sequence[Sequence[str]], *, port: int = 29500, echo: bool = True) -> Outcome:
        """Run one command on each host, all at once, until all have ended or one has failed: that ends the others.

        Nothing runs on the hosts afterwards, not even what the commands left in the background. One call at a time.

        Args:
            commands: One per host. In their words `{host}`, `{hosts}`, `{address}`, `{master}` and `{port}` stand for
                the host's number, the number of hosts, the host's address, the address of host 0, and ``port``. The
                environment has the same as `OUTGROW_NETLAB_HOST` and so on, and names the interface for gloo.
            port: A port of host 0 for whoever meets there.
            echo: Write output as it comes, each line after its host's number.
        """
        if len(commands) != self.hosts:
            raise ValueError(f"there must be one command for each of {self.hosts} hosts, not {len(commands)}")
        written: list[list[str]] = [[] for _ in commands]
        processes: list[subprocess.Popen[str]] = []
        readers: list[threading.Thread] = []
        try:
            for host, command in enumerate(commands):
                processes.append(self.start(host, command, port))
                readers += _read(processes[-1], f"[{host}] ", written[host], echo)
            failed, code = _first_failure(processes)
        finally:
            _stop(processes)
            kill(self.name)
            for reader in readers:
                reader.join()
        return Outcome(code=code, host=failed, stdout=tuple("".join(lines) for lines in written))

    def start(self, host: int, command: Sequence[str], port: int = 29500) -> subprocess.Popen[str]:
        """Start a command on a host; its words as in `run`."""
        told = {
            "host": host,
            "hosts": self.hosts,
            "address": self.address(host),
            "master": self.address(0),
            "port": port,
        }
        environment = {
            **os.environ,
            MARK: self.name,
            **{f"{MARK}_{key.upper()}": str(value) for key, value in told.items()},
            "GLOO_SOCKET_IFNAME": "eth0",
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }
        filled = list(command)
        for key, value in told.items():
            filled = [word.replace(f"{{{key}}}", str(value)) for word in filled]
        enter = ["unshare", "--uts", "sh", "-c", _ENTER, "sh", f"h{host}", str(folder(self.name) / "hosts")]
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(host), *enter, *filled],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )


@contextmanager
def network(hosts: int, rate: str) -> Iterator[Lab]:
    """Hosts that see one another and nothing else; they and all that runs on them are gone afterwards.

    Args:
        hosts: How many, up to 254.
        rate: Speed of each link in each direction, such as ``200mbit``.

    Raises:
        ValueError: For a number or a rate that cannot be.
        UnavailableError: If this machine lacks something.
    """
    if not 1 <= hosts <= MOST_HOSTS:
        raise ValueError(f"there can be 1 to {MOST_HOSTS} hosts, not {hosts}")
    lab = Lab(name=new_name(), hosts=hosts, rate=rate)
    bucket = shaping(rate)
    reason = unavailable()
    if reason:
        raise UnavailableError(reason)
    remove_leftovers()
    with watched(lab.name):
        build(lab.name, hosts, bucket)
        yield lab


def _read(process: subprocess.Popen[str], prefix: str, written: list[str], echo: bool) -> list[threading.Thread]:
    """Threads that read both outputs of a process; ``written`` grows by the lines of the standard one."""

    def follow(source: IO[str], sink: IO[str], kept: list[str] | None) -> None:
        with source:
            for line in source:
                if kept is not None:
                    kept.append(line)
                if echo:
                    sink.write(prefix + line.rstrip("\n") + "\n")
                    sink.flush()

    assert process.stdout is not None
    assert process.stderr is not None
    pairs = ((process.stdout, sys.stdout, written), (process.stderr, sys.stderr, None))
    threads = [threading.Thread(target=follow, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    return threads


def _first_failure(processes: Sequence[subprocess.Popen[str]]) -> tuple[int | None, int]:
    """Wait until all have ended well, or one has not: which, and its exit status."""
    while True:
        codes = [process.poll() for process in processes]
        for host, code in enumerate(codes):
            if code:
                return host, code
        if all(code == 0 for code in codes):
            return None, 0
        time.sleep(0.02)


def _stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Ask those that still run to end, and give them a moment for it."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.kill()
        process.wait()


def torchrun(command: Sequence[str], hosts: int, workers: int) -> list[str]:
    """The command that starts ``workers`` processes on each host: a script, if its name ends in .py, or a program."""
    meeting = f"--nnodes {hosts} --node-rank {{host}} --master-addr {{master}} --master-port {{port}}".split()
    kind = [] if command[0].endswith(".py") else ["--no-python"]
    start = [sys.executable, "-m", "torch.distributed.run", *meeting, "--local-addr", "{address}"]
    return [*start, "--nproc-per-node", str(workers), *kind, *command]


def _arguments(given: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [options] -- COMMAND ...",
    )
    add = parser.add_argument
    add("--hosts", type=int, default=4, help="how many (4)")
    add("--rate", default="200mbit", help="speed of each link in each direction (200mbit)")
    add("--torchrun", action="store_true", help="start the command by torchrun on each host")
    add("--workers", type=int, default=1, help="with --torchrun: processes on each host (1)")
    add("--port", type=int, default=29500, help="port of host 0 where the hosts meet (29500)")
    cut = list(given).index("--") if "--" in given else len(given)
    options, command = parser.parse_args(given[:cut]), list(given[cut + 1 :])
    if not command:
        parser.error("there must be a command after --")
    return options, command


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def main() -> None:
    """Run the command; the exit status is that of the host that failed first, as a shell would give it."""
    options, command = _arguments(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    if options.torchrun:
        command = torchrun(command, options.hosts, options.workers)
    try:
        with network(options.hosts, options.rate) as lab:
            outcome = lab.run([command] * lab.hosts, port=options.port)
            for host in range(lab.hosts):
                traffic = lab.interface_bytes(host)
                print(f"host {host} sent {traffic.sent:,} bytes, received {traffic.received:,}", file=sys.stderr)
    except (UnavailableError, ValueError) as error:
        print(error, file=sys.stderr)
        sys.exit(UNAVAILABLE_CODE if isinstance(error, UnavailableError) else 2)
    if outcome.code:
        print(f"host {outcome.host} failed", file=sys.stderr)
    sys.exit(outcome.code if outcome.code >= 0 else 128 - outcome.code)


if __name__ == "__main__":
    main()
