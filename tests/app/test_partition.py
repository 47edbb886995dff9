"""``outgrow partition`` from end to end."""

from pathlib import Path

import pytest
from tests.app.conftest import Command

from outgrow.graph.partition import methods


def test_figures_of_a_file(outgrow: Command, npz: Path) -> None:
    facts = outgrow("partition", npz, "--parts", 3, "--method", "range", "--json").summary
    assert (facts["nodes"], facts["edges"], facts["parts"]) == (240, 1440, 3)
    assert facts["part_nodes"] == [80, 80, 80]
    assert sum(facts["part_edges"]) == 1440
    assert facts["edge_cut"] == pytest.approx(facts["cut_share"] * 1440)
    assert facts["replication_factor"] == pytest.approx(1 + sum(facts["part_halo"]) / 240)
    people = outgrow("partition", npz, "--parts", 40, "--method", "range")
    assert people.code == 0
    assert "1,440" in people.out
    assert "8 parts more" in people.out


def test_a_store_keeps_the_partition(outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outgrow("convert", npz, "my.store").code == 0
    first = outgrow("partition", "my.store", "--parts", 3, "--json").summary
    assert len(list(Path("my.store/partitions").iterdir())) == 2
    monkeypatch.setattr(methods, "run_metis", None)
    again = outgrow("partition", "my.store", "--parts", 3, "--method", "metis", "--json").summary
    assert {**again, "seconds": 0} == {**first, "seconds": 0}
    assert outgrow("info", "my.store", "--verify", "--json").summary["verified"] is True


def test_chunks_have_figures_of_their_own(outgrow: Command, npz: Path) -> None:
    facts = outgrow("partition", npz, "--parts", 2, "--method", "two-level", "--set", "chunks=3", "--json").summary
    assert facts["chunks_of_a_part"] == 3
    assert facts["chunk_replication_factor"] > facts["replication_factor"]
    assert "chunk replication factor" in outgrow("partition", npz, "--parts", 2, "--method", "two-level").out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--parts", 241), ("1 to 240 parts", "241")),
        (("--parts", 0), ("1 to 240 parts",)),
        (("--parts", 2, "--method", "metiss"), ("did you mean metis",)),
        (("--parts", 2, "--set", "balance=edge"), ("did you mean edges",)),
        (("--parts", 2, "--set", "memory_bytes=10"), ("memory for METIS", "10 bytes", "fennel")),
        (("--parts", "two"), ("parts",)),
        ((), ("parts",)),
    ],
)
def test_what_cannot_be_done_is_refused(
    outgrow: Command, npz: Path, args: tuple[object, ...], words: tuple[str, ...]
) -> None:
    result = outgrow("partition", npz, *args)
    assert result.code == 2
    assert result.out == ""
    for word in words:
        assert word in result.err


def test_an_unknown_graph_is_refused(outgrow: Command) -> None:
    assert outgrow("partition", "no.store", "--parts", 2).code == 2


@pytest.mark.usefixtures("pooled")
def test_parts_are_trained_on_as_the_whole_is(outgrow: Command, npz: Path) -> None:
    outgrow("convert", npz, "my.store")
    cut = outgrow("partition", "my.store", "--parts", 2, "--method", "range", "--out-parts", "parts", "--json").summary
    assert cut["stores"] == "parts/part-0 to part-1"
    options = ("--model", "gcn", "--hidden", 8, "--epochs", 2, "--workers", 2, "--strategy", "full", "--json")
    whole = outgrow("train", "my.store", *options, "--set", "partition=range", "--out", "whole").summary
    # The folder, or any of the parts.
    part = outgrow("train", "parts/part-1", *options, "--out", "part").summary
    assert part["loss"] == whole["loss"]
    assert part["test_accuracy"] == whole["test_accuracy"]
    assert part["data"] == whole["data"]
    info = outgrow("info", "parts/part-1", "--verify", "--json").summary
    assert (info["part"], info["nodes_with_features"]) == ("1 of 2, by range-balance=nodes", 120)
    for args, words in (
        (("predict", "part", "--out", "p.npy"), "prediction needs the features of all nodes"),
        (("train", "parts", "--workers", 3), "cut into 2 parts"),
        (("train", "parts"), "needed:  2 workers"),
        (("train", "parts", "--workers", 2, "--strategy", "offload"), "cannot train on parts"),
        (("train", "parts", "--workers", 2, "--strategy", "full", "--set", "partition=hash"), "by another method"),
        (("partition", "my.store", "--parts", 2, "--out-parts", "parts"), "has stores of parts already"),
    ):
        refused = outgrow(*args)
        assert refused.code == 2
        assert words in refused.err
