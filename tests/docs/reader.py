"""A reader who does what a page says, in a folder of their own, with little patience: few epochs, few links to test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import Block, commands

import outgrow as og
from outgrow.app.cli.main import run_cli
from outgrow.graph.store.reader import is_store, open_store

MOST_EPOCHS = 3
FEW_EPOCHS = "2"
FEW_LINKS = {"val_links": 0.002, "test_links": 0.002}
"""Shares to validate and test on: all nodes are ranked for each link."""
PROGRAMS = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}
FOLDERS = ("/data/", "/runs/")
"""Folders of a reader's machine; here they are in the folder of the test."""


class Reader:
    """Runs the blocks of a page one after the other.

    Args:
        folder: Where everything is written.
        monkeypatch: Undoes what is changed.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.names: dict[str, Any] = {"__name__": "page"}
        monkeypatch.chdir(folder)
        from outgrow.app import api

        train = api.train

        def train_briefly(graph: Any, model: Any, **options: Any) -> og.Run:
            options["epochs"] = min(options.get("epochs", MOST_EPOCHS), MOST_EPOCHS)
            links = {} if model.decoder is None or graph.held_out_links is not None else FEW_LINKS
            return train(graph, model, **links | options)

        monkeypatch.setattr(api, "train", train_briefly)

    def follow(self, block: Block) -> None:
        """Do what a block says, or write it down where it is a file."""
        if block.title is not None:
            Path(block.title).write_text(block.text, "utf-8")
        elif block.language == "python":
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, block.page, "exec", dont_inherit=True), self.names)
        elif block.language == "sh":
            for words in commands(block.text):
                self.call([self._here(word) for word in words], block.where)

    def call(self, words: list[str], where: str) -> None:
        """Run a line of the shell, which must be a command that is known, and succeed."""
        program, *rest = words
        assert program in ("outgrow", *PROGRAMS), f"{where}: mark it, or leave it out: {program}"
        if program == "outgrow":
            assert self._outgrow(briefly(rest)) == 0, f"{where}: {' '.join(words)}"
            return
        env = {name: value for name, value in os.environ.items() if not name.endswith("NUM_THREADS")}
        if "outgrow" in rest:
            rest = [*rest[: rest.index("outgrow") + 1], *briefly(rest[rest.index("outgrow") + 1 :])]
        command = [sys.executable, *PROGRAMS[program], *rest]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, f"{where}: {' '.join(words)}\n{done.stdout}\n{done.stderr}"

    def _outgrow(self, words: list[str]) -> int:
        self.monkeypatch.setattr(sys, "argv", ["outgrow", *words])
        try:
            run_cli()
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        return 0

    def _here(self, word: str) -> str:
        """A word with folders of the reader's machine in the test's, and with what it leaves open filled in."""
        for folder in FOLDERS:
            if folder in word:
                inside = self.folder / folder.strip("/")
                inside.mkdir(exist_ok=True)
                word = word.replace(folder, f"{inside}/")
        if word.endswith("...") and word != "...":
            return str(sorted(Path().glob(f"{word[:-3]}*"))[-1])
        return word


def briefly(words: list[str]) -> list[str]:
    """The same command with few epochs, and few links to test, if it trains and does not say how many."""
    if words[:1] != ["train"]:
        return words
    epochs = [] if "--epochs" in words else ["--epochs", FEW_EPOCHS]
    links = [word for name, share in FEW_LINKS.items() for word in ("--set", f"{name}={share}")]
    store = Path(words[1])
    are_given = is_store(store) and open_store(store).held_out_links is not None
    return [*words, *epochs, *(links if "links" in words and not are_given else [])]
