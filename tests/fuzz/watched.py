"""The process in which inputs are read: with limits, and with an eye on what it does besides.

    python watched.py READER FOLDER

It reads one line of JSON for each input and answers with another. Readers may write to FOLDER/tmp and FOLDER/out only.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import traceback
from pathlib import Path
from types import CodeType
from typing import Any

from cases import ACCEPTED, REFUSED

_LONGEST_MESSAGE = 4000
_WATCHED = ("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile")
_WATCHED += ("subprocess.Popen", "pty.spawn", "ctypes.dlopen", "pickle.find_class", "webbrowser.open")
_WATCHED += ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate")
_WATCHED += ("socket.__new__", "socket.connect", "socket.bind", "sys.settrace", "code.__new__", "function.__new__")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MAKERS = ("collections/__init__.py", "dataclasses.py")
_KNOWN_ROOTS = ("numpy", "scipy", "torch", "pyarrow", "outgrow", "encodings", "sympy")


class Watch:
    """Notes what a reader has no business to do. Only one can be, since hooks stay for the life of a process.

    Args:
        folders: Where it may write.
    """

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self.on = False
        self.events: list[str] = []
        self._folders = tuple(str(folder) for folder in folders)
        self._code = tuple({str(Path(module.__file__ or "/").parents[1]) for module in (os, json, importlib)})
        self._code += tuple(path for path in sys.path if path)
        sys.addaudithook(self._hook)

    def _hook(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.on:
            return
        self.on = False
        try:
            if self._wrong(event, given):
                by = [Path(frame.filename).name for frame in traceback.extract_stack()[-6:-1]]
                self.events.append(f"{event} {str(given)[:200]} by {', '.join(by)}")
        finally:
            self.on = True

    def _wrong(self, event: str, given: tuple[Any, ...]) -> bool:
        if event == "open":
            path, _, flags = given
            return bool((flags or 0) & _WRITES) and not isinstance(path, int) and not self._inside(path)
        if event == "exec":
            name = given[0].co_filename if isinstance(given[0], CodeType) else str(given[0])
            caller = sys._getframe(2).f_code.co_filename  # modules that are imported late make classes of texts
            return not name.startswith((*self._code, "<frozen")) and not caller.endswith(_MAKERS)
        if event == "import":
            root = str(given[0]).partition(".")[0]
            return root == "antigravity" or root not in (*_KNOWN_ROOTS, *sys.stdlib_module_names)
        if event in _WATCHED:
            paths = [part for part in given if isinstance(part, (str, bytes, os.PathLike))]
            within_a_folder = isinstance(given[-1], int) and given[-1] >= 0  # rmtree names files by their open folder
            return not (event.startswith("os.") and (within_a_folder or (paths and all(map(self._inside, paths)))))
        return False

    def _inside(self, path: Any) -> bool:
        return os.path.abspath(os.fsdecode(path)).startswith(self._folders)


class Meter:
    """The most memory that was in use for an input."""

    def __init__(self) -> None:
        self._status = open("/proc/self/status", encoding="ascii")  # noqa: SIM115
        self._reset = open("/proc/self/clear_refs", "w", encoding="ascii")  # noqa: SIM115

    def start(self, bound: int) -> None:
        """From now on; more than ``bound`` further bytes are not to be had."""
        self._reset.write("5")
        self._reset.flush()
        self._before = self._read("VmRSS")
        resource.setrlimit(resource.RLIMIT_AS, (self._read("VmSize") + bound, resource.RLIM_INFINITY))

    def stop(self) -> int:
        """Bytes, at the most."""
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return self._read("VmHWM") - self._before

    def _read(self, name: str) -> int:
        self._status.seek(0)
        line = next(line for line in self._status if line.startswith(f"{name}:"))
        return 1024 * int(line.split()[1])


def result_of(opener: Any, case: dict[str, Any], out: Path | None) -> dict[str, Any]:
    """What becomes of an input."""
    from outgrow.core.errors import InputError

    try:
        opener(Path(case["folder"]) / case["main"], case["options"], out)
    except InputError as error:
        parts = (error.what, error.needed, error.got, error.repair)
        whole = all(isinstance(part, str) and part for part in parts) and len(str(error)) <= _LONGEST_MESSAGE
        return {"outcome": REFUSED if whole else "a bad message", "why": str(error)[:_LONGEST_MESSAGE]}
    except BaseException as error:
        at = error.__traceback__
        while at and at.tb_next:
            at = at.tb_next
        line = f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at else ""
        return {"outcome": f"raised {type(error).__name__}", "why": f"{str(error)[:500]} ({line})"}
    return {"outcome": ACCEPTED, "why": ""}


def main() -> None:
    """Answer one input after another."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    name, folder = sys.argv[1], Path(sys.argv[2])
    module, _, attribute = name.partition(":")
    known = importlib.import_module(module if attribute else "opened")
    opener = getattr(known, attribute) if attribute else known.OPENERS[name]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    watch, meter = Watch((folder / "tmp", folder / "out")), Meter()
    for line in sys.stdin:
        case = json.loads(line)
        gc.collect()
        if case["warm"]:
            gc.freeze()  # what is there now stays, and need not be looked at for each input
        meter.start(case["bound"])
        watch.events.clear()
        watch.on = not case["warm"]
        answer = result_of(opener, case, Path(case["out"]) if case["out"] else None)
        watch.on = False
        answer |= {"events": watch.events[:5], "memory": meter.stop()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
