"""Links to validate and to test on in OGB's folders and in PyG's objects."""

from __future__ import annotations

import gzip
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.graph import Graph

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    pytest.importorskip("torch_geometric", reason="needs the extra pyg")
    from torch_geometric.data import Data
    from torch_geometric.transforms import RandomLinkSplit
    from torch_geometric.utils import train_test_split_edges

EDGES = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])


def ogb_folder(folder: Path, parts: dict[str, dict[str, Any]], relation: list[int] | None = None) -> Path:
    """A data set of links of six nodes, as OGB unpacks it."""
    raw, split = folder / "raw", folder / "split" / "time"
    raw.mkdir(parents=True)
    split.mkdir(parents=True)
    tables = {"edge": EDGES, "num-node-list": [[6]], "num-edge-list": [[len(EDGES)]]}
    if relation is not None:
        tables["edge_reltype"] = [[each] for each in relation]
    for name, rows in tables.items():
        with gzip.open(raw / f"{name}.csv.gz", "wt") as file:
            file.writelines(",".join(map(str, row)) + "\n" for row in rows)
    for part, arrays in parts.items():
        torch.save(arrays, split / f"{part}.pt")
    return folder


def links_of(graph: Graph) -> list[list[list[int]]]:
    assert graph.held_out_links is not None
    return [torch.stack(list(part), 1).tolist() for part in graph.held_out_links]


def parts(**arrays: Any) -> dict[str, dict[str, Any]]:
    return {part: {name: each[part] for name, each in arrays.items() if part in each} for part in PARTS}


PARTS = ("train", "valid", "test")
HELD = {"train": EDGES, "valid": np.array([[0, 5]]), "test": np.array([[1, 4], [5, 2]])}
NEGATIVE = {"valid": np.array([[0, 3]]), "test": np.array([[1, 5]])}


