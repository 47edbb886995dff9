"""One input of a reader: files, and how to open them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

ACCEPTED, REFUSED = "accepted", "refused"
FOLDER = "."


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input.

    Attributes:
        main: What to open, below the folder of the input.
        files: Content of each file by its path below that folder.
        options: Keywords of the reader.
        links: Target of each symbolic link by its path.
        pipes: Paths of named pipes, which nobody writes to.
        unpacked: Bytes of what is packed in the files, where that is more than they have.
        expected: `ACCEPTED` or `REFUSED`, where that is known.
        note: How it was made.
    """

    main: str
    files: dict[str, bytes]
    options: dict[str, Any] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    pipes: tuple[str, ...] = ()
    unpacked: int = 0
    expected: str | None = None
    note: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files, unpacked."""
        return max(self.unpacked, sum(map(len, self.files.values())))

    def write(self, folder: Path) -> None:
        """Make the files in a folder that is there."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name, target in self.links.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(target)
        for name in self.pipes:
            os.mkfifo(folder / name)

    def keep(self, folder: Path, **how: Any) -> None:
        """Write it where someone can look at it, with a word on how it came to be."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "input").mkdir()
        self.write(folder / "input")
        known = {"main": self.main, "options": self.options, "note": self.note, "expected": self.expected}
        (folder / "case.json").write_text(json.dumps({**known, **how}, indent=1) + "\n")

    def with_file(self, name: str, content: bytes, note: str) -> Case:
        """The same with another content of one file; nothing is known of what should become of it."""
        return replace(self, files={**self.files, name: content}, expected=None, note=f"{self.note}, {note}")


class Kind(NamedTuple):
    """Inputs of one reader.

    Attributes:
        seeds: Makes inputs that the reader accepts.
        hostile: Makes inputs that somebody has thought of.
        mutated: Changes an input; gets all seeds too, to take parts of.
    """

    seeds: Callable[[], list[Case]]
    hostile: Callable[[], list[Case]]
    mutated: Callable[[Random, Case, list[Case]], Case]
