"""Processes of the library that begin as forks of one that has imported everything.

To start Python and import torch and the library takes 1.4 to 2 CPU seconds, which was most of what tests of processes
cost. While `fork_processes` is in force, whoever starts ``python -m outgrow``, or workers, by `subprocess` gets a child
of its own as always, with its own id, session, streams, environment and command line; but this child was forked by a
server (`fork_server.py`). Linux only; elsewhere, and for other commands, processes start as ever, and so they do in
tests that are marked ``real_processes`` and in ``make nightly``.

How a child of the server becomes one of the caller: the server forks twice; the process in the middle ends; the kernel
gives its orphan to the nearest ancestor that has asked for orphans (PR_SET_CHILD_SUBREAPER), which is the caller.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import outgrow

LARGEST_REQUEST = 1 << 17  # bytes
POOL = str(Path(__file__).with_name("pool.py"))
_MODULES = (
    "outgrow",
    "outgrow.runtime.distributed.worker_main",
    "outgrow.runtime.distributed.fork_server_main",
)
_SERVER = str(Path(__file__).with_name("fork_server.py"))
_ANSWER_SECONDS = 60.0
_IMPORT_SECONDS = 240.0  # of a server, on a machine that is busy with other work
_SET_CHILD_SUBREAPER = 36  # of prctl
_ROOM = "x" * 8192  # in the server's command line and environment, for those of its children
_ROOM_VARIABLE = "TESTS_FORK_SERVER_ROOM"
# Set for each process; whatever else begins so was read when modules were imported.
_SET_LATER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "PYTHONPATH", "PYTHONFAULTHANDLER")
_READ_ON_IMPORT = ("OUTGROW", "NUMBA", "OMP", "MKL", "ATEN", "ONEDNN", "TRITON", "PYTHON", "LD_", "XDG", "HOME")


class ForkServer:
    """A process that has imported the library, and forks.

    Args:
        connection: Socket to it.
        process: The server, if it is a process that was started.
    """

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._connection, self._process = connection, process
        # The first answer comes when a server that was started has imported everything.
        connection.settimeout(_ANSWER_SECONDS if process is None else _IMPORT_SECONDS)

    def fork(self, request: bytes, streams: Sequence[int]) -> int:
        """Start a child of this process, as the server reads from a request in JSON; its id.

        Raises:
            OSError: The server has ended, or does not answer.
        """
        _adopt_orphans(True)
        try:
            socket.send_fds(self._connection, [request], list(streams))
            answer = self._connection.recv(64)
        finally:
            _adopt_orphans(False)
        if not answer:
            raise OSError("the fork server has ended")
        self._connection.settimeout(_ANSWER_SECONDS)
        return int(answer)

    def end(self) -> None:
        """End the server; processes that it has forked go on."""
        self._connection.close()
        if self._process is not None:
            self._process.wait()

    def kill(self) -> None:
        """End a server that does not answer, which must not fork any more."""
        if self._process is not None:
            self._process.kill()
        self.end()


class _Servers:
    """The servers of this process, by what of its environment was read on import."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: dict[tuple[tuple[str, str], ...], ForkServer | None] = {}
        self.can_start = True

    def find(self, environment: Mapping[str, str]) -> ForkServer | None:
        """The server for an environment. One that few processes have gets none: it takes as long as a process."""
        key = read_on_import(environment)
        if self.known.get(key) is None and self.can_start:
            needed = key in self.known or key == read_on_import(os.environ)
            self.known[key] = _start_server(environment) if needed else None
        return self.known.get(key)

    def end(self) -> None:
        """End all servers."""
        for server in filter(None, self.known.values()):
            server.end()
        self.known = {}

    def forget(self, server: ForkServer, why: OSError) -> None:
        """Do not use a server any more. Where one was too slow to answer, others would be, and slow tests further."""
        server.kill()
        self.known = {key: known for key, known in self.known.items() if known is not server}
        self.can_start = self.can_start and not isinstance(why, TimeoutError)


