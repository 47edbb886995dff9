"""Second names of options: they mean the documented ones, silently."""

import inspect
from dataclasses import dataclass, replace

import pytest

from outgrow.core.errors import InputError
from outgrow.core.synonyms import accept_synonyms, rename_keys


@accept_synonyms(num_neighbors="fanout")
@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of which one has a second name."""

    fanout: int = 4


@accept_synonyms(edge_type="relation")
def read_edges(edges: int, *, relation: int = 0) -> tuple[int, int]:
    """A function of which one argument has a second name."""
    return edges, relation


def test_a_synonym_is_the_documented_option() -> None:
    assert Options(num_neighbors=2) == Options(fanout=2)  # type: ignore[call-arg]
    assert repr(Options(num_neighbors=2)) == "Options(fanout=2)"  # type: ignore[call-arg]
    assert replace(Options(num_neighbors=2), fanout=3).fanout == 3  # type: ignore[call-arg]
    assert read_edges(1, edge_type=2) == read_edges(1, relation=2) == (1, 2)  # type: ignore[call-arg]
    assert [*inspect.signature(Options).parameters] == ["fanout"]
    assert [*inspect.signature(read_edges).parameters] == ["edges", "relation"]


def test_one_option_by_both_names_is_refused() -> None:
    with pytest.raises(InputError, match="option fanout of Options is given twice") as refused:
        Options(fanout=2, num_neighbors=2)  # type: ignore[call-arg]
    assert all(part in str(refused.value) for part in ("one value", "fanout, num_neighbors", "give fanout only"))
    with pytest.raises(InputError, match="option relation of read_edges is given twice"):
        read_edges(1, edge_type=2, relation=2)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="b of it is given twice"):
        rename_keys("it", {"a": 1, "b": 2}, {"a": "b"})


def test_an_unknown_option_is_refused_as_before() -> None:
    with pytest.raises(TypeError, match="num_hops"):
        Options(num_hops=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="edge_kind"):
        read_edges(1, edge_kind=2)  # type: ignore[call-arg]
