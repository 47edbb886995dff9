"""How the workers that torchrun, or another launcher, has started find one another before each training.

torchrun restarts a group in rounds, and keeps one key-value store for all of them. No variable that it sets tells
the round: ``TORCHELASTIC_RESTART_COUNT`` counts the failures of one agent, and differs by host. So the workers of
a round agree on a prefix of keys that no earlier round has used.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import socket
import time
import uuid
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from outgrow.core.errors import WorkerError
from outgrow.runtime.distributed.async_exchange import communication_errors
from outgrow.runtime.distributed.failures import describe_worker
from outgrow.runtime.system.environment import is_in_program_group

RENDEZVOUS_SECONDS = 900.0
"""How long a worker waits: hosts import torch, open graphs and choose a strategy at different speeds."""
_POLL_SECONDS = 0.02
_POLLED_WORKERS = 16  # more of them ask less often: one thread of one process answers all
# Trainings of this process so far: a process may train several times, each time in a new group.
_training_numbers = itertools.count()


class Round(NamedTuple):
    """What the workers of a round have agreed on.

    Attributes:
        name: Name that no other round has.
        attempt: Number of rounds that have begun this training before.
        job: Name of the job, which its rounds share; empty if nothing tells that two rounds are of one job.
    """

    name: str
    attempt: int
    job: str


class Rendezvous(NamedTuple):
    """Where the workers of one round have met.

    Attributes:
        group_store: Store for the process group, with keys of its own.
        watchdog_store: Other connection to it: threads must not share one.
        round: What they have agreed on.
    """

    group_store: Store
    watchdog_store: Store
    round: Round


def join_rendezvous(rank: int, size: int, *, seconds: float = RENDEZVOUS_SECONDS) -> Rendezvous:
    """Wait until all workers of this round are there.

    Args:
        rank: Number of this worker.
        size: Number of workers.
        seconds: Longest time to wait.

    Raises:
        WorkerError: They have not come in time, or another process has taken the place of this one.
        CommunicationError: The store cannot be reached.
    """
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    with communication_errors():
        host, port, shared = _open_store(rank, timedelta(seconds=seconds))
        own = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=seconds))
        agreed = agree_on_round(
            PrefixStore("outgrow", shared),
            rank,
            size,
            training=next(_training_numbers),
            restarts=restarts,
            seconds=seconds,
        )
    group_store, watchdog_store = (
        PrefixStore(f"outgrow/{agreed.name}/{kind}", store) for kind, store in (("group", shared), ("watchdog", own))
    )
    return Rendezvous(group_store, watchdog_store, agreed)


def _open_store(rank: int, timeout: timedelta) -> tuple[str, int, Store]:
    """Return the address of the store where workers meet, and a connection."""
    # The agent's store remembers earlier rounds, so it is preferred to one of a program's group.
    if is_in_program_group() and not _has_agent_store():
        return _host_store(rank, timeout)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return host, port, _connect_to_launcher(host, port, rank == 0 and not _has_agent_store(), timeout)


def _has_agent_store() -> bool:
    """Whether an agent of torchrun hosts the store, which is then there in all rounds of its job."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


@functools.cache
def _connect_to_launcher(host: str, port: int, hosts_it: bool, timeout: timedelta) -> Store:
    # Kept until the process ends: a second server at the same address would not be reached by all.
    return TCPStore(host, port, is_master=hosts_it, wait_for_workers=False, multi_tenant=True, timeout=timeout)


def _host_store(rank: int, timeout: timedelta) -> tuple[str, int, Store]:
    """Return the address of a new store, and a connection; worker 0 of the program's group hosts it."""
    # Objects travel as tensors of a device that the backend has.
    device = None
    if dist.get_backend() == dist.Backend.NCCL:
        local = int(os.environ.get("LOCAL_RANK", rank % torch.cuda.device_count()))
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, socket.gethostname())
    served = None
    address: list[Any] = [None]
    if rank == 0:
        # The name of a host may not be known to itself.
        host = "127.0.0.1" if len(set(names)) == 1 else os.environ.get("MASTER_ADDR", names[0])
        served = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        address = [(host, served.port)]
    dist.broadcast_object_list(address, device=device)
    [(host, port)] = address
    return host, port, served or TCPStore(host, port, is_master=False, timeout=timeout)


