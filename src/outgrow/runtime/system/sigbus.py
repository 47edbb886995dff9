"""What a process says that dies of SIGBUS: a mapped file cannot be read any more. Python itself would say nothing."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from outgrow.core.errors import StoreError

_EXIT_CODE = 2
_STANDARD_ERROR = 2


@contextmanager
def explain_bus_errors() -> Iterator[None]:
    """While the context is open, SIGBUS ends this process with an error that says what to do, and exit code 2.

    The signal comes to the thread that reads, in compiled code and perhaps with Python's lock held by another: what
    handles it is compiled, too, and calls nothing but the system.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        yield
        return
    set_handler = ctypes.CDLL(None).signal
    set_handler.restype, set_handler.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    before = set_handler(signal.SIGBUS, _compile_handler()[0])
    try:
        yield
    finally:
        set_handler(signal.SIGBUS, before)


@cache
def _compile_handler() -> tuple[int, object]:
    """The address of a compiled function of a signal's number, and what must live as long."""
    import llvmlite.binding as llvm

    libc, text = ctypes.CDLL(None), ctypes.create_string_buffer(_error_text())
    write, leave = (ctypes.cast(each, ctypes.c_void_p).value for each in (libc.write, libc._exit))
    code = f"""
        define void @handle(i32 %number) {{
            %write = inttoptr i64 {write} to i64 (i32, i64, i64)*
            %leave = inttoptr i64 {leave} to void (i32)*
            call i64 %write(i32 {_STANDARD_ERROR}, i64 {ctypes.addressof(text)}, i64 {len(text) - 1})
            call void %leave(i32 {_EXIT_CODE})
            ret void
        }}
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(code), machine)
    engine.finalize_object()
    return engine.get_function_address("handle"), (engine, text)


def _error_text() -> bytes:
    error = StoreError(
        "a file that is mapped into memory cannot be read any more (SIGBUS)",
        needed="files of the graph that stay as they are, on a disk that can be read",
        got="a file that has become shorter, a disk that failed, or shared memory that is full",
        repair="bring the files back, or make room; --resume then goes on from the last checkpoint",
    )
    return f"error: {error}\n".encode()
