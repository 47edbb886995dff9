"""The script that builds the packaged WordNet graph."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

import outgrow.data

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "build_wordnet.py"
DATABASE = Path("/usr/share/wordnet")
NOUNS = """\
  1 a line of the licence
00000001 03 n 02 thing 0 object 1 002 ~ 00000002 n 0000 ! 00000001 v 0000 | a Thing thing; "that is"
00000002 04 n 01 dog 0 002 @ 00000001 n 0000 @ 00000001 n 0101 | barking thing
"""
OTHERS = {
    "verb": "00000001 30 v 01 be 0 001 + 00000003 s 0000 01 + 02 00 | to be a thing\n",
    "adj": "00000003 00 s 01 real 0 000 | being\n",
    "adv": "00000004 02 r 01 really 0 000 | in fact\n",
}


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("build_wordnet", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


@pytest.fixture
def database(tmp_path):
    (tmp_path / "data.noun").write_text(NOUNS)
    for part, text in OTHERS.items():
        (tmp_path / f"data.{part}").write_text(text)
    return tmp_path


def test_a_small_database_gives_the_graph_written_by_hand(script, database, monkeypatch):
    monkeypatch.setattr(script, "LEAST_GLOSSES", 2)
    arrays = script.build(database)
    assert list(arrays["rel_names"]) == ["!", "+", "@", "~"]
    typed = {(*edge, relation) for *edge, relation in zip(*arrays["edge_index"], arrays["edge_type"], strict=True)}
    assert typed == {(0, 1, 3), (0, 2, 0), (1, 0, 2), (2, 3, 1)}
    assert list(arrays["label"]) == [3, 4, 30, 0, 2]
    rows = csr_array((arrays["feat_data"], arrays["feat_indices"], arrays["feat_indptr"])).toarray()
    assert rows.shape == (5, 1)
    assert rows[:, 0] == pytest.approx([1, 1, 1, 0, 0])
    assert len(arrays["train_idx"]) == 2


def test_two_runs_write_the_same_arrays_whatever_the_hash_seed(database, monkeypatch):
    lines = [f"{i:08} 04 n 01 dog 0 000 | some words of equal frequency\n" for i in range(10, 40)]
    (database / "data.noun").write_text(NOUNS + "".join(lines))
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        arguments = [sys.executable, str(SCRIPT), str(database), str(database / f"{seed}.npz")]
        subprocess.run(arguments, check=True, capture_output=True)
    assert len(np.load(database / "1.npz")["feat_data"]) == 30 * 5
    assert (database / "1.npz").read_bytes() == (database / "2.npz").read_bytes()
    assert not list(database.glob(".*"))


@pytest.mark.skipif(not DATABASE.is_dir(), reason="the Debian package wordnet-base is not installed")
def test_the_packaged_arrays_are_built_but_for_the_order_of_equally_frequent_words(script):
    with np.load(Path(outgrow.data.__file__).with_name("wordnet.npz")) as file:
        packaged = dict(file)
    built = script.build(DATABASE)
    assert built.keys() == packaged.keys()
    for key in packaged.keys() - {"feat_data", "feat_indices"}:
        assert np.array_equal(built[key], packaged[key]), key
    one, other = in_order_of_content(built), in_order_of_content(packaged)
    assert np.array_equal(one.indptr, other.indptr)
    assert np.array_equal(one.indices, other.indices)
    assert np.array_equal(one.data, other.data)


def in_order_of_content(arrays):
    """Columns sorted by the rows they occur in, then by their rounded values."""
    shape = tuple(arrays["feat_shape"])
    columns = csr_array((arrays["feat_data"], arrays["feat_indices"], arrays["feat_indptr"]), shape=shape).tocsc()
    columns.sort_indices()

    def content(column):
        part = slice(columns.indptr[column], columns.indptr[column + 1])
        return columns.indices[part].tobytes() + np.round(columns.data[part], 4).tobytes()

    ordered = columns[:, sorted(range(shape[1]), key=content)].tocsr()
    ordered.sort_indices()
    return ordered
