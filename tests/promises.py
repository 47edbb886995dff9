"""What is promised to users besides exact numbers, broken on purpose: each must be found by the tests of its kind.

`pytest_configure` of ``conftest.py`` breaks what `VARIABLE` names, for a whole run of tests; `STARTUP`, in programs.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

VARIABLE = "TESTS_BROKEN_PROMISE"
STARTUP = "import promises\n\nbroken = promises.break_promise()\nif broken is not None:\n    broken.__enter__()\n"
"""What Python runs first, if it is called ``sitecustomize.py``."""


class BrokenPromise(NamedTuple):
    """A promise, broken.

    Attributes:
        breaks: What is wrong, in a sentence.
        test: Test that must find it, as pytest names it.
        apply: Breaks the code while its context is entered.
        in_programs: Whether to break it in the programs that the test starts, too.
    """

    breaks: str
    test: str
    apply: Callable[[], AbstractContextManager[object]]
    in_programs: bool = False


def _nothing(*given: object, **named: object) -> None:
    return None


def _one_class(labels: NDArray[Any] | None, num_nodes: int) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    known = np.ones(num_nodes, bool) if labels is None else labels.reshape(num_nodes, -1)[:, 0] >= 0
    return known, np.zeros(num_nodes, np.int64)


_TABLES = "outgrow.graph.readers.tables"
MUTANTS: dict[str, BrokenPromise] = {
    "matches_relations_by_number": BrokenPromise(
        "Relations of another graph are matched by number.",
        "tests/graph/test_alignment.py",
        lambda: patch("outgrow.graph.alignment._renumber", lambda topology, number: topology),
    ),
    "takes_any_data": BrokenPromise(
        "A run goes on whatever has become of its graph.",
        "tests/app/runs/test_changed_data.py",
        lambda: patch("outgrow.app.runs.data.changed_parts", lambda before, now: []),
    ),
    "trusts_every_module": BrokenPromise(
        "What looks across rows is not looked for.",
        "tests/app/test_model_probe.py",
        lambda: patch("outgrow.app.model_probe._difference", _nothing),
    ),
    "divides_by_any_sum": BrokenPromise(
        "Sums of weights are not checked.",
        "tests/nn/test_edge_weights.py",
        lambda: patch("outgrow.app.compatibility.require_divisible_weights", _nothing),
    ),
    "drops_without_a_word": BrokenPromise(
        "What a file holds and is not read is not named.",
        "tests/graph/readers/test_unread.py",
        lambda: patch("outgrow.graph.readers.source.GraphSource.warn_of_unread", _nothing),
    ),
    "rounds_labels": BrokenPromise(
        "Labels with fractions are cut.",
        "tests/graph/readers/test_conversions.py",
        lambda: patch("outgrow.graph.readers.conversions._whole_floats", lambda labels, where: labels.astype("i8")),
    ),
    "meets_under_one_name": BrokenPromise(
        "The workers of every round agree on the same name.",
        "tests/runtime/distributed/test_rendezvous.py",
        lambda: patch("outgrow.runtime.distributed.rendezvous.uuid.uuid4", lambda: uuid.UUID(int=0)),
    ),
    "goes_on_after_a_signal": BrokenPromise(
        "A loop over seeds goes on after a signal.",
        "tests/app/runs/test_signals.py::test_in_python_a_loop_ends",
        lambda: patch("outgrow.app.api.raise_as_signal", _nothing),
    ),
    "leaves_generated_code_behind": BrokenPromise(
        "A layer that PyG has generated from a script is not sent with the task.",
        "tests/app/test_workers.py::test_a_layer_of_pyg_that_a_script_defines",
        lambda: patch.multiple("cloudpickle", register_pickle_by_value=_nothing, unregister_pickle_by_value=_nothing),
        in_programs=True,
    ),
    "waits_for_threads_of_its_parent": BrokenPromise(
        "A forked child runs the loops of its parent, on threads that it does not have.",
        "tests/ops/test_fork.py",
        lambda: patch("outgrow.ops.backend.LoopKernel.__call__", lambda kernel, *args: kernel.in_parallel(*args)),
        in_programs=True,
    ),
    "keeps_an_old_environment": BrokenPromise(
        "The server that forks workers is used again after the environment has changed.",
        "tests/runtime/distributed/test_fork_server.py",
        lambda: patch("outgrow.runtime.distributed.fork_server._launcher_state", lambda environment: (os.getpid(),)),
    ),
    "takes_any_argument": BrokenPromise(
        "Arguments are not checked against annotations.",
        "tests/fuzz/test_public_calls.py",
        lambda: patch("outgrow.core.arguments.validate_types", _nothing),
    ),
    "tells_no_mistake": BrokenPromise(
        "Errors of the command line are not printed.",
        "tests/fuzz/test_command_lines.py",
        lambda: patch("outgrow.app.cli.main.print_error", _nothing),
    ),
    "keeps_the_order_of_layers": BrokenPromise(
        "Sparse features are given to layers that aggregate first.",
        "tests/nn/test_sparse_input.py",
        lambda: patch("outgrow.nn.convolution.GCNConv.with_projection_first", lambda self: self),
    ),
    "reads_two_bytes": BrokenPromise(
        "A small number without a unit is a size.",
        "tests/core/test_sizes.py",
        lambda: patch("outgrow.core.memory_limits._MIN_BYTES_WITHOUT_UNIT", 0),
    ),
    "draws_by_row": BrokenPromise(
        "A split of a node table is drawn by the numbers of rows, not by ids.",
        "tests/graph/readers/test_node_table.py",
        lambda: patch(f"{_TABLES}.node_table.node_keys", lambda encoder, num_nodes: np.arange(num_nodes)),
    ),
    "draws_all_classes_as_one": BrokenPromise(
        "A split is not stratified.",
        "tests/graph/readers/test_splits.py",
        lambda: patch("outgrow.graph.readers.splits._known_classes", _one_class),
    ),
    "takes_an_id_twice": BrokenPromise(
        "Two rows of a node table may have one id.",
        "tests/graph/readers/test_forms_nodes.py",
        lambda: patch(
            f"{_TABLES}.node_table._FirstPass._encode", lambda self, ids, *_: _nothing(self.encoder.encode(ids))
        ),
    ),
    "orders_columns_by_letters": BrokenPromise(
        "Feature columns whose names are numbered are in the order of letters.",
        "tests/graph/readers/test_forms_nodes.py",
        lambda: patch(f"{_TABLES}.node_roles._order_numbered", sorted),
    ),
    "trains_one_split": BrokenPromise(
        "Runs of several splits train on the split that the graph comes with.",
        "tests/app/test_train_splits.py",
        lambda: patch("outgrow.graph.graph.Graph.select_split", lambda self, index: self),
    ),
}
"""By name."""


def break_promise() -> AbstractContextManager[object] | None:
    """Return the context of the broken promise that the environment names; None if it names none."""
    name = os.environ.get(VARIABLE)
    return MUTANTS[name].apply() if name else None
