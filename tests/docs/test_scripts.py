"""The scripts that pages name take the options that pages give them; nothing is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import DOCS, ROOT, blocks, commands

READ_ONLY = """
import argparse, json, runpy, sys

class Read(Exception):
    pass

def parse(parser, *given, **options):
    whole(parser, *given, **options)
    raise Read

whole, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, parse
for script, *words in json.load(sys.stdin):
    sys.argv, sys.path[0] = [script, *words], "benchmarks"
    try:
        runpy.run_path(script, run_name="__main__")
    except Read:
        continue
    except SystemExit as stop:
        sys.exit(f"{script} {words}: {stop}")
    sys.exit(f"{script} {words}: has read nothing")
"""


def scripts() -> list[list[str]]:
    """Script and words of every line that runs one of ``benchmarks/``."""
    found = []
    for page in sorted(DOCS.glob("*.md")):
        lines = [words for block in blocks(page) if block.language == "sh" for words in commands(block.text)]
        after = [words[words.index("python") + 1 :] for words in lines if "python" in words]
        found += [words for words in after if words and words[0].startswith("benchmarks/")]
    return found


def test_the_scripts_take_what_pages_give_them() -> None:
    given = scripts()
    assert len(given) > 15
    done = read(given)
    assert done.returncode == 0, done.stderr


def test_an_option_that_a_script_does_not_have_is_found() -> None:
    assert "unrecognized arguments" in read([["benchmarks/replication.py", "--no-such-option"]]).stderr


def read(given: list[list[str]]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", READ_ONLY]
    return subprocess.run(
        command, input=json.dumps(given), cwd=Path(ROOT), capture_output=True, text=True, check=False, timeout=240
    )
