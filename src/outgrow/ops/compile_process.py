"""A process that compiles kernels for another one: see `compile_processes.py`.

    python -m outgrow.ops.compile_process PARENT

Requests come by standard input, pickled; each is answered by a line. The process ends with its input, and with the
process PARENT.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from typing import Any

from outgrow.ops.backend import LoopKernel, find_kernel
from outgrow.ops.common_kernels import common_signatures
from outgrow.ops.compile_processes import ANSWERS, CompileRequest
from outgrow.ops.kernel_cache import is_stored

_LOOK_SECONDS = 0.5
_NICENESS = 5
"""Threads that train go first."""


def answer_requests(parent: int) -> None:
    """Compile what is asked for until nobody asks any more."""
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    # The parent handles Ctrl-C, which goes to both: a run ends its epoch.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    # Nothing but answers may be written there.
    answers = os.dup(1)
    os.dup2(2, 1)
    lines = {is_compiled: line for line, is_compiled in ANSWERS.items()}
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        os.write(answers, lines[compile_kernel(request)])


def compile_kernel(request: CompileRequest) -> bool:
    """Compile a kernel; return whether that could be done, and be kept."""
    try:
        kernel = find_kernel(request.kernel)
        if request.signature is not None:
            return _compile_form(kernel.in_parallel, request.signature)
        form = kernel.in_series if isinstance(kernel, LoopKernel) else kernel
        return all(_compile_form(form, each) for each in common_signatures(request.kernel))
    # Whatever it is, the parent meets it as well, where it can be seen.
    except Exception:
        return False


def _compile_form(form: Any, signature: tuple[Any, ...]) -> bool:
    form.compile(signature)
    return is_stored(form, signature)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    answer_requests(int(sys.argv[1]))
