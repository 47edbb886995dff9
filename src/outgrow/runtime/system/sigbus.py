"""`explain_bus_errors`: an error message for SIGBUS, which otherwise kills the process silently."""

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
    """Make SIGBUS exit the process with exit code 2 and an error that says what to do.

    SIGBUS means that a mapped file cannot be read any more. It interrupts the reading thread in compiled
    code, perhaps while another thread holds the GIL, so the handler is compiled too and makes only system
    calls.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        yield
        return
    # Not `signal.signal`: a Python handler runs only between bytecodes, and the failing read would never
    # return.
    set_handler = ctypes.CDLL(None).signal
    set_handler.restype = ctypes.c_void_p
    set_handler.argtypes = [ctypes.c_int, ctypes.c_void_p]
    before = set_handler(signal.SIGBUS, _compile_handler()[0])
    try:
        yield
    finally:
        set_handler(signal.SIGBUS, before)


@cache
def _compile_handler() -> tuple[int, object]:
    """Compile the handler; return its address, and the objects that must outlive it."""
    import llvmlite.binding as llvm

    libc = ctypes.CDLL(None)
    # Prepared here: a signal handler must not allocate memory or format text.
    text = ctypes.create_string_buffer(_error_text())
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
    # The engine owns the machine code, and the code refers to the text.
    return engine.get_function_address("handle"), (engine, text)


def _error_text() -> bytes:
    error = StoreError(
        "a file that is mapped into memory cannot be read any more (SIGBUS)",
        needed="files of the graph that stay as they are, on a disk that can be read",
        got="a file that has become shorter, a disk that failed, or shared memory that is full",
        repair="bring the files back, or make room; --resume then goes on from the last checkpoint",
    )
    return f"error: {error}\n".encode()
