"""What comparisons of epochs with evaluation trust: ways of rivals are kept apart, and all ways compute the same."""

from functools import partial
from pathlib import Path
from typing import Any

import evaluated_epochs
import numpy as np
import pytest
import torch
from rivals import sage
from rivals.batches import SAMPLED, split_form
from rivals.process import Rival
from rounds import OURS, Library
from torch import Tensor, nn

FORM = "graphbolt:int32-2-tuned"


def rival(name: str, form: str) -> Rival:
    return Rival(name=name, module="any", form=form, python="", models=frozenset(["sage"]))


def report(train: float, **evaluations: tuple[float, float]) -> dict[str, Any]:
    """Of a process that has warmed up in one epoch, and told the seconds and the score of the second."""
    figures = {way: {"seconds": [9.0, seconds], "val": [0.1, val]} for way, (seconds, val) in evaluations.items()}
    return {"seconds": [train], "losses": [2.0, 1.0], "evaluations": figures, "peak_rss_bytes": 1, "place": "here"}


def test_a_rival_is_told_how_to_evaluate() -> None:
    theirs = evaluated_epochs.evaluating(rival(FORM, "int32-2"), ["sampled", "whole"])
    assert theirs.name == FORM + "+sampled+whole"
    assert split_form(theirs.form) == ("int32-2", ["sampled", "whole"])
    ours = evaluated_epochs.evaluating(rival(OURS, ""), ["exact"])
    assert (ours.name, ours.form) == ("outgrow:exact", "exact")
    assert evaluated_epochs.ways_of(ours.name) == ["exact"]
    assert evaluated_epochs.ways_of(theirs.name) == ["sampled", "whole"]


