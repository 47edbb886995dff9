"""What a user is told when something cannot be done."""

from __future__ import annotations


class OutgrowError(Exception):
    """An error with a repair.

    Args:
        what: One line that says what went wrong.
        needed: What would have been right.
        got: What came instead, with its numbers.
        repair: What to do next.
    """

    def __init__(self, what: str, *, needed: str, got: str, repair: str) -> None:
        super().__init__(what)
        self.what = what
        self.needed = needed
        self.got = got
        self.repair = repair

    def __str__(self) -> str:
        return f"{self.what}\n  needed: {self.needed}\n  got:    {self.got}\n  repair: {self.repair}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_error, (type(self), self.what, self.needed, self.got, self.repair))


class InputError(OutgrowError):
    """What the user gave cannot be used: an option, a file, a graph. The command exits with code 2."""


class StoreError(InputError):
    """A store directory is broken, or of a format that this version does not read."""


class TrainingError(OutgrowError):
    """Training cannot go on: the loss is no longer a number, or a GPU is full. The command exits with code 1."""


class WorkerError(OutgrowError):
    """A worker process failed. The command exits with code 1.

    Args:
        what: Which worker of how many, and how it ended.
        needed: What would have been right.
        got: What came instead, with its numbers.
        repair: What to do next.
        report: The worker's own traceback, or what it wrote last.
    """

    def __init__(self, what: str, *, needed: str, got: str, repair: str, report: str = "") -> None:
        super().__init__(what, needed=needed, got=got, repair=repair)
        self.report = report

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.report}".rstrip()

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_worker, (self.what, self.needed, self.got, self.repair, self.report))


def _rebuild_error(kind: type[OutgrowError], what: str, needed: str, got: str, repair: str) -> OutgrowError:
    return kind(what, needed=needed, got=got, repair=repair)


def _rebuild_worker(what: str, needed: str, got: str, repair: str, report: str) -> WorkerError:
    return WorkerError(what, needed=needed, got=got, repair=repair, report=report)
