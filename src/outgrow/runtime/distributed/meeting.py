"""How the workers that torchrun, or another launcher, has started find one another before each training.

torchrun restarts a group in rounds, and keeps one key-value store for all of them. No variable that it sets tells the
round: ``TORCHELASTIC_RESTART_COUNT`` counts the failures of one agent, and differs by host. So the workers of a round
agree on a prefix of keys that no earlier round has used.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
import uuid
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from outgrow.core.errors import WorkerError

MEETING_SECONDS = 300.0
"""How long a worker waits for the others of its round: hosts import torch and open graphs at different speeds."""
_POLL_SECONDS = 0.02
# Trainings of this process so far: a process may train several times, each time in a new group.
_training_numbers = itertools.count()


class Meeting(NamedTuple):
    """Where the workers of one round have met.

    Attributes:
        group_store: Store for the process group, with keys of its own.
        watchdog_store: Other connection to it: threads must not share one.
        attempt: Number of rounds that have begun this training before.
    """

    group_store: Store
    watchdog_store: Store
    attempt: int


def meet_workers(rank: int, size: int, *, seconds: float = MEETING_SECONDS) -> Meeting:
    """Wait until all workers of this round are there.

    Args:
        rank: Number of this worker.
        size: Number of workers.
        seconds: Longest time to wait.

    Raises:
        WorkerError: They have not come in time, or another process has taken the place of this one.
    """
    timeout = timedelta(seconds=seconds)
    if dist.is_initialized():
        host, port, shared = _host_store(timeout)
    else:
        host, port, shared = _connect_to_launcher(timeout)
    own = TCPStore(host, port, is_master=False, timeout=timeout)
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    number = next(_training_numbers)
    name, attempt = agree_on_round(
        PrefixStore("outgrow", shared), rank, size, training=number, restarts=restarts, seconds=seconds
    )
    return Meeting(PrefixStore(f"outgrow/{name}/group", shared), PrefixStore(f"outgrow/{name}/watchdog", own), attempt)


def _connect_to_launcher(timeout: timedelta) -> tuple[str, int, Store]:
    """Return the address of the launcher's store, and a connection."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # Not by ``env://``: older versions of torch put the agent's own count of restarts before the keys.
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        return host, port, TCPStore(host, port, is_master=False, timeout=timeout)
    # Worker 0 hosts the store, and each round has a new one.
    shared, _, _ = next(rendezvous("env://", timeout=timeout))
    return host, port, shared


def _host_store(timeout: timedelta) -> tuple[str, int, Store]:
    """Return the address of a new store, and a connection; worker 0 of the existing group hosts it."""
    address: list[tuple[str, int] | None] = [None]
    served = None
    if dist.get_rank() == 0:
        # Not the host's name if the launcher gave an address that is known to be reachable.
        host = os.environ.get("MASTER_ADDR", socket.gethostname())
        served = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        address = [(host, served.port)]
    dist.broadcast_object_list(address)
    [found] = address
    assert found is not None
    return *found, served or TCPStore(*found, is_master=False, timeout=timeout)


def agree_on_round(
    store: Store, rank: int, size: int, *, training: int = 0, restarts: int = 0, seconds: float = MEETING_SECONDS
) -> tuple[str, int]:
    """Agree with the other workers of this round on its name, in a store that has keys of earlier rounds.

    Each worker writes a token. Worker 0 proposes a name for the tokens that it sees, anew when one changes; a worker
    accepts a proposal with its own token. Once all have accepted the same, worker 0 confirms it. Tokens of workers that
    have died accept nothing.

    Args:
        store: The store.
        rank: Number of this worker.
        size: Number of workers.
        training: Number of earlier trainings in this process; that of worker 0 counts.
        restarts: Number of restarts that this worker's launcher knows of.
        seconds: Longest time to wait.

    Returns:
        The name, and the number of rounds that have begun this training before.

    Raises:
        WorkerError: The others have not come in time, or another process has taken the place of this one.
    """
    token = uuid.uuid4().hex
    store.set(f"token/{rank}", json.dumps([token, restarts]))
    deadline, parent = time.monotonic() + seconds, os.getppid()
    proposed = dict[int, Any]()
    name = ""
    while time.monotonic() < deadline and os.getppid() == parent:
        tokens = _read_all(store, "token", size)
        if tokens[rank][0] != token:
            raise _place_taken_error(rank, size)
        if rank == 0:
            if len(tokens) == size and tokens != proposed:
                proposed, name = tokens, uuid.uuid4().hex
                store.set("proposal", json.dumps([name, [tokens[each][0] for each in range(size)]]))
            accepted = _read_all(store, "accepted", size)
            if name and all(accepted.get(each) == name for each in range(1, size)):
                begun = store.add(f"begun/{training}", 1) - 1
                attempt = max(begun, *(count for _, count in tokens.values()))
                store.set("confirmed", json.dumps([name, attempt]))
                return name, attempt
        else:
            found, invited = _read(store, "proposal") or ("", [])
            if rank < len(invited) and invited[rank] == token:
                store.set(f"accepted/{rank}", json.dumps(found))
                confirmed, attempt = _read(store, "confirmed") or ("", 0)
                if confirmed == found:
                    return confirmed, attempt
        time.sleep(_POLL_SECONDS)
    raise _missing_error(store, rank, size, seconds)


def _read_all(store: Store, key: str, size: int) -> dict[int, Any]:
    """Return the values by worker, of those that have written one."""
    names = {each: f"{key}/{each}" for each in range(size)}
    if store.check(list(names.values())):
        return dict(enumerate(json.loads(value) for value in store.multi_get(list(names.values()))))
    return {each: json.loads(store.get(name)) for each, name in names.items() if store.check([name])}


def _read(store: Store, key: str) -> Any:
    return json.loads(store.get(key)) if store.check([key]) else None


def _place_taken_error(rank: int, size: int) -> WorkerError:
    return WorkerError(
        f"worker {rank} of {size} on {socket.gethostname()} has been replaced",
        needed="one process for each rank",
        got="another process that has the same rank",
        repair="end what is left of an earlier start of this job",
    )


def _missing_error(store: Store, rank: int, size: int, seconds: float) -> WorkerError:
    there = _read_all(store, "token", size)
    missing = [each for each in range(size) if each not in there]
    return WorkerError(
        f"worker {rank} of {size} on {socket.gethostname()} has not met the others",
        needed=f"all workers within {seconds:.0f} s",
        got=f"none of {', '.join(map(str, missing))}" if missing else "some that have ended since they came",
        repair="look at what their hosts have written, and at the network; then start all workers again",
    )
