"""Every mutant of the project, from the tables of all suites that have some.

A mutant is code that is broken on purpose, and that a test must find: else the test would not find a mistake of that
kind either. Tests that run mutants are marked ``mutant``, and have a mutant's name among their parameters.
``make mutants`` runs them all, and ``python tests/mutants.py`` prints the list.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
Table = Mapping[str, tuple[str | None, Callable[[], object]]]
"""By name, what is wrong with a mutant, and what makes it: a context, or a broken thing."""


class Mutant(NamedTuple):
    """A mutant as its suite has it.

    Attributes:
        name: A name that no other mutant has.
        test: The test that must find it, as pytest names it without parameters.
        breaks: What is wrong, in a line.
        apply: Breaks the code while its context is entered. An error if what it changes is no longer there.
    """

    name: str
    test: str
    breaks: str
    apply: Callable[[], AbstractContextManager[object]]


def list_mutants() -> list[Mutant]:
    """All mutants, suite by suite."""
    from layer_mutants import MUTANTS as LAYERS
    from tests.app.runs.test_trials import MUTANTS as TRIALS
    from tests.app.test_append import MUTANTS as APPENDED
    from tests.app.test_predict_workers import MUTANTS as PREDICTIONS
    from tests.core.test_files import MUTANTS as WRITES
    from tests.engine.features.test_block_rows import MUTANTS as BLOCKS
    from tests.engine.test_constant import MUTANTS as CONSTANTS
    from tests.fuzz.broken_readers import MUTANTS as READERS
    from tests.graph.builders.test_edge_features import MUTANTS as EDGE_FEATURES
    from tests.graph.readers.table_mutants import MUTANTS as TABLES
    from tests.graph.readers.test_id_encoder import MUTANTS as ID_TABLES
    from tests.graph.readers.test_typed_mutants import MUTANTS as TYPED
    from tests.graph.sampling.test_self_loops import MUTANTS as SELF_LOOPS
    from tests.graph.sampling.test_temporal import MUTANTS as TEMPORAL
    from tests.graph.statistics.test_statistics import MUTANTS as STATISTICS
    from tests.graph.test_node_ids import BROKEN_BY as BROKEN_ORDERS
    from tests.graph.test_node_ids import MUTANTS as ID_ORDERS
    from tests.inference.ranking_mutants import MUTANTS as RANKINGS
    from tests.nn.test_edge_layers import MUTANTS as EDGE_LAYERS
    from tests.nn.test_hetero_gradients import MUTANTS as HETERO_LAYERS
    from tests.nn.test_typed_layers import MUTANTS as TYPED_LAYERS
    from tests.planning.hardware.test_corrections import MUTANTS as CORRECTIONS
    from tests.planning.test_link_traffic import MUTANTS as PLANNED_LINKS
    from tests.planning.test_typed_traffic import MUTANTS as PLANNED_TRAFFIC
    from tests.strategies.offload.test_storage_precision import MUTANTS as ROW_ENCODINGS
    from tests.strategies.split.test_threads import MUTANTS as THREADS

    from promises import MUTANTS as PROMISES
    from suites.broken_link_steps import MUTANTS as LINK_STEPS
    from suites.disagreements import MUTANTS as DISAGREEMENTS
    from suites.edge_targets import MUTANTS as EDGE_TARGETS
    from suites.embedding_mutants import MUTANTS as EMBEDDINGS
    from suites.evaluation import MUTANTS as EVALUATIONS
    from suites.held_out import MUTANTS as HELD_OUT
    from suites.links import MUTANTS as LINKS
    from suites.loop_ways import MUTANTS as LOOPS
    from suites.metrics import MUTANTS as METRICS
    from suites.mutants import MUTANTS as GRADIENTS
    from suites.objectives import MUTANTS as OBJECTIVES
    from suites.orchestrate_mutants import MUTANTS as WARM_EPOCHS
    from suites.samplers import MUTANTS as SAMPLERS
    from suites.test_edge_features import MUTANTS as EDGE_RUNS
    from suites.test_leaks import MUTANTS as LEAKS
    from suites.test_parts import MUTANTS as PARTS
    from suites.test_typed_traffic import MUTANTS as TYPED_TRAFFIC
    from suites.typed_mutants import MUTANTS as TYPED_MODELS

    tables: dict[str, Table] = {
        "suites/test_exactness.py::test_a_mutant_is_found": {
            name: (mutant.broken.__doc__, mutant.broken) for name, mutant in GRADIENTS.items()
        },
        "suites/test_objectives.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in OBJECTIVES.items()
        },
        "suites/test_link_steps.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in LINK_STEPS.items()
        },
        "suites/test_edge_targets.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in EDGE_TARGETS.items()
        },
        "suites/test_links.py::test_a_mutant_is_found": {name: (each.__doc__, each) for name, each in LINKS.items()},
        "suites/test_held_out.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in HELD_OUT.items()
        },
        "suites/test_loop.py::test_a_mutant_is_found": {name: (each.__doc__, each) for name, each in LOOPS.items()},
        "suites/test_evaluation.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in EVALUATIONS.items()
        },
        "suites/test_metrics.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in METRICS.items()
        },
        "graph/builders/test_edge_features.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in EDGE_FEATURES.items()
        },
        "engine/test_constant.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in CONSTANTS.items()
        },
        "strategies/offload/test_storage_precision.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in ROW_ENCODINGS.items()
        },
        "inference/test_link_ranking.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in RANKINGS.items()
        },
        "app/runs/test_trials.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in TRIALS.items()
        },
        "planning/hardware/test_corrections.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in CORRECTIONS.items()
        },
        "app/test_append.py::test_a_mutant_is_found": APPENDED,
        "app/test_predict_workers.py::test_a_mutant_is_found": PREDICTIONS,
        "graph/statistics/test_statistics.py::test_a_mutant_is_found": STATISTICS,
        "graph/readers/test_id_encoder.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in ID_TABLES.items()
        },
        "graph/test_node_ids.py::test_a_mutant_is_found": {
            name: (BROKEN_ORDERS[name].__doc__, each) for name, each in ID_ORDERS.items()
        },
        "graph/readers/test_forms_tables.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in TABLES.items()
        },
        "graph/sampling/test_self_loops.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in SELF_LOOPS.items()
        },
        "graph/sampling/test_temporal.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in TEMPORAL.items()
        },
        "graph/readers/test_typed_mutants.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in TYPED.items()
        },
        "suites/test_typed.py::test_a_mutant_is_found": {
            name: (broken.__doc__, broken) for name, (broken, *_) in TYPED_MODELS.items()
        },
        "suites/test_node_embeddings.py::test_a_mutant_is_found": {
            name: (broken.__doc__, broken) for name, broken in EMBEDDINGS.items()
        },
        "suites/test_edge_features.py::test_a_mutant_is_found": {
            name: (broken.__doc__, broken) for name, (broken, _) in EDGE_RUNS.items()
        },
        "suites/test_typed_traffic.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in TYPED_TRAFFIC.items()
        },
        "suites/test_leaks.py::test_a_leak_is_noticed": {name: (each.__doc__, each) for name, each in LEAKS.items()},
        "suites/test_disagreements.py::test_a_mutant_is_found": {
            name: (breaks, make) for name, (breaks, _, make) in DISAGREEMENTS.items()
        },
        "suites/test_samplers.py::test_a_mutant_is_found": {
            name: (make.__doc__, make) for name, (*_, make) in SAMPLERS.items()
        },
        "test_promises.py::test_a_mutant_is_found": {
            name: (promise.breaks, promise.apply) for name, promise in PROMISES.items()
        },
        "nn/test_conformance.py::test_a_mutant_is_found": {
            name: (mutant.breaks, mutant.make) for name, mutant in LAYERS.items()
        },
        "nn/test_edge_layers.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in EDGE_LAYERS.items()
        },
        "nn/test_hetero_gradients.py::test_a_mutant_is_found": {
            name: (make.__doc__, make) for name, (make, _) in HETERO_LAYERS.items()
        },
        "nn/test_typed_layers.py::test_a_mutant_is_found": {
            name: (breaks, make) for name, (breaks, make, _) in TYPED_LAYERS.items()
        },
        "engine/features/test_block_rows.py::test_a_mutant_is_found": {
            name: (broken.__doc__, broken) for name, (broken, _) in BLOCKS.items()
        },
        "planning/test_link_traffic.py::test_a_mutant_is_found": {
            name: (broken.__doc__, broken) for name, (broken, _) in PLANNED_LINKS.items()
        },
        "planning/test_typed_traffic.py::test_a_mutant_is_found": {
            name: (broken.__doc__, broken) for name, (broken, *_) in PLANNED_TRAFFIC.items()
        },
        "strategies/split/test_threads.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in THREADS.items()
        },
        "strategies/orchestrate/test_warm_epochs.py::test_a_mutant_is_found": {
            name: (each.__doc__, each) for name, each in WARM_EPOCHS.items()
        },
        "suites/test_parts.py::test_rows_that_are_not_there_are_never_read": {
            name: (each.__doc__, each) for name, each in PARTS.items()
        },
        "core/test_files.py::test_the_checks_find_mutants": {
            name: (mutant.breaks, mutant.make_write) for name, mutant in WRITES.items()
        },
        "fuzz/test_readers.py::test_a_broken_reader_is_noticed": {
            name: (mutant.read.__doc__, lambda: None) for name, mutant in READERS.items()
        },
    }
    return [
        Mutant(name, f"tests/{test}", breaks or "", _as_context(make))
        for test, table in tables.items()
        for name, (breaks, make) in table.items()
    ]


def _as_context(make: Callable[[], object]) -> Callable[[], AbstractContextManager[object]]:
    """What breaks the code in a context as it is; what makes a broken thing, in one that changes nothing else."""

    def apply() -> AbstractContextManager[object]:
        made = make()
        return made if isinstance(made, AbstractContextManager) else nullcontext(made)

    return apply


def main() -> None:
    """Print the list."""
    paths = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]["pythonpath"]
    sys.path += [str(ROOT / path) for path in paths]
    mutants, lines = list_mutants(), list[str]()
    for test in dict.fromkeys(mutant.test for mutant in mutants):
        mine = [f"  {mutant.name:<42}{mutant.breaks}" for mutant in mutants if mutant.test == test]
        lines += [f"{test}: {len(mine)}", *mine]
    sys.stdout.write("\n".join([*lines, f"{len(mutants)} mutants"]) + "\n")


if __name__ == "__main__":
    main()
