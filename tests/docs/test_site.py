"""The site is built without a warning, and a new user gets through the quick start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, ROOT, blocks, commands

NEW_USER = ("PATH", "LANG", "LD_LIBRARY_PATH")


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # its makers' notice, whatever is built
    # Not quietly: what is not said does not count as a warning, such as a page that no menu leads to.
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    made = {page.stem for page in tmp_path.glob("*.html")}
    assert made == {page.stem for page in DOCS.glob("*.md")} | {"404"}
    loaded = [
        address
        for page in tmp_path.glob("*.html")
        for address in re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\">\s]+)", page.read_text("utf-8")
        )
    ]
    assert not loaded, "a page needs the network"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_new_user_gets_through_the_quick_start(tmp_path: Path) -> None:
    """With the package alone: no checkout, no settings, no data, no compiled kernels."""
    shutil.copytree(ROOT / "src" / "outgrow", tmp_path / "site" / "outgrow", ignore=shutil.ignore_patterns("*.nb[ci]"))
    work = tmp_path / "work"
    work.mkdir()
    env = {name: value for name, value in os.environ.items() if name in NEW_USER}
    env |= {"HOME": str(work), "TMPDIR": str(tmp_path), "PYTHONPATH": str(tmp_path / "site")}
    for block in blocks(DOCS / "index.md"):
        if block.reason is not None or block.language not in ("sh", "python"):
            continue
        told = [["-c", block.text]] if block.language == "python" else [w[1:] for w in commands(block.text)]
        for words in told:
            ahead = [] if block.language == "python" else ["-m", "outgrow"]
            done = subprocess.run(
                [sys.executable, *ahead, *words], cwd=work, env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{block.where}: {words}\n{done.stderr}"
