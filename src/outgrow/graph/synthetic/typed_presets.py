"""Presets of graphs with several types of nodes and edges.

``ogbn-mag``: numbers of nodes and edges by type, features, classes and the sizes of the split are those of the data set
(Open Graph Benchmark, Hu et al., 2020). Exponents of degrees, localities and the size of communities are free
parameters, estimates that give similar graphs. At scale 0.1 a thirtieth of the edges are duplicates, which are kept.
Each relation has its reverse, as PyG's ``ToUndirected`` adds it; that of ``cites`` is a relation of its own too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from outgrow.core.errors import InputError
from outgrow.graph.synthetic.node_features import SyntheticNodes
from outgrow.graph.synthetic.typed_model import TypedBlockModel, TypedRelation

_LARGEST_SCALE = 100
_FEWEST_NODES = 10


@dataclass(frozen=True, kw_only=True)
class TypedGraphPreset:
    """Statistics of a typed data set, from which graphs of any size are generated.

    Attributes:
        name: Name of the data set.
        counts: Number of nodes of each type; those of the first have features, classes and a split.
        relations: Its relations, without their reverses.
        features: ``D`` of the first type.
        classes: ``C``.
        split: Nodes in training, validation and test.
        community_size: Nodes of the first type per community; fewer if some class would have no community.
        undirected: Whether to read the generated graph as undirected; not where reverses are relations.
    """

    name: str
    counts: Mapping[str, int]
    relations: tuple[TypedRelation, ...]
    features: int
    classes: int
    split: tuple[int, int, int]
    community_size: int
    undirected: bool = False

    @property
    def nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(self.counts.values())

    @property
    def edges(self) -> int:
        """Number of edges of all relations, without those of the reverses."""
        return sum(each.edges for each in self.relations)

    @property
    def smallest_scale(self) -> float:
        """Scale below which a type or the space for a relation would be too small; rounded up to two digits."""
        # A quarter of all pairs may be edges; pairs fall with the square of the scale.
        filled = max(4 * each.edges / self.counts[each.source] / self.counts[each.target] for each in self.relations)
        least = max(filled, _FEWEST_NODES / min(self.counts.values()))
        unit = 10.0 ** (math.floor(math.log10(least)) - 1)
        # As it is shown, or the number in the message would be refused.
        return float(f"{math.ceil(least / unit) * unit:.2g}")

    def at_scale(self, scale: float, *, seed: int = 0, strength: float = 1.5) -> TypedBlockModel:
        """Return a generator with ``scale`` times the nodes and edges of each type; widths and classes stay the same.

        Args:
            scale: Factor on nodes and edges; may exceed 1.
            seed: Seed of the generator.
            strength: How clearly features show the class (see `SyntheticNodes`).

        Raises:
            InputError: The scale is below the smallest one, or above 100.
        """
        if not self.smallest_scale <= scale <= _LARGEST_SCALE:
            raise InputError(
                f"{self.name} cannot be generated at scale {scale:g}",
                needed=f"from {self.smallest_scale:.2g}, so that every type has nodes, to {_LARGEST_SCALE:g}",
                got=f"{scale:g}",
                repair=f"write {self.name}@{self.smallest_scale:.2g} or more",
            )
        counts = {kind: round(count * scale) for kind, count in self.counts.items()}
        first, labelled = next(iter(counts.values())), next(iter(self.counts.values()))
        train, val, test = (part / labelled for part in self.split)
        return TypedBlockModel(
            counts=counts,
            relations=tuple(replace(each, edges=round(each.edges * scale)) for each in self.relations),
            communities=max(self.classes, round(first / self.community_size)),
            node_spec=SyntheticNodes(
                classes=self.classes, features=self.features, strength=strength, shares=(train, val, test)
            ),
            seed=seed,
            name=f"{self.name}@{scale:g}",
        )


def typed_presets() -> Mapping[str, TypedGraphPreset]:
    """Return all typed presets by name."""
    return _PRESETS


_MAG = TypedGraphPreset(
    name="ogbn-mag",
    counts=MappingProxyType({"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field_of_study": 59_965}),
    relations=(
        TypedRelation(
            source="paper", name="cites", target="paper", edges=5_416_271, exponents=(4.0, 2.8), locality=0.6
        ),
        TypedRelation(
            source="author", name="writes", target="paper", edges=7_145_660, exponents=(3.5, 4.0), locality=0.6
        ),
        TypedRelation(
            source="author",
            name="affiliated_with",
            target="institution",
            edges=1_043_998,
            exponents=(6.0, 2.4),
            locality=0.1,
        ),
        TypedRelation(
            source="paper",
            name="has_topic",
            target="field_of_study",
            edges=7_505_078,
            exponents=(10.0, 2.6),
            locality=0.3,
        ),
    ),
    features=128,
    classes=349,
    split=(629_571, 64_879, 41_939),
    community_size=700,
)
_PRESETS: Mapping[str, TypedGraphPreset] = MappingProxyType({preset.name: preset for preset in (_MAG,)})
