"""On-disk cache of compiled kernels, keyed by all that they are compiled from: no entry is outdated.

A folder stands for one state of the sources in `outgrow.ops`, of Python, NumPy, Numba, LLVM and the CPU; a
folder in it for one state of a file with kernels and of the files beside it in the package. Neither paths nor
times count: another copy of the package finds what the first has compiled, and a change to a helper
invalidates what depends on it. If nothing can be stored, kernels are compiled in memory.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import llvmlite
import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, _CacheLocator
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target

from outgrow.core.compile_clock import compile_clock
from outgrow.core.errors import InputError
from outgrow.ops.file_lock import hold_file_lock
from outgrow.ops.kernel_folder import FOLDER_VARIABLE, STATE_PREFIX, kernel_folder

MODE_VARIABLE, WARNED_VARIABLE = "OUTGROW_KERNELS", "OUTGROW_KERNELS_IN_MEMORY"
_OPS = Path(__file__).parent
_SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "USING_SVML")
"""Settings that change the code that Numba generates, and are not part of its own keys."""
_MAX_STAMPS, _MAX_FILE_VERSIONS = 16, 4
"""Folders to keep: of states of everything, and of one file with kernels within a state."""
_IN_USE_SECONDS = 3600.0


def state_folder() -> Path:
    """Return the folder of kernels for the sources in `outgrow.ops` as they are; there is none if none was compiled.

    It is that of kernels without parallel loops, which every run has.

    Raises:
        RuntimeError: The user has no home.
    """
    return kernel_folder() / f"{STATE_PREFIX}{_toolchain_stamp(False)}"


AUTO, PARALLEL, SERIAL = "auto", "parallel", "serial"


def loop_mode() -> str:
    """Return what ``$OUTGROW_KERNELS`` says of loops of kernels.

    ``auto``, which it is without the variable: on one thread where arrays are small; ``parallel``: on all threads;
    ``serial``: on one.

    Raises:
        InputError: The variable is set to something else.
    """
    mode = os.environ.get(MODE_VARIABLE) or AUTO
    if mode not in (AUTO, PARALLEL, SERIAL):
        raise InputError(
            f"the environment variable {MODE_VARIABLE} is not understood",
            needed=f"{AUTO} (which it is without the variable), {PARALLEL} or {SERIAL}",
            got=repr(mode),
            repair=f"unset {MODE_VARIABLE}",
        )
    return mode


def cache_on_disk(dispatcher: Any) -> Any:
    """Look for a compiled Numba function on disk before compiling it, and store it there afterwards.

    Of several processes that need it, one compiles while the others wait and then load it.
    """
    if isinstance(dispatcher, Dispatcher):  # with NUMBA_DISABLE_JIT it is the Python function
        _wrap_compile(dispatcher)
    return dispatcher


def _wrap_compile(dispatcher: Any) -> None:
    compiling = dispatcher.compile
    for each in (*_ops_sources(), *_sibling_sources(inspect.getfile(dispatcher.py_func))):
        _first_stat_stamp(each)

    @functools.wraps(compiling)
    def load_or_compile(signature: Any) -> Any:
        # Numba's lock before ours in every thread, so that no two wait for each other.
        with global_compiler_lock, ExitStack() as held:
            in_parallel = bool(dispatcher.targetoptions.get("parallel"))
            dispatcher._cache = _open_cache(dispatcher.py_func, held, in_parallel=in_parallel)
            return compiling(signature)

    dispatcher.compile = load_or_compile


def is_stored(dispatcher: Any, signature: tuple[Any, ...]) -> bool:
    """Whether a version of a compiled function is on disk; it is not loaded."""
    in_parallel = bool(dispatcher.targetoptions.get("parallel"))
    if _why_not_on_disk(dispatcher.py_func, in_parallel=in_parallel) is not None:
        return False
    return _KernelCache(dispatcher.py_func, ExitStack()).holds(signature, dispatcher.targetctx)


def _open_cache(function: Callable[..., Any], held: ExitStack, *, in_parallel: bool) -> Any:
    why = _why_not_on_disk(function, in_parallel=in_parallel)
    if why is not None:
        _warn_once(why)
        held.enter_context(compile_clock.record(function.__name__))
        return NullCache()
    return _KernelCache(function, held)


def _why_not_on_disk(function: Callable[..., Any], *, in_parallel: bool) -> str | None:
    """Return why compiled code can be neither read nor kept; None if a `_KernelCache` can do both."""
    file = inspect.getfile(function)
    # Numba makes locators by itself, and of a function alone.
    _locates_parallel.set(in_parallel)
    try:
        place = _ContentLocator.from_function(function, file)
    except (OSError, RuntimeError) as error:
        return str(error)
    if not all(_first_stat_stamp(each) == _stat_stamp(each) for each in (*_ops_sources(), *_sibling_sources(file))):
        return "its sources have changed since they were loaded"
    place.mark_used()
    return None


_locates_parallel = ContextVar("_locates_parallel", default=False)
"""Whether loops of the functions that are located run on all threads."""


class _ContentLocator(_CacheLocator):
    """Location of the compiled versions of a function."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._py_file = file  # Numba names it in its warnings
        self._line = function.__code__.co_firstlineno
        self._state = kernel_folder() / f"{STATE_PREFIX}{_toolchain_stamp(_locates_parallel.get())}"
        self._folder = self._state / f"{Path(file).stem}-{_hash_contents(_sibling_sources(file))[:16]}"

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _ContentLocator:
        return cls(py_func, py_file)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return str(self._line)

    def ensure_cache_path(self) -> None:
        self._state.parent.mkdir(parents=True, exist_ok=True)
        for folder, alike, most in (
            (self._state, f"{STATE_PREFIX}*", _MAX_STAMPS),
            (self._folder, f"{Path(self._py_file).stem}-*", _MAX_FILE_VERSIONS),
        ):
            with suppress(FileExistsError):
                folder.mkdir()
                _remove_oldest(folder.parent.glob(alike), most)

    def mark_used(self) -> None:
        """Record that the folders are in use."""
        for folder in (self._state, self._folder):
            with suppress(OSError):
                os.utime(folder)


