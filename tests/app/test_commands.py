"""The other commands, from end to end."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from tests.app.conftest import Command

import outgrow as og
from outgrow.app.cli.options import parse_assignments


def test_help_names_every_command_and_no_argument_shows_it(outgrow: Command) -> None:
    result = outgrow("--help")
    assert result.code == 0
    for command in ("train", "predict", "links", "info", "convert", "append", "datasets", "doctor", "warm"):
        assert command in result.out


def test_version(outgrow: Command) -> None:
    assert outgrow("--version").out.strip() == f"outgrow {og.__version__}"


def test_an_unknown_command_offers_the_nearest(outgrow: Command) -> None:
    result = outgrow("tran")
    assert result.code == 2
    assert "train" in result.err


def test_info_tells_sizes_and_splits(outgrow: Command, npz: Path) -> None:
    facts = outgrow("info", npz, "--json").summary
    assert facts["nodes"] == 240
    assert facts["edges"] == 1440
    assert (facts["train_nodes"], facts["val_nodes"], facts["test_nodes"]) == (120, 60, 60)
    assert facts["features_are"] == "dense float32"
    people = outgrow("info", npz)
    assert people.code == 0
    assert "1,440" in people.out


def test_info_of_the_packaged_data_set(outgrow: Command) -> None:
    facts = outgrow("info", "wordnet", "--json").summary
    assert facts["nodes"] == 117_659
    assert facts["features_are"] == "sparse float32"
    assert facts["features"] == 6_900
    assert facts["train_nodes"] + facts["val_nodes"] + facts["test_nodes"] == 117_659


def test_datasets_lists_names_and_where_they_come_from(outgrow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTGROW_DATA", raising=False)
    rows = {row["name"]: row for row in outgrow("datasets", "--json").summary}
    assert {"wordnet", "cora", "citeseer", "amazon-photo", "coauthor-cs", "debian", "ogbn-arxiv"} <= rows.keys()
    assert rows["wordnet"]["from"] == "packaged"
    assert rows["products@FACTOR"]["from"] == "generated"
    assert "wordnet" in outgrow("datasets").out


def test_convert_then_train_then_verify_then_predict(outgrow: Command, npz: Path) -> None:
    assert outgrow("convert", npz, "my.store", "--undirected").code == 0
    verified = outgrow("info", "my.store", "--verify", "--json").summary
    assert verified["verified"] is True
    assert verified["nodes"] == 240
    trained = outgrow("train", "my.store", "--hidden", 16, "--epochs", 6, "--out", "run", "--json").summary
    result = outgrow("predict", "run", "--out", "predictions.parquet")
    assert result.code == 0, result.err
    table = parquet.read_table("predictions.parquet").to_pydict()
    assert table["node"] == list(range(240))
    graph = og.load("my.store")
    assert graph.labels is not None
    test = graph.split.test
    hits = np.array(table["label"])[test] == graph.labels[test].numpy()
    assert hits.mean() == pytest.approx(trained["test_accuracy"])
    assert all(0 < p <= 1 for p in table["probability"])


def test_convert_reads_a_zipped_edge_list(outgrow: Command, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "edges.tsv.gz", "wt") as file:
        file.write("# a comment\n0\t1\n1\t2\n5\t2\n")
    assert outgrow("convert", "edges.tsv.gz", "plain.store").code == 0
    assert outgrow("convert", "edges.tsv.gz", "nine.store", "--nodes", 9, "--memory", "64MiB").code == 0
    assert outgrow("convert", "edges.tsv.gz", "dense.store", "--relabel").code == 0
    assert [og.load(f"{name}.store").num_nodes for name in ("plain", "nine", "dense")] == [6, 9, 4]


def test_convert_keeps_names(outgrow: Command, tmp_path: Path) -> None:
    (tmp_path / "kg.tsv").write_text("ada\tknows\tbob\nbob\tlikes\tcy\n")
    asked = outgrow("convert", "kg.tsv", "kg.store")
    assert (asked.code, "src=0,dst=2,relation=1" in asked.err) == (2, True)
    assert outgrow("convert", "kg.tsv", "kg.store", "--columns", "src=0,dst=2,relation=1").code == 0
    made = og.load("kg.store")
    assert (list(made.ids or ()), made.relation_names) == (["ada", "bob", "cy"], ("knows", "likes"))
    bad = outgrow("convert", "kg.tsv", "kg.store", "--columns", "src=0,dst=1,weight=2", "--overwrite")
    assert (bad.code, "line 1, column 2" in bad.err) == (2, True)
    assert list(og.load("kg.store").ids or ()) == ["ada", "bob", "cy"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nowhere.csv", "x.store"), ("does not exist",)),
        (("GRAPH", "x.store", "--memory", "lots"), ("size", "1GiB")),
        (("GRAPH", "taken"), ("is not a store",)),
        (("cora-typo", "x.store"), ("cora",)),
        (("wordnet", "x.store", "--relabel"), ("does not take these options", "relabel")),
    ],
)
def test_convert_refuses_and_leaves_nothing(
    outgrow: Command, npz: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    Path("taken").mkdir()
    Path("taken/precious").touch()
    result = outgrow("convert", *(str(npz) if arg == "GRAPH" else arg for arg in args))
    assert result.code == 2, result.err
    for word in words:
        assert word in result.err
    assert sorted(path.name for path in Path().iterdir()) == [npz.name, "taken"]


@pytest.mark.parallel_kernels
def test_doctor_is_well(outgrow: Command) -> None:
    report = outgrow("doctor", "--json").summary
    assert set(report["checks"].values()) == {"ok"}
    assert report["threading_layer"] == "omp"
    assert report["versions"]["outgrow"] == og.__version__
    people = outgrow("doctor")
    assert people.code == 0
    assert "omp" in people.out


def test_every_line_of_json_output_is_json(outgrow: Command, npz: Path) -> None:
    for args in (("info", npz), ("datasets",), ("doctor",)):
        assert json.loads(outgrow(*args, "--json").out)


def test_a_longer_resumed_run_remembers_its_length(outgrow: Command, npz: Path) -> None:
    assert outgrow("train", npz, "--hidden", 16, "--epochs", 2, "--out", "run").code == 0
    assert outgrow("train", "--out", "run", "--resume", "--epochs", 4).code == 0
    assert json.loads(Path("run/config.json").read_text())["train"]["epochs"] == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [("None", None), ("null", None), ("True", True), ("false", False), ("3", 3), ("[1, 2]", [1, 2]), ("mean", "mean")],
)
def test_values_of_assignments_have_the_types_that_they_are_written_as(text: str, value: object) -> None:
    assert parse_assignments([f"batch-size={text}"]) == {"batch_size": value}
