"""Construction configs in the form of GraphStorm: what is read, and what is refused by its name."""

import json

import numpy as np
import pytest
import yaml

import outgrow as og
from graph.readers.typed_folders import dense, make_config, make_folder, named_edges, write, write_config
from outgrow.core.errors import InputError

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore:edges have weights of some types only", "ignore:not read")


@pytest.mark.parametrize("name", ["graph.json", "graph.yaml", "other.yml"])
def test_a_construction_config(tmp_path, name):
    make_folder(tmp_path)
    text = json.dumps(make_config()) if name.endswith("json") else yaml.safe_dump(make_config())
    path = write(tmp_path / name, text)
    graph = og.load(path if name.startswith("other") else tmp_path)
    assert graph.name == ("other" if name.startswith("other") else tmp_path.name)
    assert list(graph.ids) == ["p1", "p2", "p3", "a1", "a2"]
    assert dense(graph).tolist() == [[2001, 5, 0], [2003, 1, 0], [2002, 0, 0], [0, 0, 10], [0, 0, 20]]
    assert graph.labels.tolist() == [1, 0, 1, -1, -1]
    assert sum(map(len, (graph.split.train, graph.split.val, graph.split.test))) == 3
    assert named_edges(graph) == named_edges(og.load(make_folder(tmp_path / "plain")))


def test_transforms_of_features(tmp_path):
    config = make_config()
    config["nodes"][0]["features"] = [
        {"feature_col": "year", "transform": {"name": "max_min_norm", "min_val": 2000, "max_bound": 2002}},
        {"feature_col": "cited", "transform": {"name": "standard"}},
        {"feature_col": "venue", "transform": {"name": "to_categorical"}},
    ]
    del config["nodes"][0]["labels"]
    config["nodes"][1]["features"][0]["transform"] = {"name": "standard", "sum": 40}
    write_config(tmp_path, config)
    assert dense(og.load(tmp_path)) == pytest.approx(
        np.array([[0.5, 5 / 6, 0, 1, 0], [1, 1 / 6, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 0.25], [0, 0, 0, 0, 0.5]])
    )
    config["nodes"][0]["features"][1]["transform"] = {"name": "max_min_norm", "min_val": 1, "max_val": 1}
    write_config(tmp_path, config)
    with pytest.raises(InputError, match="the column cited cannot be scaled"):
        og.load(tmp_path)


def test_a_split_in_files(tmp_path):
    config = make_config()
    label = config["nodes"][0]["labels"][0]
    del label["split_pct"]
    label["custom_split_filenames"] = {"train": "train.json", "valid": ["val.parquet"], "column": ["pid"]}
    write_config(tmp_path, config)
    write(tmp_path / "train.json", '"p3"\n"p1"\n')
    pa.parquet = pytest.importorskip("pyarrow.parquet")
    pa.parquet.write_table(pa.table({"pid": ["p2"]}), tmp_path / "val.parquet")
    graph = og.load(tmp_path)
    assert [part.tolist() for part in (graph.split.train, graph.split.val, graph.split.test)] == [[0, 2], [1], []]
    write(tmp_path / "train.json", '"p3"\n"p5"\n')
    with pytest.raises(InputError, match="the split train of paper") as refused:
        og.load(tmp_path)
    assert refused.value.got == "1 others, such as 'p5'"


def test_formats_of_a_config(tmp_path):
    config = make_config()
    make_folder(tmp_path)
    write(tmp_path / "papers.json", '{"id": "p1", "venue": "ml", "year": 1, "cited": 2}\n' * 1)
    write(tmp_path / "more.json", '{"id": "p2", "venue": "db", "year": 3, "cited": 4}\n')
    write(tmp_path / "p3.json", '{"id": "p3", "venue": "db", "year": 3, "cited": 4}\n')
    config["nodes"][0] |= {"format": {"name": "json"}, "files": ["papers.json", "more.json", "p3.json"]}
    write(tmp_path / "cites.txt", "src;dst\np3;p1\n")
    config["edges"][1] |= {"format": {"name": "csv", "separator": ";"}, "files": "cites.txt"}
    write(tmp_path / "graph.json", json.dumps(config))
    graph = og.load(tmp_path)
    assert list(graph.ids)[:3] == ["p1", "p2", "p3"]
    assert (graph.num_edges, dense(graph)[1].tolist()) == (4, [3, 4, 0])


