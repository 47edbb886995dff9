"""Tables: types of columns, places of rows, progress; edges to nodes that node tables do or do not name."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.readers.detect import detect_reader
from outgrow.graph.readers.tables import edge_batches, text_blocks
from outgrow.graph.readers.tables.edge_batches import read_edge_batches
from outgrow.graph.readers.tables.edge_roles import find_edge_roles
from outgrow.graph.readers.tables.edge_table import EdgeTableSource
from outgrow.graph.readers.tables.id_encoder import IdEncoder
from outgrow.graph.readers.tables.open_table import open_table
from outgrow.graph.readers.tables.options import TableOptions


def write(path: Path, content: str) -> Path:
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def values_of(path: Path, columns: list[str], types: dict[str, Any] | None = None, **how: Any) -> list[list[Any]]:
    """The columns of a table, whole."""
    batches = list(open_table(path, **how).read_batches(columns, types))
    assert all(batch.schema.names == columns for batch in batches)
    return [[value for batch in batches for value in batch.column(name).to_pylist()] for name in columns]


@pytest.mark.parametrize("block", [9, 1 << 21])
def test_types_hold_the_values_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block)
    rows = "id,age,mixed,empty\n" + "".join(f"{at},{at},{at},\n" for at in range(50)) + "50,50.5,x,\n"
    path = write(tmp_path / "n.csv", rows)
    table = open_table(path)
    types = table.infer_types(["id", "age", "mixed", "empty"])
    assert types == {"id": pa.int64(), "age": pa.float64(), "mixed": types["mixed"], "empty": pa.null()}
    assert types["mixed"] in (pa.string(), pa.large_string())
    ids, age, mixed = values_of(path, ["id", "age", "mixed"])
    assert (ids, age[-2:], mixed[-2:]) == ([*range(51)], [49.0, 50.5], ["49", "x"])
    assert values_of(path, ["id"], {"id": pa.large_string()}) == [[str(at) for at in range(51)]]


def test_a_header_may_be_demanded(tmp_path: Path) -> None:
    path = write(tmp_path / "n.csv", "name,0,1\nada,1,2\n")
    assert not open_table(path).has_names
    assert open_table(path, header=True).names == ("name", "0", "1")
    assert values_of(path, ["name", "1"], header=True) == [["ada"], [2]]
    assert open_table(write(tmp_path / "m.csv", "who,whom\nada,bob\n"), named=["whom"]).names == ("who", "whom")


def test_values_of_several_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "n.csv", 'id,note\n1,"a\n\n\nb"\n2,c\n3,d\n')
    assert values_of(path, ["note"]) == [["a\n\n\nb", "c", "d"]]
    assert open_table(path).locate_row(1) == f"{path}, line 6"
    with pytest.raises(InputError, match=r"line 2, column dst: an id of several lines"):
        assemble_graph(EdgeTableSource(write(tmp_path / "e.csv", 'src,dst\n1,"a\nb"\n2,c\n3,d\n')))


@pytest.mark.parametrize("name", ["e.csv", "e.csv.gz", "e.jsonl", "e.parquet"])
def test_rows_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 16)
    path = tmp_path / name
    if name == "e.parquet":
        parquet.write_table(pa.table({"src": [*range(9)], "dst": [*range(9)]}), path, row_group_size=4)
    elif name == "e.jsonl":
        write(path, "".join(f'\n{{"src": {at}, "dst": {at}}}\n' for at in range(9)))
    else:
        write(path, "# c\nsrc,dst\n" + "".join(f"{at},{at}\n\n# c\n" for at in range(9)))
    where = {"e.jsonl": "line 14", "e.parquet": "row group 1, row 6"}.get(name, "line 21")
    assert open_table(path).locate_row(6) == f"{path}, {where}"


def test_lines_of_json_that_are_none(tmp_path: Path) -> None:
    for content, what in (
        ('{"src": 1, "dst": 2}\n{"src": 1,\n', "line 2: not a JSON object"),
        ('{"src": 1, "dst": 2}\n[1]\n', "line 2: not a JSON object"),
        ('{"src": 1, "dst": 2}\n{"src": "x", "dst": 2}\n', "lines from 1 on"),
    ):
        with pytest.raises(InputError, match=what):
            assemble_graph(EdgeTableSource(write(tmp_path / "e.jsonl", content)))


def given_ids(*names: str) -> IdEncoder:
    encoder = IdEncoder()
    encoder.encode(pa.array(names, pa.large_string()))
    return encoder


def pairs(source: EdgeTableSource) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for chunk in source.read_edges() for a, b in zip(chunk.src, chunk.dst, strict=True)]


def test_unknown_nodes(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "src,dst,relation\nb,a,r\na,x,s\ny,b,t\nz,x,t\na,b,t\n")
    with pytest.raises(InputError) as caught:
        pairs(EdgeTableSource(path, src_ids=given_ids("a", "b")))
    assert "do not" not in caught.value.got
    for words in ("3 edges", "'x' (", "line 3", "'y' (", "line 4", "'z' (", "line 5"):
        assert words in caught.value.got
    dropped = EdgeTableSource(path, TableOptions(unknown_nodes="drop"), src_ids=given_ids("a", "b"))
    with pytest.warns(DataWarning, match="3 edges to other nodes, such as 'x'"):
        assert pairs(dropped) == [(1, 0), (0, 1)]
    assert dropped.read_relation_names() == ("r", "t")
    added = EdgeTableSource(path, TableOptions(unknown_nodes="add"), src_ids=given_ids("a", "b"))
    assert pairs(added) == [(1, 0), (0, 2), (3, 1), (4, 2), (0, 1)]
    assert list(added.read_ids() or ()) == ["a", "b", "x", "y", "z"]
    with pytest.raises(InputError, match="unknown_nodes"):
        EdgeTableSource(path, TableOptions(unknown_nodes="keep"))


def test_ids_of_two_types(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "src,dst\nada,ada\nbob,x\n")
    source = EdgeTableSource(path, src_ids=given_ids("bob", "ada"), dst_ids=given_ids("x", "ada"))
    assert pairs(source) == [(1, 1), (0, 0)]
    assert pairs(source) == [(1, 1), (0, 0)]


def test_batches_of_edges(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "e.csv", "h,r,t\nada,1,7\nbob,0,8\n"))
    batch = next(read_edge_batches(table, find_edge_roles(table)))
    assert (batch.src.type, batch.dst.type, batch.relation.type) == (pa.large_string(), pa.int64(), pa.int64())
    assert (batch.first_row, batch.weight) == (0, None)


def test_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1 << 10)
    path = write(tmp_path / "e.csv", "src,dst\n" + "1234,5678\n" * 2000)
    told: list[tuple[str, int, int | None]] = []
    convert_to_store(detect_reader(path), tmp_path / "s", progress=lambda *what: told.append(what))
    read = [(done, total) for phase, done, total in told if phase == "read"]
    assert read[-1] == (2000, 2000)
    assert len(read) > 9
    assert all(total is not None and 1800 < total < 2300 for _, total in read[2:])


def test_ids_that_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_batches, "_LONGEST_ID", 9)
    with pytest.raises(InputError, match="line 3, column dst: longer than any id"):
        assemble_graph(EdgeTableSource(write(tmp_path / "e.csv", "src,dst\na,b\na,0123456789x\n")))


@pytest.mark.filterwarnings("ignore:not read")
def test_leading_zeros_later_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1 << 12)
    content = "src,dst,day\n" + "12,7,01\n" * 12_000
    path = write(tmp_path / "e.csv", content)
    assert assemble_graph(EdgeTableSource(path, TableOptions(relabel=True))).num_nodes == 2
    for row in ("12,007,01\n", '12," 007",01\n', "007,7,01\n"):
        write(path, content + row)
        with pytest.raises(InputError, match=r"line 12002, column (src|dst): not an integer"):
            assemble_graph(EdgeTableSource(path))
        assert set(assemble_graph(EdgeTableSource(path, TableOptions(relabel=True))).ids or ()) > {"12", "7"}


def test_columns_are_given_by_role(tmp_path: Path) -> None:
    path = write(tmp_path / "e.txt", "7 0 1 5\n")
    columns: Any = {"src": 1, "dst": 2, "weight": 3}
    assert pairs(EdgeTableSource(path, TableOptions(columns=columns))) == [(0, 1)]
    with pytest.raises(InputError, match="the columns cannot be read"):
        EdgeTableSource(path, TableOptions(columns=["src", "dst"]))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="role of a column"):
        EdgeTableSource(path, TableOptions(columns={"source": "1", "dst": "2"}))
    with pytest.raises(InputError, match="two roles"):
        EdgeTableSource(path, TableOptions(columns={"src": "1", "dst": "1"}))
    named = write(tmp_path / "e.csv", "src,dst,weight\n0,1,x\n")
    assert pairs(EdgeTableSource(named, TableOptions(columns={"weight": "_"}))) == [(0, 1)]


def test_parts_that_are_no_table(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    with pytest.raises(InputError, match="is no table"):
        open_table(folder)
    write(folder / "part-0.csv", "src,dst\n0,1\n")
    parquet.write_table(pa.table({"src": [1], "dst": [2]}), folder / "part-1.parquet")
    with pytest.raises(InputError, match="is no table"):
        open_table(folder)
    with pytest.raises(InputError, match="no known form"):
        detect_reader(folder)


def test_types_of_parts_are_unified(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    parquet.write_table(pa.table({"id": pa.array([1], pa.int32()), "x": [1]}), folder / "part-0.parquet")
    parquet.write_table(pa.table({"x": [0.5], "id": pa.array([2], pa.int64())}), folder / "part-1.parquet")
    assert values_of(folder, ["id", "x"]) == [[1, 2], [1.0, 0.5]]
    table = open_table(folder)
    assert table.num_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert [len(batch) for batch in table.read_batches(["id"])] == [1, 1]
    assert table.locate_row(1).endswith("part-1.parquet, row group 0, row 0")


def test_text_ids_beside_arrays(tmp_path: Path) -> None:
    write(tmp_path / "edges.csv", "src,dst\n30,10\n20,30\n")
    np.savez(tmp_path / "nodes.npz", label=[0, 1, 0])
    made = assemble_graph(detect_reader(tmp_path, TableOptions(relabel=True)))
    assert list(made.ids or ()) == [10, 20, 30]
    write(tmp_path / "edges.csv", "src,dst\nc,a\nb,c\n")
    with pytest.raises(InputError, match="do not fit"):
        assemble_graph(detect_reader(tmp_path))