class _KernelImpl(CompileResultCacheImpl):
    _locator_classes = [_ContentLocator]  # noqa: RUF012


class _KernelCache(FunctionCache):
    """Numba's cache, taking turns with other processes; no state of the disk is an error.

    Args:
        function: Function to compile.
        held: Receives the lock if the function must be compiled.
    """

    _impl_class = _KernelImpl

    def __init__(self, function: Callable[..., Any], held: ExitStack) -> None:
        cast(Any, super()).__init__(function)
        self._held = held

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._load_if_readable(sig, target_context)
        if found is None:
            self._held.enter_context(compile_clock.record(self._py_func.__name__))
            with suppress(OSError):
                self._impl.locator.ensure_cache_path()
                self._held.enter_context(hold_file_lock(Path(self._cache_path) / f"{self._impl.filename_base}.lock"))
                found = self._load_if_readable(sig, target_context)
        else:
            compile_clock.count_loaded()
        return found

    def _load_if_readable(self, sig: Any, target_context: Any) -> Any:
        try:
            return cast(Any, super()).load_overload(sig, target_context)
        # The files cannot be read, are incomplete after a crash, or are not Numba's.
        except Exception:
            return None

    def holds(self, sig: Any, target_context: Any) -> bool:
        """Whether there is an entry for a signature."""
        numbas = cast(Any, self)
        try:
            return numbas._cache_file.load(numbas._index_key(sig, target_context.codegen())) is not None
        # As in `_load_if_readable`.
        except Exception:
            return False

    def save_overload(self, sig: Any, data: Any) -> None:
        numbas = cast(Any, super())
        try:
            try:
                numbas.save_overload(sig, data)
            # Another process has removed the folder.
            except FileNotFoundError:
                numbas.save_overload(sig, data)
            except OSError:
                raise
            # A crash has left an incomplete index.
            except Exception:
                numbas.flush()
                numbas.save_overload(sig, data)
        except OSError as error:
            _warn_once(f"{kernel_folder()}: {error.strerror or error}")


@functools.cache
def _ops_sources() -> tuple[str, ...]:
    """Return the files that any kernel may depend on."""
    return tuple(sorted(str(file) for file in _OPS.rglob("*.py")))


@functools.cache
def _sibling_sources(file: str) -> tuple[str, ...]:
    """Return further files that kernels of a file may depend on: those of its folder in the package."""
    path = Path(file)
    if path.is_relative_to(_OPS) or not path.is_relative_to(_OPS.parent):
        return (file,)
    return tuple(sorted(str(each) for each in path.parent.glob("*.py")))


def _stat_stamp(file: str) -> tuple[int, int] | None:
    """Return a stamp that changes with a file, without reading it; None if there is no file."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@functools.cache
def _first_stat_stamp(file: str) -> tuple[int, int] | None:
    """Return `_stat_stamp` at the first call: about when Python loaded the file."""
    return _stat_stamp(file)


@functools.cache
def _hash_contents(files: tuple[str, ...]) -> str:
    """Return a hash of the contents of files of one tree, wherever it is."""
    base = Path(files[0]).parent
    found = [(os.path.relpath(file, base), hashlib.sha256(Path(file).read_bytes()).hexdigest()) for file in files]
    return hashlib.sha256(repr(found).encode()).hexdigest()


@functools.cache
def _toolchain_stamp(in_parallel: bool) -> str:
    """Return a hash of all that determines compiled code, except the file of the kernel itself."""
    versions = (platform.python_version(), numba.__version__, llvmlite.__version__, np.__version__)
    target = cpu_target.target_context.codegen().magic_tuple()  # the CPU, or what NUMBA_CPU_NAME and so on say of it
    settings = [(name, getattr(numba.config, name, None)) for name in _SETTINGS]
    made_of = (versions, target, settings, in_parallel, _hash_contents(_ops_sources()))
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]


def _remove_oldest(folders: Iterable[Path], most: int) -> None:
    """Remove all folders but the last used. Processes that still need one compile again."""
    used = {}
    for folder in folders:
        with suppress(OSError):
            used[folder] = folder.stat().st_mtime
    for folder in sorted(used, key=used.__getitem__, reverse=True)[most:]:
        if used[folder] < time.time() - _IN_USE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def _warn_once(why: str) -> None:
    """Warn once, for this process and those it starts, that compiled code is not kept."""
    if WARNED_VARIABLE in os.environ or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    os.environ[WARNED_VARIABLE] = "1"
    sys.stderr.write(
        f"kernels are compiled in memory and not kept ({why}); {FOLDER_VARIABLE} may name a folder for them\n"
    )