def change(place, value):
    """Return a change of the config: ``value`` at a place such as ``("nodes", 0, "files")``; None deletes it."""

    def apply(config):
        *way, last = place
        for step in way:
            config = config[step]
        if value is None:
            del config[last]
        else:
            config[last] = value

    return apply


BAD_CONFIGS = {
    "unknown key": (change(("nodes", 0, "node_id"), "id"), "unknown key of nodes", "did you mean node_id_col"),
    "unknown top key": (change(("node",), []), "unknown key of the config", "did you mean nodes"),
    "no nodes": (change(("nodes",), None), "nodes of", "a list"),
    "no type": (change(("nodes", 0, "node_type"), None), r"nodes\[0\].node_type", "a text"),
    "hdf5": (change(("nodes", 0, "format"), {"name": "hdf5"}), r"nodes\[0\].format", "parquet or json"),
    "missing file": (change(("edges", 0, "files"), "gone.csv"), r"edges\[0\].files", "nothing at"),
    "missing files": (change(("edges", 0, "files"), "gone*.csv"), r"edges\[0\].files", "nothing at"),
    "another format": (change(("nodes", 0, "format"), {"name": "parquet"}), r"nodes\[0\].files", "paper.csv"),
    "missing column": (change(("nodes", 0, "node_id_col"), "idd"), "unknown column", "did you mean id"),
    "relation": (change(("edges", 0, "relation"), ["a", "b"]), r"edges\[0\].relation", "three texts"),
    "type without table": (
        change(("edges", 0, "relation"), ["user", "w", "paper"]),
        "without a table",
        "--unknown-nodes",
    ),
    "edge labels": (change(("edges", 0, "labels"), [{}]), r"edges\[0\].labels", "--val-links"),
    "edge features": (
        change(
            ("edges", 0, "features"),
            [{"feature_col": "weight", "feature_name": "w", "transform": {"name": "standard"}}],
        ),
        r"edges\[0\].features",
        "to_categorical",
    ),
    "weights": (
        change(("edges", 0, "features", 0, "feature_col"), ["weight", "b"]),
        r"edges\[0\].features\[0\]",
        "one column",
    ),
    "transform": (change(("nodes", 1, "features", 0, "transform"), {"name": "bert_hf"}), "transform", "max_min_norm"),
    "option of transform": (
        change(("nodes", 1, "features", 0, "transform"), {"name": "max_min_norm", "min": 1}),
        "unknown key of",
        "min_val",
    ),
    "task": (change(("nodes", 0, "labels", 0, "task_type"), "reconstruct_node_feat"), "task_type", "classification"),
    "two tasks": (change(("nodes", 0, "labels"), [{}, {}]), r"nodes\[0\].labels", "one task"),
    "split": (change(("nodes", 0, "labels", 0, "split_pct"), [0.8, 0.2]), "split_pct", "three shares"),
    "texts": (change(("nodes", 0, "features", 0, "feature_col"), ["venue"]), "features of paper", "to_categorical"),
    "version": (change(("version",), "v9"), "version", "gconstruct-v0.1"),
    "a type twice": (change(("nodes", 1, "node_type"), "paper"), "two tables of node type paper", "join"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_bad_configs(tmp_path, name):
    apply, what, words = BAD_CONFIGS[name]
    config = make_config()
    apply(config)
    write_config(tmp_path, config)
    with pytest.raises(InputError, match=what) as refused:
        og.load(tmp_path)
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["{", "[]", "nodes: [", "- a", "!!python/object/apply:os.system ['true']", "\x00"])
def test_files_that_are_no_config(tmp_path, text):
    with pytest.raises(InputError):
        og.load(write(tmp_path / "graph.yaml", text))
    with pytest.raises(InputError):
        og.load(write(tmp_path / "graph.json", text))
