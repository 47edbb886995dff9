import hashlib

import numpy as np
import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.graph import datasets
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.synthetic.node_features import SyntheticNodes
from outgrow.graph.synthetic.typed_model import TypedBlockModel, TypedRelation
from outgrow.graph.synthetic.typed_presets import typed_presets

MAG = typed_presets()["ogbn-mag"]
COUNTS = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field_of_study": 59_965}
EDGES = {"cites": 5_416_271, "writes": 7_145_660, "affiliated_with": 1_043_998, "has_topic": 7_505_078}


@pytest.fixture(scope="module")
def graph():
    return datasets.load_graph("ogbn-mag@0.01")


def test_full_size_has_the_published_counts():
    made = MAG.at_scale(1.0)
    assert dict(made.counts) == COUNTS
    assert {each.name: each.edges for each in made.relations} == EDGES
    assert (made.node_spec.features, made.node_spec.classes) == (128, 349)
    sizes = [round(share * COUNTS["paper"]) for share in made.node_spec.shares]
    assert sizes == [629_571, 64_879, 41_939]


def test_a_scale_has_its_share_of_each_type_and_relation(graph):
    kinds = {kind.name: kind.last - kind.first for kind in graph.node_types}
    assert kinds == {name: round(count / 100) for name, count in COUNTS.items()}
    found = torch.bincount(graph.topology.relation.long()).tolist()
    assert found == 2 * [round(count / 100) for count in EDGES.values()]
    assert len(graph.split.train) == pytest.approx(6_296, abs=1)


def test_edges_go_between_the_types_of_their_relation_and_back(graph):
    types, relation, index = graph.types, graph.topology.relation, graph.edge_index
    for number, (source, _, target) in enumerate(types.edge_types):
        for ids, kind in zip(index[:, relation == number], (source, target), strict=True):
            first, last = types.type_nodes(kind)
            assert first <= int(ids.min())
            assert int(ids.max()) < last
    for number, (source, name, target) in enumerate(types.edge_types[:4]):
        assert types.edge_types[number + 4] == (target, f"rev_{name}", source)
        there, back = (
            torch.sort(src * graph.num_nodes + dst).values
            for src, dst in (index[:, relation == number], index[:, relation == number + 4].flip(0))
        )
        assert torch.equal(there, back)


def test_only_papers_have_features_and_classes(graph):
    first, last = graph.types.type_nodes("paper")
    assert graph.types.type_columns("paper") == (0, 128)
    assert graph.types.type_columns("author") == (128, 128)
    assert [tuple(block.shape) for block in graph.features.blocks] == [(last - first, 128)]
    assert graph.features.rows == (slice(first, last),)
    assert bool((graph.labels[first:last] >= 0).all())
    assert bool((graph.labels[last:] == -1).all())
    assert graph.num_classes == 349


def test_neighbours_of_other_types_tell_of_the_class(graph):
    """Papers that share an author or a topic have one class far more often than two papers do."""
    index, relation, labels = graph.edge_index, graph.topology.relation, graph.labels.long()
    for number, by in ((1, 0), (3, 1)):
        paper, other = index[1 - by, relation == number], index[by, relation == number]
        order = torch.argsort(other, stable=True)
        same = other[order][1:] == other[order][:-1]
        one, two = labels[paper[order][1:]][same], labels[paper[order][:-1]][same]
        assert float((one == two).double().mean()) > 0.05


def test_a_store_has_the_same_graph(graph, tmp_path):
    """In bounded memory: features are written as they are made, edges sorted in files."""
    stored = convert_to_store(MAG.at_scale(0.01), tmp_path / "mag.store")
    for name in ("indptr", "indices", "relation"):
        assert torch.equal(getattr(stored.topology, name), getattr(graph.topology, name))
    assert torch.equal(stored.features.blocks[0], graph.features.blocks[0])
    assert stored.features.rows == graph.features.rows
    # Of dense rows of papers alone no index is stored, and nothing of the other types.
    written = sum(each.stat().st_size for each in (tmp_path / "mag.store").glob("*feature*"))
    assert written <= 1.001 * 4 * graph.features.blocks[0].numel()
    assert torch.equal(stored.labels.long(), graph.labels.long())
    assert stored.types == graph.types


def test_edges_are_those_of_all_versions():
    hashed = hashlib.sha256()
    for chunk in MAG.at_scale(0.01).read_edges():
        hashed.update(chunk.src)
        hashed.update(chunk.dst)
    assert hashed.hexdigest()[:8] == "dae0de67"


@pytest.mark.parametrize("communities", [3, 40])
def test_edges_of_a_community_stay_in_it_where_types_have_other_numbers_of_them(communities):
    """Of 10 places, 20 people and 40 things; communities of a type are ranges of its nodes."""
    sides = {"thing": 40, "person": 20, "place": 10}
    ends = (("thing", "person"), ("person", "place"), ("place", "thing"))
    made = TypedBlockModel(
        counts=sides,
        relations=tuple(
            TypedRelation(source=one, name="of", target=two, edges=500, exponents=(3.0, 3.0), locality=1.0)
            for one, two in ends
        ),
        communities=communities,
        node_spec=SyntheticNodes(classes=2, features=4),
    )
    graph = assemble_graph(made, undirected=False)
    borders = graph.types.borders
    counts = [min(communities, count) for count in sides.values()]
    home = torch.cat(
        [
            torch.from_numpy(np.repeat(np.arange(many), [len(part) for part in np.array_split(np.arange(size), many)]))
            for size, many in zip(sides.values(), counts, strict=True)
        ]
    )
    kinds = graph.types.types_of(torch.arange(borders[-1]))
    src, dst = graph.edge_index
    common = torch.minimum(torch.tensor(counts)[kinds[src]], torch.tensor(counts)[kinds[dst]])
    assert torch.equal(home[src] % common, home[dst] % common)


@pytest.mark.parametrize("scale", [0, 1e-5, float("nan"), 1e6])
def test_a_scale_out_of_range_is_refused(scale):
    with pytest.raises(InputError, match="ogbn-mag cannot be generated") as error:
        MAG.at_scale(scale)
    assert f"{MAG.smallest_scale:.2g}" in error.value.needed
    assert min(MAG.at_scale(float(f"{MAG.smallest_scale:.2g}")).counts.values()) >= 10


def test_a_preset_without_a_scale_says_how_to_write_it():
    with pytest.raises(InputError, match="ogbn-mag is a preset"):
        datasets.load_graph("ogbn-mag")


def test_a_relation_between_unknown_types_is_refused():
    relation = TypedRelation(source="paper", name="of", target="venue", edges=1, exponents=(3.0, 3.0), locality=0.5)
    with pytest.raises(InputError, match="types that are not there"):
        TypedBlockModel(
            counts={"paper": 5}, relations=(relation,), communities=1, node_spec=SyntheticNodes(classes=2, features=1)
        )
