"""What links are ranked among, by the command: given candidates or all nodes, with or without the node asked about."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.app.conftest import Command

import outgrow as og
from outgrow.app.model_registry import build_model
from outgrow.app.runs.directory import RunDirectory
from outgrow.graph.graph import Graph
from outgrow.graph.link_split import HeldOutLinks, LinkCandidates
from outgrow.graph.link_triples import LinkTriples
from suites.held_out import graph_of, scores_by_loops

SMALL = ("--task", "links", "--model", "gcn", "--hidden", 6, "--epochs", 2)


def candidates_of(graph: Graph, links: LinkTriples) -> LinkCandidates:
    """Six nodes for either end of a link, of the type of the answer, which may be among them."""
    ends = torch.tensor([*(kind.first for kind in graph.node_types), graph.num_nodes])
    found = []
    for answer in (links.head, links.tail):
        kind = torch.bucketize(answer, ends[1:], right=True)
        first, size = ends[kind][:, None], (ends[kind + 1] - ends[kind])[:, None]
        found.append(first + (answer[:, None] * 5 + torch.arange(6) * 3) % size)
    return LinkCandidates(*found)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A graph of two types with links to validate and to test on, and nodes to rank them among."""
    graph = graph_of("typed")
    assert graph.held_out_links is not None
    val, test = graph.held_out_links
    among = (candidates_of(graph, links) for links in (val, test))
    held = replace(graph, features=graph.features.float(), held_out_links=HeldOutLinks(val, test, *among))
    og.save_graph(held, tmp_path / "links.store")
    return tmp_path / "links.store"


def scores_of(run: str, store: Path, **options: Any) -> dict[str, float]:
    """The test scores of the run by loops."""
    graph = og.load(store)
    assert graph.held_out_links is not None
    directory = RunDirectory.open(Path(run))
    recorded = directory.config["model"]
    model = build_model(recorded["name"], graph, recorded["options"])
    directory.load_best(model)
    links = list(graph.held_out_links)[1]
    return scores_by_loops(graph, og.embed(graph, model), links, model, **options)


def test_the_command_ranks_as_it_is_told(outgrow: Command, store: Path) -> None:
    given = og.load(store).held_out_links
    assert given is not None
    assert given.test_candidates is not None
    seen = []
    for number, (options, ways) in enumerate(
        [
            ((), {"candidates": given.test_candidates}),
            (("ranking_candidates=all",), {}),
            (("ranking_candidates=all", "rank_self=false"), {"rank_self": False}),
        ]
    ):
        settings = [word for option in options for word in ("--set", option)]
        result = outgrow("train", store, *SMALL, *settings, "--out", f"run{number}", "--json")
        assert result.code == 0, result.err
        expected = scores_of(f"run{number}", store, **ways)
        found = {name: result.summary["scores"]["test"][name] for name in expected}
        assert found == pytest.approx(expected, abs=2e-3)
        seen.append(found["mrr"])
    assert len({round(each, 6) for each in seen}) == 3
    recorded = json.loads(Path("run2", "config.json").read_text())["train"]
    assert (recorded["ranking_candidates"], recorded["rank_self"]) == ("all", False)
    assert outgrow("report", "run2", "--out", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "ranking_candidates" in page
    assert "rank_self" in page


@pytest.mark.parametrize("option", ["ranking_candidates=some", "rank_self=perhaps"])
def test_other_values_are_refused(option: str, outgrow: Command, store: Path) -> None:
    result = outgrow("train", store, *SMALL, "--set", option, "--out", "run")
    assert result.code == 2
    for word in (option.partition("=")[0], "needed:", "got:", "repair:"):
        assert word in result.err
    assert not Path("run").exists()
