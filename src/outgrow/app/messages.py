"""Messages of the library, by Python's `logging`: the logger is called "outgrow".

Messages go to standard error, since standard output is for results, until the program gives the logger a handler of
its own. Standard error is looked up for each message: programs replace it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outgrow.core.errors import OutgrowError
from outgrow.core.files import os_errors_as_input_errors

LOGGER = logging.getLogger("outgrow")


class _StandardErrorHandler(logging.Handler):
    """Writes each message as a line to standard error, and flushes it."""

    def emit(self, record: logging.LogRecord) -> None:
        # `logging.basicConfig` shows messages there already.
        if not any(type(each) is logging.StreamHandler and each.stream is sys.stderr for each in logging.root.handlers):
            print(self.format(record), file=sys.stderr, flush=True)


_STANDARD_ERROR = _StandardErrorHandler()


def log_message(text: str) -> None:
    """Log what happens."""
    _log(logging.INFO, text)


def log_warning(text: str) -> None:
    """Log what the user should look at; ``--quiet`` does not hide it."""
    _log(logging.WARNING, text)


def log_detail(text: str) -> None:
    """Log what a display shows in another way: for files."""
    _log(logging.DEBUG, text)


def is_quiet() -> bool:
    """Whether messages are hidden, as with ``--quiet``."""
    return _STANDARD_ERROR.level > logging.INFO


@contextmanager
def open_messages(*, quiet: bool, log_file: Path | None) -> Iterator[None]:
    """Context of a command, whose messages may be hidden, and be written to a file.

    Args:
        quiet: Whether standard error has warnings and errors alone.
        log_file: File to append all messages to, with their times, and an error that ends the command; None for none.

    Raises:
        InputError: The file cannot be written.
    """
    _prepare_logger()
    level = LOGGER.level
    handler = None if log_file is None else _open_file(log_file)
    _STANDARD_ERROR.setLevel(logging.WARNING if quiet else logging.INFO)
    if handler is not None:
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.DEBUG)
    try:
        yield
    except OutgrowError as error:
        # The command itself shows it on standard error.
        if handler is not None:
            handler.handle(LOGGER.makeRecord(LOGGER.name, logging.ERROR, __file__, 0, str(error), (), None))
        raise
    finally:
        _STANDARD_ERROR.setLevel(logging.INFO)
        LOGGER.setLevel(level)
        if handler is not None:
            LOGGER.removeHandler(handler)
            handler.close()


def _open_file(path: Path) -> logging.FileHandler:
    with os_errors_as_input_errors(
        f"cannot write {path}", needed="a path of a file that can be written", repair="give another --log-file"
    ):
        handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return handler


def _log(level: int, text: str) -> None:
    _prepare_logger()
    LOGGER.log(level, "%s", text)


def _prepare_logger() -> None:
    """Give the logger a handler and a level, unless the program has."""
    if not LOGGER.handlers:
        _STANDARD_ERROR.setLevel(logging.INFO)
        LOGGER.addHandler(_STANDARD_ERROR)
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
