"""Workers that wait do what started ones do, and nothing of a task that fails is left to the next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outgrow.core.errors import WorkerError
from outgrow.runtime.distributed.worker import WorkerContext
from pool import Pool


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(tmp_path_factory.mktemp("pool"))
    yield made
    made.close()


def looking(place: WorkerContext, *names: str) -> tuple[int, str, list[str | None]]:
    """The worker's process, its folder, and some of its settings."""
    place.send_message(place.folder.name)
    return os.getpid(), str(Path.cwd()), [os.environ.get(name) for name in names]


def failing(place: WorkerContext) -> None:
    os.environ["LEFT"] = "behind"
    raise ValueError("no reason")


def test_tasks_are_done_where_and_with_what_the_test_has(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[object] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SET", "for one")
    [(process, folder, settings)] = pool.run(looking, 1, on_message=heard.append)
    assert (folder, settings, heard) == (str(tmp_path), [], ["task-1"])
    assert process != os.getpid()
    ask = lambda place: looking(place, "SET", "GLOO_SOCKET_IFNAME")  # noqa: E731
    [(_, _, [given, own])] = pool.run(ask, 1)
    assert given == "for one"
    assert own
    monkeypatch.delenv("SET")
    [(again, _, [given, _])] = pool.run(ask, 1)
    assert (again, given) == (process, None)
    assert [path.name for path in pool.folder.iterdir()] == ["output-1"]


def test_nothing_is_left_of_a_task_that_fails(pool: Pool) -> None:
    ask = lambda place: looking(place, "LEFT")  # noqa: E731
    [(process, _, _)] = pool.run(ask, 1)
    with pytest.raises(WorkerError, match="worker 0 of 1 failed: ValueError: no reason") as caught:
        pool.run(failing, 1)
    assert "in failing" in caught.value.report
    [(other, _, left)] = pool.run(ask, 1)
    assert other != process
    assert left == [None]


def test_workers_end_when_the_test_is_interrupted(pool: Pool) -> None:
    def interrupt() -> bool:
        raise TimeoutError

    pool.run(looking, 1)
    [(process, _)] = pool.workers
    with pytest.raises(TimeoutError):
        pool.run(looking, 1, should_stop=interrupt)
    assert process.returncode is not None
    assert pool.workers == []
