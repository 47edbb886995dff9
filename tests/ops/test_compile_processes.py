"""Other processes compile kernels, one thread stands in meanwhile, and whatever happens to them is no error."""

from __future__ import annotations

import ast
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import psutil
import pytest

import outgrow
from outgrow.core.errors import InputError
from outgrow.ops import backend, compile_processes
from outgrow.ops.aggregation import narrow_spmm, spmm
from outgrow.ops.backend import SMALL_BYTES, LoopKernel, find_kernel
from outgrow.ops.compile_process import compile_kernel
from outgrow.ops.compile_processes import NUMBER_VARIABLE, CompileProcesses, CompileRequest, KernelName, most_processes
from outgrow.ops.kernel_cache import MODE_VARIABLE
from outgrow.ops.kernel_folder import FOLDER_VARIABLE

pytestmark = pytest.mark.skipif(os.name != "posix", reason="on Windows nothing is compiled elsewhere")
KERNEL: Any = backend._run_empty_loop
ROWS = SMALL_BYTES + 1


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CompileProcesses]:
    """The processes of this one, as users have them, and an empty folder."""
    for name, value in ((MODE_VARIABLE, "auto"), (FOLDER_VARIABLE, str(tmp_path)), (NUMBER_VARIABLE, "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(backend, "_most_threads", lambda: 2)
    made = CompileProcesses()
    monkeypatch.setattr(backend, "compile_processes", made)
    yield made
    made.close()


def run(dtype: type) -> tuple[int, int]:
    """Run the kernel for arguments of a type; how often its form for all threads was loaded and compiled for it."""
    values = np.zeros(ROWS, dtype)
    KERNEL(values)
    assert (values == 1).all()
    stats = KERNEL.in_parallel.stats
    return tuple(  # type: ignore[return-value]
        sum(count for (array,), count in each.items() if str(array.dtype) == dtype.__name__)
        for each in (stats.cache_hits, stats.cache_misses)
    )


def test_one_thread_stands_in_until_another_process_has_compiled(processes: CompileProcesses) -> None:
    told = []
    assert run(np.int16) == (0, 0)
    assert processes.idle_seconds == 0
    processes.wait(lambda *state: told.append(state))
    assert set(told) == {(1, 1, "_run_empty_loop")}
    assert processes.num_kernels == 1
    assert run(np.int16) == (1, 0)
    assert run(np.int16) == (1, 0)
    assert processes.idle_seconds > 0


def test_a_process_that_dies_is_no_error_and_has_no_successor(processes: CompileProcesses) -> None:
    assert run(np.uint16) == (0, 0)
    while not processes._processes:
        time.sleep(0.01)
    processes._processes[0].kill()
    processes.wait(lambda *state: None)
    assert processes.num_missing == 1
    assert run(np.uint16) == (0, 1)
    assert run(np.int8) == (0, 1)
    assert (len(processes._processes), processes.num_kernels) == (1, 0)


def test_small_arrays_do_not_wait_for_threads(processes: CompileProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = LoopKernel(KERNEL.__wrapped__, lambda in_parallel: numba.njit(parallel=in_parallel)(KERNEL.__wrapped__))
    small, large = (np.zeros(count, np.int64) for count in (SMALL_BYTES // 8, SMALL_BYTES // 8 + 1))
    for _ in range(2):
        kernel(small)
    assert (len(kernel.in_parallel.signatures), len(kernel.in_series.signatures)) == (0, 1)  # type: ignore[attr-defined]
    assert processes._processes == []
    monkeypatch.setenv(NUMBER_VARIABLE, "0")
    kernel(large)
    kernel(small)
    assert len(kernel.in_parallel.signatures) == 1  # type: ignore[attr-defined]
    assert (small == 1).all()


def test_what_times_steps_has_compiled_before(processes: CompileProcesses) -> None:
    with backend.compile_before_running():
        assert run(np.uint8) == (0, 1)
    with backend.run_on_all_threads():
        assert run(np.uint32) == (0, 1)


def test_large_arrays_wait_for_all_threads(processes: CompileProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "MEDIUM_BYTES", SMALL_BYTES)
    assert run(np.float32) == (0, 1)


def test_without_memory_or_in_a_forked_child_none_is_started(
    processes: CompileProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CompileRequest(KernelName("outgrow.ops.backend", "_run_empty_loop"), ())
    monkeypatch.setattr(compile_processes, "available_bytes", lambda: 1 << 29)
    assert not processes.submit(request)
    monkeypatch.undo()
    child = os.fork()
    if not child:
        os._exit(int(compile_processes.compile_processes.submit(request)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_kernel_that_cannot_be_compiled_fails_alone(processes: CompileProcesses) -> None:
    for name in (KernelName("outgrow.ops.backend", "no_such"), KernelName("no_such_module", "no_such")):
        assert not compile_kernel(CompileRequest(name, ()))


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({}, None),
        ({NUMBER_VARIABLE: "3"}, 3),
        ({NUMBER_VARIABLE: "0"}, 0),
        ({"LOCAL_WORLD_SIZE": "2", NUMBER_VARIABLE: "3"}, 0),
    ],
)
def test_how_many(settings: dict[str, str], number: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (NUMBER_VARIABLE, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    assert most_processes() == (min(cores - 1, 4) if number is None else number)


def test_a_number_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NUMBER_VARIABLE, "-1")
    with pytest.raises(InputError, match=NUMBER_VARIABLE):
        most_processes()


HOLDER = """
import os, subprocess, sys, time

child = subprocess.Popen(
    [sys.executable, "-m", "outgrow.ops.compile_process", str(os.getpid())], stdin=subprocess.PIPE
)
copy = os.dup2(child.stdin.fileno(), 9, inheritable=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)  # so that its input goes on
print(child.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_its_parent_though_others_hold_its_input() -> None:
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as holder:
        assert holder.stdout is not None
        child = psutil.Process(int(holder.stdout.readline()))
        assert child.is_running()
        try:
            holder.kill()
            gone, _ = psutil.wait_procs([child], timeout=60)
            assert gone
        finally:
            os.killpg(holder.pid, signal.SIGKILL)


def test_kernels_are_found_by_their_names() -> None:
    made = [spmm._make_spmm_kernel(None), spmm._make_spmm_kernel((1, 1, 8)), narrow_spmm.make_narrow_spmm(1, 4)]
    for kernel in (KERNEL, *made):
        assert isinstance(kernel, LoopKernel)
        assert find_kernel(pickle.loads(pickle.dumps(kernel.name))) is kernel


def test_every_loop_of_the_package_has_a_name() -> None:
    for path in Path(outgrow.__file__).parent.rglob("*.py"):
        for outer in ast.parse(path.read_text("utf-8")).body:
            inner = [each for each in ast.walk(outer) if isinstance(each, ast.FunctionDef) and each is not outer]
            marks = {ast.unparse(mark) for each in inner for mark in each.decorator_list}
            if marks & {"parallel_kernel", "reducing_kernel"}:
                assert isinstance(outer, ast.FunctionDef)
                assert [ast.unparse(mark) for mark in outer.decorator_list] == ["kernel_factory"], path


def test_another_kernel_runs_until_one_is_compiled(
    processes: CompileProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, others = np.zeros(3, np.complex64), list[int]()

    def run() -> int:
        values[:] = 0
        KERNEL.run_if_compiled(lambda: others.append(1), values)
        return int((values == 1).sum())

    # Few numbers, too: the caller says that it pays.
    assert (run(), len(others)) == (0, 1)
    processes.wait(lambda *state: None)
    assert processes.num_kernels == 1
    assert (run(), len(others)) == (3, 1)
    monkeypatch.setenv(MODE_VARIABLE, "serial")
    assert (run(), len(others)) == (0, 2)
