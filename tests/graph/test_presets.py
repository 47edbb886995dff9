import numpy as np
import pytest

from outgrow.core.errors import InputError
from outgrow.graph.synthetic.presets import presets

PUBLISHED = {
    "reddit": (232_965, 114.6e6, 602, 41, 0.66),
    "products": (2_449_029, 61.9e6, 100, 47, 0.08),
    "papers100M": (111_059_956, 1.616e9, 128, 172, 0.011),
    "it-2004": (41.3e6, 1.15e9, 256, 64, 0.25),
    "friendster": (65.6e6, 2.5e9, 256, 64, 0.25),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_full_size_has_the_published_statistics(name):
    preset = presets()[name]
    made = preset.at(1.0)
    nodes, edges, features, classes, train = PUBLISHED[name]
    assert made.structure.nodes == pytest.approx(nodes, rel=0.001)
    assert made.structure.edges / preset.draws == pytest.approx(edges, rel=0.002)
    assert (made.signal.features, made.signal.classes) == (features, classes)
    assert made.signal.shares[0] == pytest.approx(train, rel=0.02)
    top = 2 * made.structure.edges * made.structure._top(made.structure.offset)
    assert top == pytest.approx(preset.max_degree, rel=0.001)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_scale_keeps_average_degree_width_and_classes(name):
    preset = presets()[name]
    full, small = preset.at(1.0), preset.at(max(preset.smallest_scale, 3000 / preset.nodes), seed=1)
    assert small.structure.average_degree == pytest.approx(full.structure.average_degree, rel=0.01)
    assert small.structure.locality == full.structure.locality == preset.locality
    src = np.concatenate([chunk.src for chunk in small.edges()])
    assert len(src) == small.structure.edges
    tables = small.tables()
    assert tables.features.shape == (small.structure.nodes, preset.features)
    assert len(tables.train) == round(preset.shares[0] * small.structure.nodes)
    assert tables.labels.max() < preset.classes


def test_every_class_has_nodes_and_is_told_by_communities():
    made = presets()["products"].at(0.005, locality=0.9)
    src, dst = (np.concatenate(ends) for ends in zip(*((c.src, c.dst) for c in made.edges()), strict=True))
    labels = made.tables().labels
    assert len(np.unique(labels)) == 47
    assert np.mean(labels[src] == labels[dst]) > 0.6


@pytest.mark.parametrize("scale", [0, -1.0, 1e-9, float("nan"), float("inf")])
def test_a_scale_too_small_is_refused_with_the_smallest_one(scale):
    preset = presets()["reddit"]
    with pytest.raises(InputError, match="reddit cannot be generated") as error:
        preset.at(scale)
    assert f"{preset.smallest_scale:.2g}" in error.value.needed
    assert preset.at(float(f"{preset.smallest_scale:.2g}")).structure.nodes > 1000
