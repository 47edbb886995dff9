"""What tests of several folders share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from outgrow.ops.kernel_cache import MODE_VARIABLE
from outgrow.ops.kernel_folder import FOLDER_VARIABLE, kernel_folder
from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before a test imports torch: threads that spin make small kernels several times slower

# It draws when it is imported, which would look as if a test module did.
import rich.style  # noqa: E402, F401
import torch  # noqa: E402

import order  # noqa: E402
import pool  # noqa: E402
import process_forks  # noqa: E402
import promises  # noqa: E402
from outgrow.runtime.distributed import launch  # noqa: E402
from processes import processes_of  # noqa: E402
from seeding import pytest_fixture_setup, pytest_make_collect_report, seeded  # noqa: E402, F401
from support import disk_folder  # noqa: E402

OPS = Path(__file__).parent / "ops"

if "OUTGROW_TESTED" not in os.environ:  # processes of a test run, if there are several, inherit all from the first
    os.environ["OUTGROW_TESTED"] = "1"
    with suppress(RuntimeError):  # there is no home
        os.environ[FOLDER_VARIABLE] = str(kernel_folder())  # compiled once for all test runs, and for the user
    _cache = tempfile.TemporaryDirectory(prefix="outgrow-cache-")
    os.environ["XDG_CACHE_HOME"] = _cache.name  # what a test measures is not kept for its user

# Tests of kernels have small arrays, for which kernels would run on one thread.
os.environ.setdefault(MODE_VARIABLE, "parallel")
if os.environ.get(MODE_VARIABLE) == "serial":
    # The matrices of these tests are small, and as many processes run tests as there are cores: threads of torch
    # would wait for each other for longer than they compute.
    torch.set_num_threads(1)

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported, which other packages do as well


settings.register_profile("outgrow", deadline=None)  # a machine may be busy with other work
settings.load_profile("outgrow")


def pytest_configure(config: pytest.Config) -> None:
    """Break what a test of mutants has asked for, for the whole run."""
    if (broken := promises.break_promise()) is not None:
        broken.__enter__()
        config.add_cleanup(lambda: broken.__exit__(None, None, None))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return order.scheduler_of(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import what has none of the tests that are run with these kernels: both halves are one run of tests."""
    if os.environ.get(MODE_VARIABLE) == "serial":
        return collection_path == OPS or None
    only_parallel = config.option.markexpr.startswith("parallel_kernels")
    if not only_parallel or not collection_path.is_file() or collection_path.is_relative_to(OPS):
        return None
    return "parallel_kernels" not in collection_path.read_text("utf-8") or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(OPS):
            item.add_marker("parallel_kernels")
    if os.environ.get(MODE_VARIABLE) == "serial":
        others = [item for item in items if item.get_closest_marker("parallel_kernels")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if not item.get_closest_marker("parallel_kernels")]
    items.sort(key=lambda item: order.turn_of(item.nodeid))


def pytest_sessionfinish() -> None:
    pool.end()
    process_forks.end_servers()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("real_processes") or "OUTGROW_REAL_PROCESSES" in os.environ:
        return (yield)
    with process_forks.fork_processes():
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets: $OUTGROW_DATA, or ``../shared/datasets`` beside the repository."""
    given = os.environ.get("OUTGROW_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "datasets"
    if not folder.is_dir():
        pytest.skip(f"no real data: set OUTGROW_DATA, or put the files into {folder}")
    return folder


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever would start workers gets those that wait: see `pool`."""
    monkeypatch.setattr(launch, "run_workers", pool.as_launched)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started for the test, with kernels as users have them."""
    monkeypatch.delenv(MODE_VARIABLE, raising=False)


@pytest.fixture
def disk() -> Iterator[Path]:
    """An empty folder on a disk; afterwards nothing is left in it."""
    with tempfile.TemporaryDirectory(prefix="outgrow-test-", dir=disk_folder()) as name:
        yield Path(name)
        assert not list(Path(name).iterdir())


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which runs make theirs; afterwards nothing is left in it, nor any process that named it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert not list(folder.glob("outgrow-*"))
    assert not processes_of(folder)
