import hashlib
from dataclasses import replace

import numpy as np
import pytest

from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.partition.methods import MetisPartitioner
from outgrow.graph.partition.quality import measure_quality
from outgrow.graph.synthetic.block_model import BlockModel
from outgrow.graph.synthetic.presets import graph_presets

PUBLISHED = {
    "reddit": (232_965, 114.6e6, 602, 41, 0.66),
    "arxiv": (169_343, 1_166_243, 128, 40, 0.537),
    "products": (2_449_029, 61.9e6, 100, 47, 0.08),
    "papers100M": (111_059_956, 1.616e9, 128, 172, 0.011),
    "it-2004": (41.3e6, 1.15e9, 256, 64, 0.25),
    "friendster": (65.6e6, 2.5e9, 256, 64, 0.25),
}
FITTED = {
    "arxiv": (2.4, 13_161, 2_500, 0.55, 1.4),
    "it-2004": (2.5, 1_300_000, 400, 0.975, 0.0),
    "papers100M": (2.8, 250_000, 6_000, 0.1, 1.9),
    "friendster": (2.9, 5_200, 5_000, 0.5, 2.2),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_full_size_has_the_published_statistics(name):
    preset = graph_presets()[name]
    made = preset.at_scale(1.0)
    nodes, edges, features, classes, train = PUBLISHED[name]
    assert made.structure.nodes == pytest.approx(nodes, rel=0.001)
    assert made.structure.edges / preset.draws == pytest.approx(edges, rel=0.002)
    assert (made.node_spec.features, made.node_spec.classes) == (features, classes)
    assert made.node_spec.shares[0] == pytest.approx(train, rel=0.02)
    top = 2 * made.structure.edges * made.structure._top_rank_share(made.structure.offset)
    assert top == pytest.approx(preset.max_degree, rel=0.001)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_scale_keeps_average_degree_width_and_classes(name):
    preset = graph_presets()[name]
    full, small = preset.at_scale(1.0), preset.at_scale(max(preset.smallest_scale, 3000 / preset.nodes), seed=1)
    assert small.structure.average_degree == pytest.approx(full.structure.average_degree, rel=0.01)
    assert small.structure.locality == full.structure.locality == preset.locality
    src = np.concatenate([chunk.src for chunk in small.read_edges()])
    assert len(src) == small.structure.edges
    tables = small.read_tables()
    assert tables.features.shape == (small.structure.nodes, preset.features)
    assert len(tables.train) == round(preset.shares[0] * small.structure.nodes)
    assert tables.labels.max() < preset.classes


def test_every_class_has_nodes_and_is_told_by_communities():
    made = graph_presets()["products"].at_scale(0.005, locality=0.9)
    src, dst = (np.concatenate(ends) for ends in zip(*((c.src, c.dst) for c in made.read_edges()), strict=True))
    labels = made.read_tables().labels
    assert len(np.unique(labels)) == 47
    assert np.mean(labels[src] == labels[dst]) > 0.6


@pytest.mark.parametrize("scale", [0, -1.0, 1e-9, float("nan"), float("inf")])
def test_a_scale_too_small_is_refused_with_the_smallest_one(scale):
    preset = graph_presets()["reddit"]
    with pytest.raises(InputError, match="reddit cannot be generated") as error:
        preset.at_scale(scale)
    assert f"{preset.smallest_scale:.2g}" in error.value.needed
    assert preset.at_scale(float(f"{preset.smallest_scale:.2g}")).structure.nodes > 1000


@pytest.mark.parametrize("name", FITTED)
def test_fitted_parameters_stay_as_they_were_when_results_were_measured(name):
    found = graph_presets()[name]
    assert (found.exponent, found.max_degree, found.community_size, found.locality, found.decay) == FITTED[name]
    made = found.at_scale(1.0 if name == "arxiv" else 0.01).structure
    assert (made.exponent, made.locality, made.decay) == (found.exponent, found.locality, found.decay)
    assert made.communities == pytest.approx(made.nodes / found.community_size, rel=0.01)


@pytest.mark.parametrize(
    ("name", "scale", "digest"),
    [("products", 0.01, "03e8ad7f"), ("reddit", 0.02, "eb4624d1")],
)
def test_presets_that_were_not_fitted_have_the_edges_of_all_versions(name, scale, digest):
    hashed = hashlib.sha256()
    for chunk in graph_presets()[name].at_scale(scale).read_edges():
        hashed.update(chunk.src)
        hashed.update(chunk.dst)
    assert hashed.hexdigest()[:8] == digest


@pytest.mark.parametrize(
    ("name", "scale", "of_2", "of_32"),
    [
        ("it-2004", 0.0005, 1.23, 1.66),
        ("papers100M", 0.0005, 1.35, 4.2),
        ("friendster", 0.0005, 1.55, 6.6),
        ("arxiv", 0.3, 1.52, 4.8),
    ],
)
def test_replication_under_metis_stays_where_it_was(name, scale, of_2, of_32):
    """A quick look at a small scale; benchmarks/replication.py, and for arxiv migrate.py, measure at the fitted one."""
    preset = graph_presets()[name]
    made = preset.at_scale(scale)
    bare = BlockModel(structure=made.structure, node_spec=replace(made.node_spec, features=0))
    topology = assemble_graph(bare, undirected=preset.undirected).topology
    two, many = (
        measure_quality(topology, MetisPartitioner(balance="both").partition_nodes(topology, n)).replication_factor
        for n in (2, 32)
    )
    assert two - 1 == pytest.approx(of_2 - 1, rel=0.08)
    assert many - 1 == pytest.approx(of_32 - 1, rel=0.08)
