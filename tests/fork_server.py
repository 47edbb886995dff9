"""The server that forks processes: ``python fork_server.py SOCKET ROOM``, started by `process_forks`.

It imports the library, and forks for each request. The child takes on the streams, environment, folder and command
line that were asked for, and runs its command. If that may start workers, it forks a server of its own first, while it
has no threads yet.

How a child of the server becomes one of the caller: the server forks twice; the process in the middle ends; the kernel
gives its orphan to the nearest ancestor that has asked for orphans (PR_SET_CHILD_SUBREAPER), which is the caller.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent))
from process_forks import LARGEST_REQUEST, POOL, ForkServer, fork_processes, parse_command, use_only

_SEARCHED = sys.path[1:]  # without PYTHONPATH


def _serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request. Returns in the children, each with its request and streams."""
    while True:
        data, streams, _, _ = socket.recv_fds(connection, 2 * LARGEST_REQUEST, 3)
        if not data:
            os._exit(0)  # whom it served has ended
        request = json.loads(data)
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)
            _wait_for_adoption(request["parent"])
            if request["new_session"]:
                os.setsid()
            connection.send(str(os.getpid()).encode())
            connection.close()
            return request, streams
        os.waitpid(between, 0)
        for stream in streams:
            os.close(stream)


def _wait_for_adoption(parent: int) -> None:
    deadline = time.monotonic() + 10
    while os.getppid() != parent:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.0002)


def _become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Take on the streams, environment, folder and settings of a process that had just been started."""
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
    for stream in set(streams) - {0, 1, 2}:
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _show(request["words"], request["environment"])
    from outgrow.runtime.system.environment import set_thread_environment

    set_thread_environment()  # as the library does it when it is imported
    _open_streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    tempfile.tempdir = None
    random.seed()
    importlib.import_module("numpy").random.seed()
    # As torch and Numba do it when they are imported.
    cores = len(os.sched_getaffinity(0))
    importlib.import_module("torch").set_num_threads(int(os.environ.get("OMP_NUM_THREADS", cores)))
    importlib.import_module("numba.core.config").reload_config()


def _open_streams() -> None:
    """Give this process standard streams of its own: those that it has are buffers of the server."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _show(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Let the system show a command line and an environment of this process, by which tests find it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, arguments_end, variables, variables_end = (int(field) for field in fields[45:49])
    line = os.fsencode(" ".join(words))[: arguments_end - arguments - 2]
    # A last byte other than zero says that the arguments are one string, which ends at the first zero.
    ctypes.memmove(arguments, line.ljust(arguments_end - arguments - 1, b"\0") + b"x", arguments_end - arguments)
    block = b"".join(os.fsencode(f"{name}={value}\0") for name, value in environment.items())
    size = variables_end - variables
    ctypes.memmove(variables, block[: size - 2].ljust(size, b"\0"), size)


def _run(words: list[str]) -> NoReturn:
    """Do what Python, or the script ``outgrow``, does with a command line."""
    command = parse_command(words)
    assert command is not None
    entry, arguments = command
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    first = [] if "-P" in words[1:2] or words[0] != sys.executable else [os.getcwd()]
    sys.path[:] = [*first, *(path for path in paths if path), *_SEARCHED]
    sys.argv[:] = [words[0], *arguments]
    if entry == "outgrow":
        _fork_own_server()
    try:
        if entry == POOL:
            runpy.run_path(entry, run_name="__main__")
        else:
            runpy.run_module(entry, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        _exit(end.code or 0)
    _exit(0)


def _fork_own_server() -> None:
    """Fork a server for this process, which returns; its server and what that forks do not."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork():
        theirs.close()
        use_only(ForkServer(ours), os.environ)
        return
    ours.close()
    _show(["fork server"], {})
    with open(os.devnull, "rb+", 0) as nothing:
        for place in (0, 1, 2):  # whoever reads these waits for the end of the parent, not of its server
            os.dup2(nothing.fileno(), place)
    _run_server(theirs, parent)


def _run_server(connection: socket.socket, parent: int) -> NoReturn:
    from outgrow.core.process import end_with_parent

    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request, streams = _serve(connection)
    _become(request, streams)
    _run(request["words"])


def _exit(code: int) -> NoReturn:
    """End as Python does, but take nothing apart: to free all that was imported takes 0.2 s."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _import_library() -> None:
    """Import all that a process of the library may need on a CPU."""
    import outgrow

    for found in pkgutil.walk_packages(outgrow.__path__, "outgrow."):
        if not found.name.endswith("_main") and not found.name.endswith("__main__") and ".gpu" not in found.name:
            with suppress(ImportError):
                importlib.import_module(found.name)
    target = importlib.import_module("numba.core.registry").cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()
    gc.collect()
    gc.freeze()


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    parent = os.getppid()
    _import_library()
    with fork_processes():
        _run_server(connection, parent)


if __name__ == "__main__":
    main()
