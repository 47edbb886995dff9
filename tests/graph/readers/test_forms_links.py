"""Triples with given splits in all their forms: read as they are meant, or refused with what would read them."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outgrow as og
from graph.readers.forms_links import FORMS, PARTS, Form, Triple
from outgrow.app.cli.main import run_cli
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.graph import Graph
from outgrow.graph.link_leakage import find_leakage
from outgrow.graph.link_triples import LinkTriples, collect_links
from outgrow.graph.readers.tables import text_blocks
from outgrow.graph.store.reader import open_store


def names_of(graph: Graph, links: LinkTriples) -> list[Triple]:
    """Links by their names, in their order."""
    assert graph.ids is not None
    rows = torch.stack(list(links), 1).tolist()
    return [(str(graph.ids[h]), graph.relation_names[r], str(graph.ids[t])) for h, t, r in rows]


def parts_of(graph: Graph) -> dict[str, Counter[Triple]]:
    assert graph.held_out_links is not None
    links = (collect_links(graph.topology), *graph.held_out_links)
    return {part: Counter(names_of(graph, each)) for part, each in zip(PARTS, links, strict=True)}


def convert(monkeypatch: pytest.MonkeyPatch, *args: object) -> int:
    monkeypatch.setattr(sys, "argv", ["outgrow", "convert", *map(str, args)])
    try:
        run_cli()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_form(
    form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "facts").mkdir()
    path = form.make(tmp_path / "facts")
    code = convert(monkeypatch, path, tmp_path / "store", *form.options)
    said = capsys.readouterr().err
    if form.expected is not None:
        assert code == 2, said
        assert form.expected in said
        assert all(word in said for word in ("needed:", "got:", "repair:"))
        assert not (tmp_path / "store").exists()
        return
    assert code == 0, said
    made = open_store(tmp_path / "store", verify=True)
    assert parts_of(made) == {part: Counter(triples) for part, triples in PARTS.items()}
    assert made.relation_names == ("knows", "likes")
    assert made.ids is not None
    assert [*made.ids] == ["ada", "bob", "cy", "dee", "eve"]
    assert ("not read" in said) == ("fourth column" in form.name), said
    assert "leaks" not in said


# Marks of comments mean something in text tables: see the tests of these.
characters = st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="#%")
word = st.text(characters, min_size=1, max_size=5)
number = st.integers(-(10**17), 10**17).map(str)


@given(data=st.data(), ids=st.sampled_from([word, number]))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names(data: st.DataObject, ids: st.SearchStrategy[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Names come out as they went in, numbered by first occurrence, however few rows are read at a time."""
    pool = data.draw(st.lists(ids, min_size=1, max_size=6, unique=True))
    kinds = data.draw(st.lists(word, min_size=1, max_size=3, unique=True))
    triple = st.tuples(st.sampled_from(pool), st.sampled_from(kinds), st.sampled_from(pool))
    parts = {part: data.draw(st.lists(triple, min_size=1, max_size=12)) for part in PARTS}
    folder = tmp_path_factory.mktemp("facts")
    for part, triples in parts.items():
        (folder / f"{part}.txt").write_text("".join("\t".join(each) + "\n" for each in triples))
    if len({tuple(each) for each in parts.values()}) < len(parts) or any(
        [name.lower().strip('"') for name in each[0]] == ["h", "r", "t"] for each in parts.values()
    ):
        return
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore", DataWarning)
        patch.setattr(text_blocks, "BLOCK_BYTES", data.draw(st.sampled_from([128, 1 << 20])))
        allowed = {"allow_overlap": True, "allow_unseen_relations": True}
        made = og.load(folder, **allowed)
        stored = og.convert(folder, folder / "store", **allowed)
    every = [triple for triples in parts.values() for triple in triples]
    assert made.ids is not None
    assert [str(each) for each in made.ids] == [*dict.fromkeys(name for h, _, t in every for name in (h, t))]
    assert made.relation_names == tuple(dict.fromkeys(r for _, r, _ in every))
    for graph in (made, stored):
        assert parts_of(graph) == {part: Counter(triples) for part, triples in parts.items()}
        assert graph.held_out_links is not None
        assert names_of(graph, graph.held_out_links.test) == parts["test"]


PIECES = [b"\t", b"\n", b"\r", b'"', b",", b" ", b"\0", b"\xff", b"#", b"\xef\xbb\xbf"]