class Trials:
    """A course in which training forms are as fast as they are long, and the ways fail or take what is given."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.tried: list[str] = []

    def choose(self, libraries: list[Library], model: str, job: Any) -> tuple[list[Rival], dict[str, Any]]:
        return [max(library.rivals(model), key=lambda each: len(each.form)) for library in libraries], {}

    def run(self, rival: Rival, title: str, turn: int, job: Any) -> dict[str, Any]:
        self.tried.append(rival.name)
        _, (way,) = split_form(rival.form)
        if way not in self.seconds:
            return {"failed": "out of memory"}
        return {"evaluations": {way: {"seconds": [self.seconds[way]], "val": [0.5]}}}


LIBRARIES = [
    Library(name=OURS, module="ours_batches", python="", needs="", forms=("",)),
    Library(name="graphbolt", module="graphbolt", python="", needs="", forms=("a", "bb-tuned")),
]


def names(course: Trials, libraries: list[Library], evaluations: list[str]) -> list[str]:
    chosen, _ = evaluated_epochs.choose(course, libraries, evaluations, None)  # type: ignore[arg-type]
    return [each.name for each in chosen]


def test_the_fastest_exact_way_stays() -> None:
    course = Trials({"layerwise": 3.0, "whole": 2.0})
    assert names(course, LIBRARIES, ["sampled", "exact"])[-1] == "graphbolt:bb-tuned+sampled+whole"
    assert len(course.tried) == len(evaluated_epochs.EXACT_WAYS)


def test_nothing_is_tried_for_samples_or_a_given_way() -> None:
    course = Trials({})
    assert names(course, LIBRARIES, ["sampled"]) == ["outgrow:sampled", "graphbolt:bb-tuned+sampled"]
    given = [Library(name="graphbolt", module="graphbolt", python="", needs="", forms=("a-tuned+layerwise",))]
    assert names(course, given, ["exact"]) == ["graphbolt:a-tuned+layerwise"]
    assert course.tried == []


def test_rows_compare_the_same_kind_of_evaluation() -> None:
    reports = {
        "outgrow:sampled": [report(2.0, sampled=(1.0, 0.6))],
        "outgrow:exact": [report(2.0, exact=(2.0, 0.7))],
        FORM + "+sampled+whole": [report(6.0, sampled=(3.0, 0.61), whole=(2.0, 0.7))],
        "neighborloader:adj-0+sampled+layerwise": [{"failed": "out of memory"}],
    }
    rows = evaluated_epochs.summarise(reports, ["sampled", "exact"])
    assert [row["evaluation"] for row in rows] == ["sampled"] * 3 + ["exact"] * 3
    sampled, exact = rows[1], rows[4]
    assert (sampled["it_over_ours"], exact["it_over_ours"]) == (3.0, 2.0)
    assert (exact["it_over_ours_train"], exact["it_over_ours_evaluation"], exact["way"]) == (3.0, 1.0, "whole")
    assert sampled["both_seconds"] == 9.0
    assert exact["val_by_epoch"] == [0.1, 0.7]
    assert rows[2]["failed"] == "out of memory"
    evaluated_epochs.show(rows, "all kinds of rows")


def test_a_wrong_exact_score_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "val.npy", np.arange(10_000))
    monkeypatch.setattr(evaluated_epochs, "_reference_scores", lambda folder, files: [0.7] * len(files))
    reports = {"a+sampled+whole": [report(1.0, sampled=(1.0, 0.5), whole=(1.0, 0.7001))]}
    assert evaluated_epochs.wrong_scores(tmp_path, reports) == []
    reports["b+layerwise"] = [report(1.0, layerwise=(1.0, 0.69))]
    assert evaluated_epochs.wrong_scores(tmp_path, reports) == ["b+layerwise scores 0.6900, not 0.7000"]


class Mean(nn.Module):
    """The mean over in-edges, beside the node itself."""

    def __init__(self, given: int, wanted: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * given, wanted))

    def forward(self, mean: Tensor, x: Tensor) -> Tensor:
        return torch.cat([x[: len(mean)], mean @ x], 1) @ self.weight


def call(mean: Tensor, layer: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = layer(mean, x)
    return out


def test_all_exact_ways_give_the_same_logits() -> None:
    torch.manual_seed(0)
    mean, x, labels = torch.rand(7, 7), torch.randn(7, 3), torch.arange(7) % 2
    nodes = sage.Nodes(x, labels, torch.tensor([0]), torch.tensor([2, 5]))
    layers = nn.ModuleList([Mean(3, 4), Mean(4, 4), Mean(4, 2)])
    whole = sage.infer_whole(nodes, partial(call, mean))

    def parts() -> Any:
        for rows in torch.arange(7).split(3):
            others = torch.tensor([node for node in range(7) if node not in rows.tolist()])
            sources = torch.cat([rows, others])
            yield sage.Part(sources, len(rows), partial(call, mean[rows][:, sources]))

    def opened(seeds: Tensor) -> sage.Batch:
        others = torch.tensor([node for node in range(7) if node not in seeds.tolist()])
        every = torch.cat([seeds, others])
        return sage.Batch(x[every], labels[seeds], [partial(call, mean[every][:, every])] * 3)

    batches = sage.infer_batches([nodes.val[:1], nodes.val[1:]], opened)
    with torch.no_grad():
        wanted = whole(layers)
        torch.testing.assert_close(sage.infer_layers(nodes, parts)(layers), wanted)
        torch.testing.assert_close(batches(layers), wanted)
    assert wanted.shape == (2, 2)


class Clocks:
    """Keeps what the clocks of a process are told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def stop_watching(self) -> None:
        pass

    def evaluated(self, way: str, seconds: float, val: float) -> None:
        self.told.append((way, val))


def test_scores_are_of_validation_nodes() -> None:
    nodes = sage.Nodes(torch.zeros(4, 1), torch.tensor([0, 1, 1, 0]), torch.tensor([0]), torch.tensor([1, 3]))
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    clocks = Clocks()
    sage.Evaluation(nodes=nodes, ways={SAMPLED: lambda layers: logits}).run(nn.ModuleList(), clocks)  # type: ignore[arg-type]
    assert clocks.told == [(SAMPLED, 0.5)]