_servers = _Servers()
_originally = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_parameters = list(inspect.signature(_originally).parameters)
_USED = ("args", "executable", "cwd", "env", "start_new_session")
_ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
# What these must be for a process to be forked.
_PLAIN = {"preexec_fn": None, "pass_fds": (), "close_fds": True, "shell": False, "process_group": -1}
_PLAIN |= {"gid": None, "gids": None, "uid": None, "umask": -1}


@contextmanager
def fork_processes() -> Iterator[None]:
    """Let processes of the library begin as forks, as long as the context is entered."""
    if sys.platform != "linux" or not {*_USED, *_ENDS, *_PLAIN} <= set(_parameters):
        yield
        return
    with patch.object(subprocess.Popen, "_execute_child", _execute_child):
        yield


def _execute_child(popen: Any, *values: Any) -> None:
    """In the place of `subprocess.Popen._execute_child`."""
    given = dict(zip(_parameters, (popen, *values), strict=True))
    if not _fork(popen, given):
        _originally(popen, *values)


def _fork(popen: Any, given: Mapping[str, Any]) -> bool:
    """Whether a process could be forked, as a caller of `subprocess.Popen` wants it."""
    words = given["args"]
    plain = all(given[name] == value for name, value in _PLAIN.items())
    if not plain or isinstance(words, (str, bytes)) or given["executable"] not in (None, words[0]):
        return False
    words = [os.fsdecode(word) for word in words]
    if parse_command(words) is None:
        return False
    environment = dict(os.environ if given["env"] is None else given["env"])
    wanted = {
        "parent": os.getpid(),
        "words": words,
        "environment": environment,
        "cwd": os.fspath(given["cwd"] or os.getcwd()),
        "new_session": given["start_new_session"],
    }
    request = json.dumps(wanted).encode()
    ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
    streams = [place if end == -1 else end for place, end in enumerate(ends)]
    with _servers.lock:
        server = _servers.find(environment)
        if server is None or len(request) > LARGEST_REQUEST:
            return False
        try:
            popen.pid = server.fork(request, streams)
        except OSError as error:
            _servers.forget(server, error)
            return False
    popen._child_created = True
    popen._close_pipe_fds(*(given[name] for name in _ENDS))
    return True


def parse_command(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Split a command line into what Python runs, a module or file, and its arguments; None if it is not forked."""
    if words[0] == str(Path(sys.executable).with_name("outgrow")):
        return "outgrow", [*words[1:]]
    rest = [*words[1:]]
    if rest[:1] == ["-P"]:
        rest = rest[1:]
    if rest[:1] == ["-m"]:
        rest = rest[1:]
    fits = words[0] == sys.executable and rest and rest[0] in (*_MODULES, POOL)
    return (rest[0], rest[1:]) if fits else None


def read_on_import(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What of an environment a forked process cannot change: it was read when modules were imported."""
    found = [each for each in environment.items() if each[0].startswith(_READ_ON_IMPORT) and each[0] not in _SET_LATER]
    return tuple(sorted(found))


def _start_server(environment: Mapping[str, str]) -> ForkServer:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # PYTHONPATH and TMPDIR are of the process, not of the server, which imports the library that is tested here.
    settings = {**environment, _ROOM_VARIABLE: _ROOM, "PYTHONPATH": str(Path(outgrow.__file__).parents[1])}
    settings.pop("TMPDIR", None)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", _SERVER, str(theirs.fileno()), _ROOM],
            env=settings,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return ForkServer(ours, process)


def _adopt_orphans(adopt: bool) -> None:
    """Let orphans below this process become its children, or no longer."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def end_servers() -> None:
    """End the servers of this process."""
    _servers.end()


def use_only(server: ForkServer, environment: Mapping[str, str]) -> None:
    """In a process that was forked itself: have what it starts forked by its own server, or started."""
    _servers.known = {read_on_import(environment): server}
    _servers.can_start = False
