"""Simulated hosts: their network is as slow as it should be and leads nowhere else."""

import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import netlab
import netlab_links
import psutil
import pytest
from labs import shell, start

RATE = 200_000_000
# Sends `count` bytes to each host in `to`, and waits for `expected` senders. All hosts have the clock of the machine.
TRAFFIC = """
import json, os, socket, sys, threading, time
to, expected, count = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
server = socket.create_server(("0.0.0.0", 7000))
seen = []
def receive():
    connection = server.accept()[0]
    buffer, total, first = bytearray(1 << 18), 0, None
    while got := connection.recv_into(buffer):
        first = first or time.monotonic()
        total += got
    seen.append((total, first, time.monotonic()))
def send(host):
    while True:
        try:
            connection = socket.create_connection(("h%d" % host, 7000))
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    with connection:
        connection.sendall(bytes(count))
jobs = [threading.Thread(target=receive) for _ in range(expected)]
jobs += [threading.Thread(target=send, args=(host,)) for host in to]
for job in jobs: job.start()
for job in jobs: job.join()
print(json.dumps(seen))
"""
EXCHANGE = """
import os, socket, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
sent = torch.full((size, 300_000), float(rank))
received = torch.empty_like(sent)
dist.barrier()
began = time.monotonic()
dist.all_to_all_single(received, sent)
dist.barrier()
assert received[:, -1].tolist() == list(range(size))
print(socket.gethostname(), time.monotonic() - began)
dist.destroy_process_group()
"""


def traffic(lab: Any, to: dict[int, list[int]], count: int) -> list[tuple[int, float, float]]:
    """What was received, since when and until when, by each host from each sender."""
    everyone = [host for receivers in to.values() for host in receivers]
    commands = [
        [sys.executable, "-c", TRAFFIC, json.dumps(to.get(host, [])), str(everyone.count(host)), str(count)]
        for host in range(lab.hosts)
    ]
    outcome = lab.run(commands)
    assert outcome.code == 0
    return [tuple(seen) for line in outcome.stdout for seen in json.loads(line)]


def links() -> str:
    return re.sub(
        r"@\S+", "", subprocess.run(["ip", "-o", "address"], capture_output=True, text=True, check=True).stdout
    )


@pytest.mark.parametrize("to", [{0: [1]}, {0: [2], 1: [2]}, {0: [1, 2]}, {0: [1], 1: [0]}])
def test_links_have_their_rate_in_both_directions(lab: Any, to: dict[int, list[int]]) -> None:
    count = 4_000_000
    seen = traffic(lab, to, count)
    shared = 1 if to == {0: [1], 1: [0]} else len(seen)  # of the transfers, how many cross one link in one direction
    bits = 8 * count * shared
    rate = bits / (max(end for *_, end in seen) - min(first for _, first, _ in seen))
    assert [total for total, *_ in seen] == [count] * len(seen)
    assert 0.6 * RATE < rate < 1.05 * RATE


def test_interfaces_count_what_is_sent(lab: Any) -> None:
    before = [lab.interface_bytes(host) for host in range(3)]
    traffic(lab, {0: [1]}, 1_000_000)
    after = [lab.interface_bytes(host) for host in range(3)]
    sent = [new.sent - old.sent for new, old in zip(after, before, strict=True)]
    received = [new.received - old.received for new, old in zip(after, before, strict=True)]
    assert 1_000_000 < sent[0] < 1_100_000
    assert 1_000_000 < received[1] < 1_100_000
    assert max(sent[1], received[0]) < 100_000
    assert max(sent[2], received[2]) < 1_000


def test_nothing_is_sent_unasked(possible: None) -> None:
    with netlab.network(2, "1gbit") as quiet:
        shell(quiet, "sleep 0.5", "sleep 0.5")
        assert [quiet.interface_bytes(host) for host in range(2)] == [netlab.Traffic(sent=0, received=0)] * 2


def test_hosts_differ_and_know_one_another(lab: Any) -> None:
    script = "import socket; print(socket.gethostname(), *(socket.gethostbyname('h%d' % each) for each in range(3)))"
    outcome = lab.run([[sys.executable, "-c", script]] * 3)
    assert outcome.stdout == tuple(f"h{host} 10.77.0.1 10.77.0.2 10.77.0.3\n" for host in range(3))


def test_hosts_do_not_see_the_machine_nor_it_them(lab: Any) -> None:
    script = """
import socket, sys
for place in sys.argv[2:]:
    try:
        socket.create_connection((place, int(sys.argv[1])), timeout=5)
        print("reached", place)
    except OSError:
        pass
print(sorted(name for _, name in socket.if_nameindex()))
"""
    mine = {address.address for card in psutil.net_if_addrs().values() for address in card if address.family == 2}
    assert "127.0.0.1" in mine
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = str(server.getsockname()[1])
        outcome = lab.run([[sys.executable, "-c", script, port, "192.0.2.1", *mine]] * 3)
    assert outcome.stdout == ("['eth0', 'lo']\n",) * 3
    assert socket.gethostname() not in ("h0", "h1", "h2")
    assert "10.77.0" not in links()


