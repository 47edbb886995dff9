"""The page of a run, as ``outgrow report`` writes it and as a browser shows it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Command

import outgrow as og

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
RUNS = {
    "full": ("--strategy", "full", "--workers", 2),
    "offload": ("--strategy", "offload", "--set", "chunks=3"),
    "sampled": ("--strategy", "sampled", "--batch-size", 8, "--fanout", "3,3"),
    "split": ("--strategy", "split", "--batch-size", 8, "--fanout", "3,3", "--workers", 2),
    "migrate": ("--strategy", "migrate", "--batch-size", 8, "--fanout", "3,3", "--workers", 2),
    "orchestrate": ("--strategy", "orchestrate", "--batch-size", 4, "--fanout", "3,3", "--set", "super_batch=2"),
    "tensor": ("--strategy", "tensor", "--model", "decoupled", "--workers", 2),
}
LAUNCHED = ("split", "tensor")
"""Runs whose workers are started for them; other tests start those of other strategies."""


def trained(outgrow: Command, npz: Path, name: str) -> Path:
    result = outgrow("train", npz, "--epochs", 3, *RUNS[name], "--out", name)
    assert result.code == 0, result.err
    return Path(name)


@pytest.mark.parametrize("name", RUNS)
def test_every_strategy_can_be_reported(name: str, outgrow: Command, npz: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("launched" if name in LAUNCHED else "pooled")
    run = trained(outgrow, npz, name)
    result = outgrow("report", run)
    assert result.code == 0, result.err
    page = (run / "report.html").read_text()
    summary = json.loads((run / "summary.json").read_text())
    assert f'data-key="test_accuracy" data-value="{summary["test_accuracy"]}"' in page
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="(?!data:)', page)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert 0 < sum(line["phases"].values()) <= line["seconds"] * 1.01
        assert line is lines[0] or sum(line["phases"].values()) >= 0.5 * line["seconds"]  # kernels are loaded
        assert line["evaluation_seconds"] > 0
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == set(range(summary["workers"]))


@pytest.mark.usefixtures("pooled")
def test_two_runs_side_by_side(outgrow: Command, npz: Path) -> None:
    runs = trained(outgrow, npz, "full"), trained(outgrow, npz, "offload")
    assert outgrow("report", *runs, "--out", "both.html").code == 0
    page = Path("both.html").read_text()
    assert "2 runs: full, offload" in page
    assert 'data-run="1" data-key="strategy" data-value="offload"' in page


def test_mistakes(outgrow: Command, npz: Path) -> None:
    assert outgrow("report", "nowhere").code == 2
    run = trained(outgrow, npz, "offload")
    for words, said in (
        ((run, run), "different"),
        ((run, "--out", "page.pdf"), ".html"),
        ((run, "--out", run), ".html"),
    ):
        result = outgrow("report", *words)
        assert result.code == 2
        assert said in result.err
    (run / "summary.json").unlink()
    result = outgrow("report", run)
    assert result.code == 2
    assert "--resume" in result.err


def test_from_python(tmp_path: Path, npz: Path) -> None:
    graph = og.load(npz)
    model = og.nn.GCN(graph.num_features, 8, graph.num_classes, layers=2)
    run = og.train(graph, model, epochs=2, out=tmp_path / "run", progress=False)
    assert "no prediction" in run.report(tmp_path / "page.html").read_text()
    with pytest.raises(og.InputError, match="directory"):
        og.train(graph, model, epochs=1, progress=False).report(tmp_path / "other.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("there is no Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "light"),
        (1280, "dark"),
        pytest.param(390, "dark", marks=pytest.mark.slow),
        pytest.param(1280, "light", marks=pytest.mark.slow),
    ],
)
def test_in_a_browser(browser: Any, scheme: Any, width: int, outgrow: Command, npz: Path) -> None:
    """All charts are drawn, nothing is asked of a network or said on the console, nothing is wider than the page."""
    runs = trained(outgrow, npz, "offload"), trained(outgrow, npz, "migrate")
    assert outgrow("report", *runs, "--out", "page.html").code == 0
    said, asked = list[str](), list[str]()
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(Path("page.html").resolve().as_uri())
    page.wait_for_selector("body[data-drawn]")
    charts = page.locator(".chart")
    assert charts.count() > 6
    assert page.locator(".chart:not(:has(.main-svg))").count() == 0
    for number, run in enumerate(runs):
        summary = json.loads((run / "summary.json").read_text())
        cell = page.locator(f'td[data-run="{number}"][data-key="test_accuracy"]')
        assert float(cell.get_attribute("data-value")) == summary["test_accuracy"]
        assert cell.inner_text() == f"{summary['test_accuracy']:.4f}"
        peak = page.locator(f'td[data-run="{number}"][data-key="peak_bytes.device"]')
        assert int(peak.get_attribute("data-value")) == summary["peak_bytes"]["device"]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    page.close()
