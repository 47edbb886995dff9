"""Every block of code of the documentation runs, or says why not and can at least be read."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import typer
from tests.docs.pages import DOCS, LANGUAGES, ROOT, Block, blocks, calls, pages
from tests.docs.reader import Reader

from outgrow.app.cli.main import app, normalize_arguments
from outgrow.app.strategy_registry import STRATEGIES
from support import disk_folder

ALL = [block for page in pages() for block in blocks(page)]
SLOW = {
    "choosing.md",
    "cluster.md",
    "links.md",
    "migrate.md",
    "minibatches.md",
    "offload.md",
    "orchestrate.md",
    "planner.md",
    "report.md",
    "split.md",
    "tensor.md",
    "workers.md",
}
NEEDS_DATA = {"links.md", "orchestrate.md"}
"""Pages that train on data sets which are neither packaged nor generated."""
README_NOT_RUN = {
    "make demo": "sets up an environment",
    "pip install torch": "installs packages",
}
"""Blocks of the README by their first word or words, which has no comments for the sake of tests."""
NOT_RUN = {
    "cluster.md": ["needs four hosts", "needs four hosts", "needs four hosts", "needs Slurm"],
    "gpu.md": ["needs a GPU"],
    "index.md": ["installs packages"],
    "links.md": ["takes ten minutes, and the triples are not packaged"],
    "minibatches.md": ["the names are examples"],
    "papers.md": [
        "minutes to hours each, and the last as root",
        "needs root and a simulated network, and up to an hour",
        "minutes to an hour each, and the last needs root and a simulated network",
        "minutes to hours each, and the last needs root and a simulated network",
        "minutes to an hour each",
        "minutes, and it writes its results into the repository",
    ],
    "planner.md": ["its last line needs two hosts", "it needs runs"],
    "reliability.md": ["takes an hour or two, and needs root", "takes ten minutes"],
    "workers.md": ["needs four hosts"],
}
"""The reasons that pages give, in order."""
HOME = {"full": "full", "sampled": "minibatches"} | {
    name: name for name in STRATEGIES if name not in ("full", "sampled")
}
SVG = "{http://www.w3.org/2000/svg}"
NAMED = re.compile(r"`((?:benchmarks|tests|src|scripts|examples)/[\w./@-]+)`")


def reason(block: Block) -> str | None:
    """Why a block is not run; None if it is."""
    if block.page != "README.md" or block.language != "sh":
        return block.reason
    found = [why for words, why in README_NOT_RUN.items() if block.text.startswith(words)]
    return found[0] if found else None


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="outgrow-docs-", dir=disk_folder()) as name:
        before = Path.cwd()
        yield Path(name)
        os.chdir(before)
        # A page may say how messages are shown.
        logging.getLogger("outgrow").setLevel(logging.NOTSET)


def follow(page: str, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what a page says, from its beginning to its end."""
    if page in NEEDS_DATA:
        monkeypatch.setenv("OUTGROW_DATA", str(request.getfixturevalue("data_dir")))
    else:
        monkeypatch.delenv("OUTGROW_DATA", raising=False)
    if page == "own-pyg-model.md":
        pytest.importorskip("torch_geometric", reason="needs the extra pyg")
    reader = Reader(folder, monkeypatch)
    for block in ALL:
        if block.page == page and reason(block) is None:
            reader.follow(block)


@pytest.mark.usefixtures("pooled")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of packages that a reader may use beside this one
@pytest.mark.parametrize("page", [page.name for page in pages() if page.name not in SLOW])
def test_a_page_does_what_it_says(
    page: str, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(page, folder, request, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", sorted(SLOW))
def test_a_long_page_does_what_it_says(
    page: str, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(page, folder, request, monkeypatch)


def test_what_is_not_run_is_known() -> None:
    found: dict[str, list[str]] = {}
    for block in ALL:
        if block.reason is not None:
            found.setdefault(block.page, []).append(block.reason)
    assert found == NOT_RUN
    assert {words for words in README_NOT_RUN if any(b.text.startswith(words) for b in ALL)} == README_NOT_RUN.keys()


def test_every_block_is_of_a_language_that_is_looked_at() -> None:
    assert not {block.where: block.language for block in ALL if block.language not in LANGUAGES}


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "sh"], ids=lambda block: block.where)
def test_the_shell_understands_it_and_every_option_exists(block: Block) -> None:
    read = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    for words in calls(block.text):
        require_known(words)


def require_known(words: list[str]) -> None:
    """Let the command line parse a command, which is not run."""
    name, *rest = normalize_arguments(words)
    if name.startswith("-"):
        return
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, rest)


@pytest.mark.parametrize("words", [["tran"], ["train", "cora", "--epoch-count", "3"], ["plan", "--workers", "many"]])
def test_an_option_that_does_not_exist_is_found(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"tran|such option|valid"):
        require_known(words)


@pytest.mark.parametrize("block", [b for b in ALL if b.language in ("json", "python")], ids=lambda block: block.where)
def test_python_and_json_can_be_read(block: Block) -> None:
    if block.language == "python":
        ast.parse(block.text)
    else:
        json.loads(block.text)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_has_its_picture(strategy: str) -> None:
    text = (DOCS / f"{HOME[strategy]}.md").read_text("utf-8")
    drawn = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawn) == 1
    picture = ET.fromstring(drawn[0])
    assert picture.get("role") == "img"
    title = picture[0]
    assert title.tag == f"{SVG}title"
    assert len((title.text or "").split()) > 5
    assert picture.get("aria-labelledby") == title.get("id")
    width = float((picture.get("viewBox") or "").split()[2])
    assert width <= 400, "letters would be too small on a phone"
    used = set(re.findall(r"(?:fill|stroke)=\"([^\"]+)\"", drawn[0]))
    assert used <= {"none", "currentColor", "#e07b00", "#2f8fd0"}, "colours that are seen on light and dark pages"


def test_files_that_pages_name_exist() -> None:
    named = {name for page in pages() for name in NAMED.findall(page.read_text("utf-8"))}
    assert {name for name in named if "*" not in name and not (ROOT / name).exists()} == set()
    assert len(named) > 20