def test_the_machine_keeps_its_own_network_and_files(possible: None) -> None:
    before = links(), socket.gethostname(), Path("/etc/hosts").read_bytes()
    with netlab.network(2, "200mbit") as made:
        shell(made, "true", "true")
        assert (links(), socket.gethostname(), Path("/etc/hosts").read_bytes()) == before
    assert (links(), socket.gethostname(), Path("/etc/hosts").read_bytes()) == before


def test_a_command_is_told_where_it_runs(lab: Any) -> None:
    names = ("host", "hosts", "address", "master", "port")
    variables = " ".join(f"$OUTGROW_NETLAB_{name.upper()}" for name in names)
    words = " ".join(f"{{{name}}}" for name in names)
    outcome = lab.run([["sh", "-c", f"echo {words} {variables} $GLOO_SOCKET_IFNAME {{other}}"]] * 3, port=1234)
    told = [f"{host} 3 10.77.0.{host + 1} 10.77.0.1 1234" for host in range(3)]
    assert outcome.stdout == tuple(f"{line} {line} eth0 {{other}}\n" for line in told)


def test_output_is_prefixed(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell(lab, "echo a; echo b >&2", "printf 'c\\nd'", "true")
    captured = capsys.readouterr()
    assert sorted(captured.out.splitlines()) == ["[0] a", "[1] c", "[1] d"]
    assert captured.err == "[0] b\n"


def test_each_host_has_its_command(lab: Any) -> None:
    with pytest.raises(ValueError, match="one command for each of 3 hosts, not 2"):
        shell(lab, "true", "true")


def test_two_labs_do_not_meet(lab: Any) -> None:
    outcomes = []
    running = threading.Thread(target=lambda: outcomes.append(shell(lab, "sleep 1; echo done", "true", "true")))
    running.start()
    with netlab.network(2, "200mbit") as other:
        assert shell(other, "true", "exit 5").code == 5
    running.join()
    assert outcomes[0].stdout == ("done\n", "", "")


@pytest.mark.parametrize(
    ("script", "code"), [("exit {host}", 1), ("test {host} = 0 || kill -TERM $$", 143), ("true", 0)]
)
def test_the_command_ends_as_the_first_that_failed(possible: None, script: str, code: int) -> None:
    with start("--hosts", "2", "--rate", "1gbit", "--", "sh", "-c", script) as process:
        _, errors = process.communicate()
    assert process.returncode == code
    assert ("host 1 failed" in errors) == (code != 0)
    assert "host 0 sent 0 bytes, received 0" in errors


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--hosts", "0", "--", "true"), "1 to 254 hosts, not 0"),
        (("--rate", "fast", "--", "true"), "not fast"),
        (("--rate", "0mbit", "--", "true"), "not 0mbit"),
        (("--hosts", "2"), "a command after --"),
    ],
)
def test_mistakes_are_explained(arguments: tuple[str, ...], why: str) -> None:
    with start(*arguments) as process:
        _, errors = process.communicate()
    assert process.returncode == 2
    assert why in errors
    assert "Traceback" not in errors


def test_a_machine_without_the_means_gets_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with start("--", "true") as process:
        _, errors = process.communicate()
    assert process.returncode == netlab.UNAVAILABLE_CODE
    assert len(errors.splitlines()) == 1
    assert errors.startswith("simulated hosts need")


def test_a_refusal_by_the_kernel_is_a_reason(possible: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlab_links, "shaping", lambda rate: "nosuchthing")
    reason = netlab_links.unavailable()
    assert reason is not None
    assert "nosuchthing" in reason
    assert "\n" not in reason


def test_programs_and_scripts_by_torchrun() -> None:
    script, program = netlab.torchrun(["a.py", "x"], 4, 2), netlab.torchrun(["outgrow", "train"], 4, 2)
    assert script[-2:] == ["a.py", "x"]
    assert "--no-python" not in script
    assert program[-3:] == ["--no-python", "outgrow", "train"]


@pytest.mark.slow
def test_gloo_meets_over_the_bridge(possible: None, tmp_path: Path) -> None:
    (tmp_path / "exchange.py").write_text(EXCHANGE)
    with netlab.network(4, "200mbit") as four:
        outcome = four.run([netlab.torchrun([str(tmp_path / "exchange.py")], 4, 1)] * 4)
        sent = [four.interface_bytes(host).sent for host in range(4)]
    assert outcome.code == 0
    names, seconds = zip(*(line.split() for line in outcome.stdout), strict=True)
    assert names == ("h0", "h1", "h2", "h3")
    bits = 3 * 300_000 * 32
    assert 0.3 * RATE < bits / max(map(float, seconds)) < 1.05 * RATE
    assert all(bits / 8 < count < 1.1 * bits / 8 for count in sent)
