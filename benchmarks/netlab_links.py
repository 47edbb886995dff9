"""Makes the hosts of `netlab.py`: namespaces, links between them, and what shapes these."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from netlab_end import MARK, folder, new_name, watched

_TOOLS = ("ip", "tc", "unshare", "mount")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


class UnavailableError(RuntimeError):
    """This machine cannot have simulated hosts; the message says why, in one line."""


def address(host: int) -> str:
    """The IPv4 address of a host."""
    return f"10.77.0.{host + 1}"


def namespace(name: str, host: int) -> str:
    """The network namespace of a host."""
    return f"{name}-h{host}"


def unavailable() -> str | None:
    """Why this machine cannot have simulated hosts, in one line; None if it can."""
    if os.geteuid() != 0:
        return "simulated hosts need root"
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    if missing:
        return f"simulated hosts need {' and '.join(missing)} (Debian: iproute2, util-linux)"
    name = new_name()
    inside = f"{name}-probe"
    try:
        with watched(name):
            tool(name, f"ip netns add {inside}")
            tool(name, f"ip -n {inside} link add bridge type bridge")
            tool(name, f"ip -n {inside} link add eth0 type veth peer name p0")
            tool(name, f"tc -n {inside} qdisc add dev eth0 root {shaping('1mbit')}")
            tool(name, f"ip netns exec {inside} unshare --uts true")
    except subprocess.CalledProcessError as error:
        return f"simulated hosts need what is refused here: {' '.join(error.cmd)}: {' '.join(error.stderr.split())}"
    return None


def shaping(rate: str) -> str:
    """Arguments of tc for a token bucket; it lets through at once what takes 4 ms at the rate."""
    parsed = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", rate)
    if not parsed or not float(parsed[1]):
        raise ValueError(f"the rate must look like 200mbit, 1gbit or 500kbit, not {rate}")
    burst = max(16_384, int(float(parsed[1]) * _UNITS[parsed[2]] / 8 * 0.004))
    return f"tbf rate {rate} burst {burst} latency 50ms"


def build(name: str, hosts: int, bucket: str) -> None:
    """Make a lab's hosts, their links, and the file with their names; ``bucket`` is what `shaping` gave."""
    bridge = f"{name}-bridge"
    folder(name).mkdir()
    # The second name is for programs that ask who is at the other end of an IPv6 socket, as torch's store does.
    names = "".join(f"{address(host)} h{host}\n::ffff:{address(host)} h{host}-mapped\n" for host in range(hosts))
    (folder(name) / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
    tool(name, f"ip netns add {bridge}")
    tool(name, f"ip -n {bridge} link add bridge type bridge mcast_snooping 0")
    _up(name, bridge, "bridge")
    for host in range(hosts):
        inside, port = namespace(name, host), f"p{host}"
        tool(name, f"ip netns add {inside}")
        tool(name, f"ip -n {inside} link set lo up")
        tool(name, f"ip -n {inside} link add eth0 type veth peer name {port} netns {bridge}")
        tool(name, f"ip -n {inside} address add {address(host)}/24 dev eth0")
        tool(name, f"ip -n {bridge} link set {port} master bridge")
        for place, link in ((inside, "eth0"), (bridge, port)):
            tool(name, f"tc -n {place} qdisc add dev {link} root {bucket}")
            _up(name, place, link)


def _up(name: str, namespace: str, link: str) -> None:
    """Bring a link up; it gets no IPv6 address, whose discovery would send packets that nobody asked for."""
    if Path("/proc/net/if_inet6").exists():
        tool(name, f"ip -n {namespace} link set {link} addrgenmode none")
    tool(name, f"ip -n {namespace} link set {link} up")


def tool(name: str, command: str) -> str:
    """Output of a command that ends by itself; it carries the lab's mark, so that it does not outlive the lab."""
    marked = {**os.environ, MARK: name}
    return subprocess.run(command.split(), env=marked, capture_output=True, text=True, check=True).stdout
