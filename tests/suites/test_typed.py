"""Every strategy gives the gradient of the reference for models with modules per type, in float64 to 1e-10.

What `make test` runs has threads for workers and a few ways; each way and model on 1 to 4 workers runs nightly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from outgrow.core.ledger import Kind
from outgrow.engine.full_graph import gather_sources
from outgrow.engine.shard import PartitionShard
from outgrow.nn.layer import Layer
from outgrow.runtime.distributed.worker import WorkerContext
from suites.cases import DEALS
from suites.exactness import WAYS
from suites.typed import CONVS, GRAPHS, NAMES, TYPES, Found, Key, TypedCase, gradients, model_of, references
from suites.typed_mutants import MUTANTS
from support import normal
from thread_group import run_in_threads

pytestmark = pytest.mark.timeout(900)
VISIBLE = 1e-6
OF_MINI_BATCHES = ("sampled", "split", "split-sources", "migrate-travel", "migrate-merged", "orchestrate-cold")
CHUNKED = tuple(f"offload-{chunks}" for chunks in range(1, 8) if f"offload-{chunks}" in WAYS)
WHOLE = ("full", "full-without-overlap", "sampled-everything", "split-everything", "offload-7-without-techniques")
QUICK: list[Key] = [
    ("full", TypedCase("sage", "weighted")),
    ("full", TypedCase("mixed", "few")),
    ("full", TypedCase("gat", deal="one-node-part")),
    ("split", TypedCase("mixed", deal="one-node-part")),
    ("split-everything", TypedCase("gat-and-sage")),
    ("sampled", TypedCase("sage-mean")),
    ("offload-3", TypedCase("gat-and-sage", "weighted")),
    ("offload-3", TypedCase("sage-project-first")),
    ("migrate-travel", TypedCase("foreign-and-ours")),
    ("full", TypedCase("hgt", "weighted", "one-node-part")),
    ("offload-3", TypedCase("hgt")),
    ("split", TypedCase("rgcn", "weighted")),
    ("tensor", TypedCase("rgcn")),
    ("tensor", TypedCase("sage-mean")),
    ("orchestrate-aggregate", TypedCase("sage-mean")),
    ("full", TypedCase("many-read-edges", "weighted")),
    ("split", TypedCase("many-read-edges", "few")),
    ("sampled", TypedCase("sums-read-edges", "weighted")),
    ("sampled-everything", TypedCase("many-read-edges", "few")),  # no batch has edges of some relations
    ("migrate-merged", TypedCase("gat-one-reads-edges")),
    ("offload-3", TypedCase("many-read-edges", "weighted", "one-node-part")),
    ("tensor", TypedCase("gat-one-reads-edges", "weighted", "one-node-part")),
    ("tensor", TypedCase("sums-read-edges")),
    ("tensor", TypedCase("sage-project-first", "few", "one-node-part")),  # rows of few types use all their channels
    ("offload-7-without-techniques", TypedCase("mixed", "few")),  # rows in files are as wide as those of the widest
]


def layers_of(conv: str) -> list[Layer]:
    return model_of(TypedCase(conv)).layers_list()


def every_key() -> list[Key]:
    """Each way with each model that it may train; graphs, partitions and dropout change from one to the next."""
    found = list[Key]()
    for shift, way in enumerate((*WHOLE, *OF_MINI_BATCHES, *CHUNKED, "tensor")):
        for number, name in enumerate(CONVS):
            if way == "tensor" and not all(layer.conv.with_sliceable_columns() for layer in layers_of(name)):
                continue
            graph = list(GRAPHS)[(shift + number) % len(GRAPHS)]
            deal = list(DEALS)[(shift + 2 * number) % len(DEALS)]
            found.append((way, TypedCase(name, graph, deal, 0.2 * ((shift + number) % 2))))
    return found


def compute(keys: Sequence[Key], workers: int) -> list[Found]:
    return run_in_threads(partial(gradients, keys=keys), workers, hosts=min(2, workers))


def require_equal(found: Found, expected: Found) -> None:
    differences = {key: gradient.difference(expected[key]) for key, gradient in found.items()}
    assert found.keys() == expected.keys()
    assert not {key: value for key, value in differences.items() if not value <= key[1].tolerance}


def test_strategies_train_models_with_modules_per_type() -> None:
    expected = references(QUICK)
    for found in compute(QUICK, 4):
        require_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_strategy_and_every_model(workers: int) -> None:
    keys = every_key()
    expected = references(keys)
    first, *others = compute(keys, workers)
    require_equal(first, expected)
    for other in others:
        assert [key for key in first if not first[key].same_bits(other[key])] == []


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    broken, ways, model = MUTANTS[name]
    keys: list[Key] = [(way, TypedCase(model)) for way in ways]
    expected = references(keys)
    with broken() as hits:
        found = compute(keys, 3)[0]
    assert hits.count
    for key, gradient in found.items():
        assert not gradient.difference(expected[key]) <= VISIBLE, key


def activation_bytes(place: WorkerContext) -> int:
    return sum(count for (_, kind), count in place.comm.ledger.bytes_by_link.items() if kind == Kind.ACTIVATIONS)


@pytest.mark.parametrize("conv", ["mixed", "gat-and-sage", "sage"])
def test_only_what_a_type_uses_crosses(conv: str) -> None:
    """The bytes of a halo are the sum over types of its rows times the numbers that the type's out-relations need."""
    case = TypedCase(conv)
    topology = GRAPHS[case.graph]

    def work(place: WorkerContext) -> tuple[int, int]:
        share = PartitionShard(topology, DEALS[case.deal](topology.num_nodes, place.comm.size), place.comm)
        layer = model_of(case).layers_list()[0]
        x = normal(topology.num_nodes, 6)[share.owned_nodes]
        source = layer.source(x, share.owned_nodes)
        gather_sources(layer, share, source)  # the first time ids travel, too
        before = activation_bytes(place)
        received = gather_sources(layer, share, source)
        sent = activation_bytes(place) - before
        whole = layer.source(normal(topology.num_nodes, 6), topology.nodes)
        nodes = share.layer_view(layer).block.src_nodes
        for mine, theirs in zip(received, whole, strict=True):
            assert (mine is None) == (theirs is None)
            assert mine is None or theirs is None or (mine - theirs[nodes]).abs().max() < 1e-12
        halo = nodes[len(share.owned_nodes) :]
        kinds = TYPES.types_of(halo)
        spec = layer.spec
        whole_row = spec.source[0] * spec.source[1]
        used = [
            (spec.source_widths[kind] if spec.source_widths else whole_row)
            + (spec.score_widths[kind] if spec.score_widths else spec.score)
            for kind in range(len(NAMES))
        ]
        return sent, sum(int((kinds == kind).sum()) * 8 * used[kind] for kind in range(len(NAMES)))

    measured = run_in_threads(work, 3)
    assert sum(sent for sent, _ in measured) == sum(wanted for _, wanted in measured) > 0
