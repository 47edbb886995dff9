"""Exceptions for users; each says what went wrong and how to fix it."""

from __future__ import annotations


class OutgrowError(Exception):
    """Base class of errors that say how to fix them.

    Args:
        what: One line that says what went wrong.
        needed: Valid input or state.
        got: Actual input or state, with its numbers.
        repair: Next step for the user.
    """

    def __init__(self, what: str, *, needed: str, got: str, repair: str) -> None:
        super().__init__(what)
        self.what = what
        self.needed = needed
        self.got = got
        self.repair = repair

    def __str__(self) -> str:
        return f"{self.what}\n  needed: {self.needed}\n  got:    {self.got}\n  repair: {self.repair}"

    # By default an exception is rebuilt from its positional arguments; these are keyword-only.
    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_error, (type(self), self.what, self.needed, self.got, self.repair))


class InputError(OutgrowError):
    """Invalid input from the user: an option, a file or a graph. The command exits with code 2."""


class StoreError(InputError):
    """Store directory that is corrupt or in a format that this version does not read."""


class TrainingError(OutgrowError):
    """Training cannot continue: the loss is not finite, or a GPU is out of memory. Exit code 1."""


class WorkerError(OutgrowError):
    """Failure of a worker process. The command exits with code 1.

    Args:
        what: Which worker of how many, and how it ended.
        needed: Valid input or state.
        got: Actual input or state, with its numbers.
        repair: Next step for the user.
        report: Traceback of the worker, or its last output.
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