def agree_on_round(
    store: Store, rank: int, size: int, *, training: int = 0, restarts: int = 0, seconds: float = RENDEZVOUS_SECONDS
) -> Round:
    """Agree with the other workers of this round on its name, in a store that has keys of earlier rounds.

    Each worker writes a token. Worker 0 proposes a name for the tokens that it sees, anew when one changes; a
    worker accepts a proposal with its own token. Once all have accepted the same, worker 0 confirms it. Tokens
    of workers that have died accept nothing.

    Args:
        store: The store.
        rank: Number of this worker.
        size: Number of workers.
        training: Number of earlier trainings in this process; that of worker 0 counts.
        restarts: Number of restarts that this worker's launcher knows of.
        seconds: Longest time to wait.

    Raises:
        WorkerError: The others have not come in time, or another process has taken the place of this one.
    """
    token = uuid.uuid4().hex
    store.set(f"token/{rank}", json.dumps([token, restarts]))
    deadline, parent = time.monotonic() + seconds, os.getppid()
    member = _Leader(store, size, training) if rank == 0 else _Follower(store, rank, token)
    while time.monotonic() < deadline:
        if os.getppid() != parent:
            raise WorkerError(
                f"{describe_worker(rank, size)} ends before it has met the others",
                needed="the process that started this one",
                got="it is gone",
                repair="look at what it has written",
            )
        if _read(store, f"token/{rank}")[0] != token:
            raise WorkerError(
                f"{describe_worker(rank, size)} has been replaced",
                needed="one process for each rank",
                got="another process that has the same rank",
                repair="end what is left of an earlier start of this job",
            )
        if (agreed := member.poll()) is not None:
            return agreed
        time.sleep(_POLL_SECONDS * max(1, size / _POLLED_WORKERS))
    raise _missing_error(store, rank, size, seconds)


class _Leader:
    """Worker 0 while it meets the others."""

    def __init__(self, store: Store, size: int, training: int) -> None:
        self._store = store
        self._size = size
        self._training = training
        self._proposed = dict[int, Any]()
        self._name = ""

    def poll(self) -> Round | None:
        """Propose a name for the tokens that are there; confirm it once all have accepted."""
        tokens = _read_all(self._store, "token", self._size)
        if len(tokens) < self._size:
            return None
        if tokens != self._proposed:
            self._proposed, self._name = tokens, uuid.uuid4().hex
            proposal = [self._name, [tokens[each][0] for each in range(self._size)]]
            self._store.set("proposal", json.dumps(proposal))
        accepted = _read_all(self._store, "accepted", self._size)
        if any(accepted.get(each) != self._name for each in range(1, self._size)):
            return None
        begun = self._store.add(f"begun/{self._training}", 1) - 1
        agreed = Round(self._name, max(begun, *(count for _, count in tokens.values())), self._find_job())
        self._store.set("confirmed", json.dumps(agreed))
        return agreed

    def _find_job(self) -> str:
        if not _has_agent_store():
            # The name that a user has given; torchrun's own is the same for all jobs.
            name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
            return "" if name == "none" else name
        if not self._store.check(["job"]):
            self._store.set("job", uuid.uuid4().hex)
        return str(self._store.get("job").decode())


class _Follower:
    """Another worker while it meets the others."""

    def __init__(self, store: Store, rank: int, token: str) -> None:
        self._store = store
        self._rank = rank
        self._token = token
        self._accepted = ""

    def poll(self) -> Round | None:
        """Accept a proposal with the own token; return it once it is confirmed."""
        name, invited = _read(self._store, "proposal") or ("", [])
        if self._rank >= len(invited) or invited[self._rank] != self._token:
            return None
        if name != self._accepted:
            self._store.set(f"accepted/{self._rank}", json.dumps(name))
            self._accepted = name
        confirmed = Round(*(_read(self._store, "confirmed") or ("", 0, "")))
        return confirmed if confirmed.name == name else None


def _read_all(store: Store, key: str, size: int) -> dict[int, Any]:
    """Return the values by worker, of those that have written one."""
    names = {each: f"{key}/{each}" for each in range(size)}
    if store.check(list(names.values())):
        return dict(enumerate(json.loads(value) for value in store.multi_get(list(names.values()))))
    return {each: json.loads(store.get(name)) for each, name in names.items() if store.check([name])}


def _read(store: Store, key: str) -> Any:
    return json.loads(store.get(key)) if store.check([key]) else None


def _missing_error(store: Store, rank: int, size: int, seconds: float) -> WorkerError:
    there = _read_all(store, "token", size)
    missing = [each for each in range(size) if each not in there]
    return WorkerError(
        f"{describe_worker(rank, size)} has not met the others",
        needed=f"all workers within {seconds:.0f} s",
        got=f"none of {', '.join(map(str, missing))}" if missing else "some that have ended since they came",
        repair="look at what their hosts have written, and at the network; then start all workers again",
    )
