"""The blocks of code of the documentation, as they stand in the pages."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LANGUAGES = {"", "text", "json", "csv", "python", "sh"}
_FENCE = re.compile(r"^( *)```(\w*)(?: title=\"([^\"]+)\")?$")
_MARK = re.compile(r"<!-- not run: (.+) -->$")
_BEFORE = ("-m", "srun", "sudo")
_OPERATORS = {"|", "||", "&&", ";", ">", ">>", "<", "&"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block.

    Attributes:
        page: Name of the file.
        line: Its first line in it.
        language: As the fence has it.
        text: What is between the fences.
        title: The file that the block is the content of; None if it is none.
        reason: Why it is not run, as the comment before it says; None if it is.
    """

    page: str
    line: int
    language: str
    text: str
    title: str | None
    reason: str | None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """The pages of the site, and the file that greets whoever opens the repository."""
    return [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]


def blocks(path: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return list(_blocks(path.name, path.read_text("utf-8").splitlines()))


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    start, fence, reason = 0, None, None
    for number, line in enumerate(lines, 1):
        if fence is not None:
            if line.strip() != "```":
                continue
            text = textwrap.dedent("\n".join(lines[start : number - 1])) + "\n"
            yield Block(page=page, line=start + 1, language=fence[2], text=text, title=fence[3], reason=reason)
            fence, reason = None, None
        elif line.lstrip().startswith("```"):
            fence, start = _FENCE.match(line), number
            assert fence is not None, f"{page}:{number}: a fence that is not understood: {line}"
        elif line.strip():
            mark = _MARK.match(line.strip())
            reason = mark[1] if mark else None
    assert fence is None, f"{page}: a fence that is not closed"


def commands(text: str) -> list[list[str]]:
    """The lines of a shell block as words; continued lines are one, comments and empty lines none."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def calls(text: str) -> list[list[str]]:
    """What is given to ``outgrow`` in a shell block, wherever it stands in a line."""
    found = []
    for words in commands(text):
        for at, word in enumerate(words):
            first = all("=" in before for before in words[:at])
            if word == "outgrow" and (first or words[at - 1] in _BEFORE):
                rest = words[at + 1 :]
                end = next((n for n, each in enumerate(rest) if each in _OPERATORS), len(rest))
                found.append(rest[:end])
    return found
