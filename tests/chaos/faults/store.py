"""Stores that cannot be read."""

from __future__ import annotations

from command import Run
from judge import Promise

_SAID = r"SIGBUS|ends before its rows|has another size|bytes|cannot be read|Input/output error|mapped"
_FILES = ("features.npy", "indices.npy", "indptr.npy", "labels.npy", "train.npy")


class ReadError:
    """A file of the store is cut off while it is mapped: who reads what is gone dies of SIGBUS, or finds the end."""

    words: list[str] = []  # noqa: RUF012

    def __init__(self) -> None:
        self._whole: dict[str, bytes] = {}

    def ready(self, run: Run) -> None:
        """Remember what is in the files."""
        self._whole = {name: (run.place.store / name).read_bytes() for name in _FILES}

    def strike(self, run: Run) -> Promise | None:
        """Cut one or all of them."""
        if run.over:
            return None
        names = run.draw.choice([_FILES, _FILES, _FILES[:1], _FILES[1:2]])
        for name in names:
            with (run.place.store / name).open("r+b") as file:
                file.truncate(int(len(self._whole[name]) * run.draw.uniform(0, 0.9)))
        return Promise(what=f"{', '.join(names)} of the store were cut off", ends=None, said=_SAID)

    def mend(self, run: Run) -> None:
        """Write them again."""
        for name, data in self._whole.items():
            (run.place.store / name).write_bytes(data)
