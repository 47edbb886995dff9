import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.readers.tables import text_blocks
from outgrow.graph.readers.tables.edge_table import EdgeTableSource
from outgrow.graph.readers.tables.options import TableOptions


def source_of(path, **options):
    return EdgeTableSource(path, TableOptions(**options))


def read(path, content, **options):
    """All edges of a file as lists: src, dst, relation, weight."""
    path.write_bytes(content)
    columns = zip(*(chunk[:4] for chunk in source_of(path, **options).read_edges()), strict=True)
    return [None if parts[0] is None else np.concatenate(parts).tolist() for parts in columns]


FORMS = {
    "tabs": b"0\t1\n2\t3\n",
    "commas": b"0,1\n2,3\n",
    "semicolons": b"0;1\n2;3\n",
    "spaces": b"0 1\n2 3\n",
    "no last newline": b"0 1\n2 3",
    "carriage returns": b"0,1\r\n2,3\r\n",
    "comments of SNAP": b"# Directed graph\n# FromNodeId\tToNodeId\n0\t1\n2\t3\n",
    "comments of KONECT": b"% sym unweighted\n0 1\n2 3\n",
    "comments between": b"0 1\n# here\n2 3\n% there\n",
    "ragged blanks": b"  0   1 \n2 \t 3\t\n",
    "blanks after commas": b"0, 1\n2, 3\n",
    "empty lines": b"\n0 1\n\n2 3\n\n",
    "header": b"src,dst\n0,1\n2,3\n",
    "header after comments": b"# c\n\nSource;Target\n0;1\n2;3\n",
    "header and comments": b"from to\n# c\n0 1\n2 3\n",
    "other columns": b"when,src,what,dst\n9,0,x y,1\n8,2,,3\n",
    "byte order mark": b"\xef\xbb\xbfsrc,dst\n0,1\n2,3\n",
}


@pytest.mark.parametrize("block", [1, 5, 1 << 21])
@pytest.mark.parametrize("form", FORMS)
def test_forms(tmp_path, monkeypatch, form, block):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block)
    assert read(tmp_path / "edges.txt", FORMS[form])[:2] == [[0, 2], [1, 3]]


def test_weight_and_relation_by_header(tmp_path):
    text = b"weight,src,dst,type\n0.5,0,1,3\n-2,2,3,0\n"
    assert read(tmp_path / "e.csv", text) == [[0, 2], [1, 3], [3, 0], [0.5, -2.0]]


def test_columns_by_name(tmp_path):
    text = b"0 1 17 0.5\n2 3 18 2\n"
    options = {"columns": {"src": "0", "dst": "1", "weight": "3"}}
    assert read(tmp_path / "e.csv", text, **options) == [[0, 2], [1, 3], None, [0.5, 2.0]]


def test_gzip(tmp_path):
    packed = gzip.compress(FORMS["comments of SNAP"])
    assert read(tmp_path / "e.txt.gz", packed)[:2] == [[0, 2], [1, 3]]
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "e.txt.gz", packed[:-9])
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "e.txt.gz", b"0 1\n")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# nothing\n", b"src,dst\n"])
def test_nothing(tmp_path, content):
    path = tmp_path / "e.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match="no nodes"):
        assemble_graph(source_of(path))
    assert assemble_graph(source_of(path, num_nodes=3)).num_nodes == 3


BAD_LINES = [
    (b"0 1\n1 2\nx 3\n", "line 3, column 0: not an integer", "'x'"),
    (b"0 1\n1 2.5\n", "line 2, column 1: not an integer", "'2.5'"),
    (b"0,1\n\n1,\n", "line 3, column 1: no value", "none"),
    (b"# c\n0 1\n# c\n1\n", "line 4: not as many columns", "'1'"),
    (b"0,1\n1,2,3\n", "line 2: not as many columns", "'1,2,3'"),
    (b"src,dst,weight\n0,1,heavy\n", "line 2, column weight: a value of another type", "'heavy'"),
    (b"src,dst,type\n0,1,0\n0,1,1.5\n", "line 3, column type: not an integer", "'1.5'"),
    (b"99999999999999999999 1\n", "line 1, column 0: not an integer", "'99999999999999999999'"),
    (b"0 1 2\n", "the meaning of the columns", "3 columns"),
    (b"7\n", "the meaning of the columns", "1 columns"),
    (b"a,b\n0,1\n", "columns of", "no column for"),
    (b"src,dst,from\n0,1,2\n", "columns of", "two columns for src"),
]


@pytest.mark.parametrize("block", [3, 1 << 21])
@pytest.mark.parametrize(("content", "what", "got"), BAD_LINES)
def test_bad_lines_are_named(tmp_path, monkeypatch, content, what, got, block):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block)
    with pytest.raises(InputError) as caught:
        read(tmp_path / "e.txt", content)
    assert what in caught.value.what
    assert got in caught.value.got


def test_negative_ids_are_refused_unless_renumbered(tmp_path):
    content = b"-5 100000000000\n7 -5\n"
    (tmp_path / "e.txt").write_bytes(content)
    with pytest.raises(InputError, match="node ids cannot be used"):
        assemble_graph(source_of(tmp_path / "e.txt"))
    assert read(tmp_path / "e.txt", content, relabel=True)[:2] == [[0, 1], [2, 0]]
    assert source_of(tmp_path / "e.txt", relabel=True).read_tables().num_nodes == 3
    with pytest.raises(InputError, match="exclude each other"):
        source_of(tmp_path / "e.txt", relabel=True, num_nodes=9)


@given(edges=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-9, 9)), min_size=1, max_size=50))
@settings(deadline=None, max_examples=40)
def test_renumbering_keeps_the_order_of_ids(tmp_path_factory, edges):
    path = tmp_path_factory.mktemp("ids") / "e.csv"
    content = "".join(f"{src},{dst}\n" for src, dst in edges).encode()
    src, dst, _, _ = read(path, content, relabel=True)
    ids = sorted({id_ for edge in edges for id_ in edge})
    assert [(ids[a], ids[b]) for a, b in zip(src, dst, strict=True)] == edges