@given(data=st.data())
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_broken_files_are_refused_or_read(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever bytes change: the files are read, or one error says what is wrong; nothing else is raised."""
    folder = tmp_path_factory.mktemp("broken")
    for part, triples in PARTS.items():
        content = bytearray("".join("\t".join(each) + "\n" for each in triples).encode())
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(content)))
            piece = data.draw(
                st.sampled_from([b"\t", b"\n", b"\r", b'"', b",", b" ", b"\0", b"\xff", b"#", b"\xef\xbb\xbf"])
            )
            content[at : at + data.draw(st.integers(0, 6))] = piece
        (folder / f"{part}.txt").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        try:
            made = og.load(folder)
        except InputError:
            return
    assert made.ids is not None
    assert made.held_out_links is not None
    assert len(made.ids) == made.num_nodes
    for links in (collect_links(made.topology), *made.held_out_links):
        assert all(all(name for name in each) for each in names_of(made, links))


def write(folder: Path, **parts: str) -> Path:
    for part, triples in parts.items():
        rows = [triple.split() for triple in triples.split(",")]
        (folder / f"{part}.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder


def test_integers_are_kept_as_integers(tmp_path: Path) -> None:
    made = og.load(write(tmp_path, train="7 0 3,3 0 12,12 1 -4", valid="7 1 3", test="3 1 -4"))
    assert made.ids is not None
    assert made.ids.values is not None
    assert made.ids.values.tolist() == [7, 3, 12, -4]
    assert made.relation_names == ("0", "1")
    assert made.index_of([12]).tolist() == [2]


@pytest.mark.parametrize("name", ["007", "+7", "1.0", "1e3", "99999999999999999999", "a"])
def test_one_name_that_is_no_integer_makes_all_of_them_texts(tmp_path: Path, name: str) -> None:
    made = og.load(write(tmp_path, train=f"7 0 3,3 1 {name}", valid="7 1 3", test=f"3 0 {name}"))
    assert made.ids is not None
    assert made.ids.are_text
    assert [*made.ids] == ["7", "3", name]


def test_what_only_held_out_triples_have_is_kept_and_told(tmp_path: Path) -> None:
    write(tmp_path, train="a knows b", valid="a likes c", test="b knows d,e knows a")
    with pytest.warns(DataWarning) as said:
        made = og.load(tmp_path, allow_unseen_relations=True)
    assert (made.num_nodes, made.num_edges, made.relation_names) == (5, 1, ("knows", "likes"))
    messages = [str(each.message) for each in said]
    assert any(f"entities of {tmp_path.name}" in message and "3, such as c, d, e" in message for message in messages)
    assert any(
        "no training links of relations" in message and "'likes' (1 validation" in message for message in messages
    )


def test_one_held_out_file_is_enough(tmp_path: Path) -> None:
    made = og.load(write(tmp_path, train="a r b,b r c", test="a r c"))
    assert made.held_out_links is not None
    assert [len(part) for part in made.held_out_links] == [0, 1]


def test_repeated_triples_are_kept_and_counted(tmp_path: Path) -> None:
    write(tmp_path, train="a r b,a r b,b r c", valid="a r c", test="c r a,c r a")
    with pytest.warns(DataWarning, match=r"1 \(50.0%\) are repetitions"):
        made = og.load(tmp_path)
    assert made.held_out_links is not None
    assert (made.num_edges, len(made.held_out_links.test)) == (3, 2)


def test_the_origin_names_the_files(tmp_path: Path) -> None:
    (tmp_path / "facts").mkdir()
    write(tmp_path / "facts", train="a r b,b r c", valid="a r c", test="c r a")
    (tmp_path / "facts" / "README.txt").write_text("what this is")
    (tmp_path / "facts" / "types.txt").write_text("a person")
    with pytest.warns(DataWarning, match="not read: types.txt, of facts"):
        made = og.convert(tmp_path / "facts", tmp_path / "store")
    assert dict(made.origin.read)["edges"] == "train.txt"
    assert dict(made.origin.read)["links to test on"] == "test.txt"
    assert made.origin.unread == ("types.txt",)


def test_inverse_relations_are_those_of_training_triples(tmp_path: Path) -> None:
    write(tmp_path, train="a r b,b s c,a r b", valid="a s c", test="c r b")
    with pytest.warns(DataWarning, match="1 .100.0%. have their inverse in training"):
        made = og.load(tmp_path, inverse_relations=True)
    assert made.relation_names == ("r", "s", "r^-1", "s^-1")
    assert parts_of(made) == {
        "train": Counter({("a", "r", "b"): 2, ("b", "r^-1", "a"): 2, ("b", "s", "c"): 1, ("c", "s^-1", "b"): 1}),
        "valid": Counter([("a", "s", "c")]),
        "test": Counter([("c", "r", "b")]),
    }


def test_a_folder_of_nodes_and_edges_is_none_of_triples(tmp_path: Path) -> None:
    write(tmp_path, train="a r b", test="b r a")
    (tmp_path / "edges.json").write_text("{}")
    with pytest.raises(InputError, match="no known form"):
        og.load(tmp_path)


def test_blank_lines_before_a_header(tmp_path: Path) -> None:
    for part, triple in (("train", "a,r,b"), ("test", "b,r,c")):
        (tmp_path / f"{part}.csv").write_text(f"\n\nh,r,t\n\n{triple}\n\n")
    with pytest.warns(DataWarning, match="no training triple"):
        made = og.load(tmp_path)
    assert parts_of(made) == {
        "train": Counter([("a", "r", "b")]),
        "valid": Counter(),
        "test": Counter([("b", "r", "c")]),
    }


@pytest.mark.parametrize(
    ("name", "sizes", "least"),
    [("kg_wn18rr", (40_943, 11, 86_835, 3_034, 3_134), 0.34), ("kg_codex_s", (2_034, 42, 32_888, 1_827, 1_828), 0.14)],
)
def test_published_counts(data_dir: Path, tmp_path: Path, name: str, sizes: tuple[int, ...], least: float) -> None:
    """Entities, relations and triples per part as Dettmers et al. and Safavi and Koutra have published them."""
    if not (data_dir / name).is_dir():
        pytest.skip(f"no {name} in {data_dir}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        made = og.convert(data_dir / name, tmp_path / "store")
    assert made.held_out_links is not None
    found = (made.num_nodes, made.num_relations, made.num_edges, *map(len, made.held_out_links))
    assert found == sizes
    assert made.ids is not None
    assert len({*made.ids}) == made.num_nodes
    leaked = find_leakage(made)
    assert leaked is not None
    assert least < leaked.test.inverses / leaked.test.total < least + 0.02
    assert leaked.test.duplicates == leaked.val.duplicates == 0
    assert np.isclose(leaked.near_inverse[0].share, 0.94, atol=0.01)