@pytest.mark.parametrize("of", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_edges_of_ogb(tmp_path: Path, of: Any) -> None:
    held = {part: of(values) for part, values in HELD.items()}
    folder = ogb_folder(tmp_path / "ogbl_some", parts(edge=held, edge_neg=NEGATIVE))
    with pytest.warns(DataWarning, match=r"not read: valid.pt: edge_neg, test.pt: edge_neg, of ogbl-some"):
        made = og.load(folder)
    assert (made.num_nodes, made.num_edges, made.num_relations) == (6, 4, 0)
    assert links_of(made) == [[[0, 5, 0]], [[1, 4, 0], [5, 2, 0]]]


def test_nodes_of_ogb(tmp_path: Path) -> None:
    ends = [{part: each[:, column] for part, each in HELD.items()} for column in (0, 1)]
    folder = ogb_folder(tmp_path / "ogbl_cited", parts(source_node=ends[0], target_node=ends[1]))
    assert links_of(og.load(folder)) == [[[0, 5, 0]], [[1, 4, 0], [5, 2, 0]]]


def test_triples_of_ogb(tmp_path: Path) -> None:
    ends = [{part: each[:, column] for part, each in HELD.items()} for column in (0, 1)]
    relation = {"train": np.array([0, 1, 1, 0]), "valid": np.array([1]), "test": np.array([0, 1])}
    given = parts(head=ends[0], relation=relation, tail=ends[1])
    made = og.load(ogb_folder(tmp_path / "ogbl_kg", given, [0, 1, 1, 0]))
    assert links_of(made) == [[[0, 5, 1]], [[1, 4, 0], [5, 2, 1]]]
    assert made.num_relations == 2
    assert made.topology.relation is not None
    assert made.topology.relation.tolist() == [0, 1, 1, 0]


def test_candidates_of_ogb_are_in_stores_too(tmp_path: Path) -> None:
    ends = [{part: each[:, column] for part, each in HELD.items()} for column in (0, 1)]
    heads = {"valid": np.array([[1, 2, 3]]), "test": np.array([[0, 1, 2], [3, 3, 4]])}
    tails = {"valid": np.array([[5, 4]]), "test": np.array([[2, 1], [0, 4]])}
    folder = ogb_folder(tmp_path / "ogbl_kg", parts(head=ends[0], tail=ends[1], head_neg=heads, tail_neg=tails))
    for made in (og.load(folder), og.convert(folder, tmp_path / "store"), og.load(tmp_path / "store")):
        assert made.held_out_links is not None
        for part, found in zip(("valid", "test"), made.held_out_links.candidates, strict=True):
            assert found is not None
            assert found.head is not None
            assert found.tail is not None
            assert (found.head.tolist(), found.tail.tolist()) == (heads[part].tolist(), tails[part].tolist())


def test_candidates_of_other_links_are_refused(tmp_path: Path) -> None:
    for number, (bad, got) in enumerate((([[0, 6], [1, 1]], "1 of them"), ([[0, 1]], "shape"))):
        given = {"valid": np.array([[1]]), "test": np.array(bad)}
        ends = [{part: each[:, column] for part, each in HELD.items()} for column in (0, 1)]
        folder = ogb_folder(tmp_path / f"ogbl_{number}", parts(head=ends[0], tail=ends[1], tail_neg=given))
        with pytest.raises(InputError, match="candidates for the tail of test links") as caught:
            og.load(folder)
        assert got in str(caught.value)


def test_a_split_goes_into_a_store_and_comes_out(tmp_path: Path) -> None:
    folder = ogb_folder(tmp_path / "ogbl_some", parts(edge=HELD))
    made = og.convert(folder, tmp_path / "store")
    assert links_of(made) == links_of(og.load(folder)) == [[[0, 5, 0]], [[1, 4, 0], [5, 2, 0]]]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"rows": HELD}, "no links"),
        ({"edge": {part: each.T for part, each in HELD.items()}}, "cannot be used"),
        ({"edge": {part: each.astype(np.float64) for part, each in HELD.items()}}, "cannot be used"),
        ({"edge": {**HELD, "test": np.array([[1, 6]])}}, "does not exist"),
        ({"edge": {**HELD, "test": np.array([[1, -1]])}}, "does not exist"),
        ({"edge": HELD, "head_type": dict.fromkeys(PARTS, np.array([0]))}, "several types"),
    ],
)
def test_broken_links_of_ogb(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        og.load(ogb_folder(tmp_path / "ogbl_some", parts(**arrays)))


def test_relations_that_do_not_fit_the_edges(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not fit the edges"):
        og.load(ogb_folder(tmp_path / "ogbl_kg", parts(edge=HELD), [0, 1, 1]))


def test_a_file_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return Path(tmp_path / "made").write_text, ("no",)

    folder = ogb_folder(tmp_path / "ogbl_some", parts(edge=HELD))
    path = folder / "split" / "time" / "test.pt"
    torch.save({"edge": Hostile()}, path)
    for content in (path.read_bytes(), pickle.dumps({"edge": Hostile()}), b"PK\x03\x04", b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match="cannot be read"):
            og.load(folder)
    assert not (tmp_path / "made").exists()


def ring(nodes: int = 30) -> Data:
    ends = torch.arange(nodes)
    index = torch.stack([ends, (ends + 1) % nodes])
    return Data(x=torch.eye(nodes), edge_index=torch.cat([index, index.flip(0)], 1))


def test_a_split_of_pyg() -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = train_test_split_edges(ring(), 0.1, 0.2)
    with pytest.warns(DataWarning, match="not read: test_neg_edge_index, train_neg_adj_mask, val_neg_edge_index"):
        made = og.load(data)
    assert [[link[:2] for link in part] for part in links_of(made)] == [
        data.val_pos_edge_index.T.tolist(),
        data.test_pos_edge_index.T.tolist(),
    ]
    assert made.num_edges == data.train_pos_edge_index.shape[1] == 42


def test_triples_of_pyg() -> None:
    index, kind = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([0, 1, 0])
    held = {"valid_edge_index": index.flip(0)[:, :1], "valid_edge_type": kind[:1]}
    held |= {"test_edge_index": index.flip(0)[:, 1:], "test_edge_type": kind[1:]}
    data = Data(num_nodes=4, train_edge_index=index, train_edge_type=kind, **held)
    with pytest.warns(DataWarning, match="have their inverse in training"):
        made = og.load(data)
    assert links_of(made) == [[[1, 0, 0]], [[2, 1, 1], [3, 2, 0]]]
    assert made.num_relations == 2
    # Edges that are given besides are those of the graph.
    data.edge_index, data.edge_type = torch.cat([index, index.flip(0)], 1), torch.cat([kind, kind + 2])
    with pytest.warns(DataWarning) as said:
        made = og.load(data)
    assert any("train_edge_index, train_edge_type" in str(each.message) for each in said)
    assert (made.num_edges, made.num_relations) == (6, 4)


def test_one_part_of_a_split_alone_is_not_read() -> None:
    torch.manual_seed(0)
    data = RandomLinkSplit(num_val=0.1, num_test=0.2, is_undirected=True)(ring())[0]
    with pytest.warns(DataWarning, match="not read: edge_label, edge_label_index"):
        assert og.load(data).held_out_links is None
