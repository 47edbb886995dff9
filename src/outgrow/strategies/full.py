"""`full`: every node, every neighbour, every epoch. The reference of all full-graph strategies.

With several workers, each owns the nodes of one part of a partition and sends, layer by layer, the rows that
others need.

Dense features whose sum over edges commutes with the first projection are summed once, before it, where memory has
room for the sums: they are as wide as the features, but the same in all steps.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass

from outgrow.core.arguments import check_arguments
from outgrow.core.validation import validate_choice
from outgrow.engine.constant_sums import find_summed_first_layer, first_layer_in_form
from outgrow.engine.nodewise import predicts_links_by_node
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model
from outgrow.ops.owned_rows import held_rows
from outgrow.runtime.system.device import free_device_bytes
from outgrow.strategies.base import Execution, FullGraphExecution, Problem, Strategy

AUTO, ONCE, EACH_STEP = "auto", "once", "each-step"
FIRST_AGGREGATES = (AUTO, ONCE, EACH_STEP)
MEMORY_SHARE = 0.25
"""Share of the free memory that the sums of features may take."""


@check_arguments()
@dataclass(frozen=True, kw_only=True)
class Full(Strategy):
    """Full-graph training. One step per epoch. Several workers exchange the rows of their halos.

    Attributes:
        partition: How nodes are assigned to workers: see ``outgrow partition``.
        overlap: Whether to aggregate a worker's own rows while those of others are received.
        first_aggregate: When dense features are summed over edges if the first layer may sum before or after it
            projects: ``once``, before; ``each-step``, on the narrower side; ``auto``, once where memory has room.
    """

    name = "full"
    exact = True
    reads_own_features = True

    partition: str = "metis"
    overlap: bool = True
    first_aggregate: str = AUTO

    def __post_init__(self) -> None:
        validate_choice("partition", self.partition, WITHOUT_CHUNKS)
        validate_choice("first_aggregate", self.first_aggregate, dict.fromkeys(FIRST_AGGREGATES))

    def options(self) -> dict[str, object]:
        """Return the options by name."""
        return asdict(self)

    def computes_read_rows(self, problem: Problem) -> bool:
        """See `Strategy.computes_read_rows`: where nothing of a node depends on others."""
        return predicts_links_by_node(problem)

    def find_first_layer(self, model: Model, features: Features, *, hides_edges: bool) -> Layer | None:
        """Return the form of the first layer that sums features once, if it has one and the option allows it.

        Args:
            model: The model.
            features: ``[V, D]`` or those of own nodes, as the graph stores them.
            hides_edges: Whether steps hide edges, so that no sum is the same in all steps.
        """
        if self.first_aggregate == EACH_STEP or hides_edges:
            return None
        return find_summed_first_layer(model, features)

    def prepare(self, problem: Problem) -> Execution:
        """Return the execution that trains the problem."""
        with ExitStack() as forms:
            # Before features are fetched: where they are sources, those of the halo are needed too.
            forms.enter_context(first_layer_in_form(problem.model, self._choose_first_layer(problem)))
            execution = FullGraphExecution(problem, overlap=self.overlap)
            execution.on_close.push(forms.pop_all())
        return execution

    def _choose_first_layer(self, problem: Problem) -> Layer | None:
        """Return the form of the first layer for this run; None for its own. All workers together."""
        form = self.find_first_layer(problem.model, held_rows(problem.features), hides_edges=problem.hides_edges)
        if form is None:
            return None
        chosen = self.first_aggregate
        if chosen == AUTO:
            # A run that is resumed goes on as it began, to the last bit.
            known = problem.resume_hints.get(self.name)
            fits = known == ONCE if known in (ONCE, EACH_STEP) else _sums_fit(problem, form)
            chosen = ONCE if fits else EACH_STEP
        problem.resume_hints[self.name] = problem.run_facts["first_aggregate"] = chosen
        return form if chosen == ONCE else None


def _sums_fit(problem: Problem, form: Layer) -> bool:
    """Whether all workers have room for the sums of own nodes, and for features of the halo."""
    comm = problem.shard.comm
    rows = problem.shard.layer_view(form).block.edges.num_src
    needed = rows * form.spec.in_features * problem.number_bytes
    room = MEMORY_SHARE * free_device_bytes(comm.device) / (comm.local_world_size if comm.device.type == "cpu" else 1)
    return all(comm.all_gather_object(needed <= room))
