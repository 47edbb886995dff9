"""Outgrow's typed models, as `og.train` runs them: `to_hetero(SAGE)`, HGT, and GATv2 with features of edges.

Forms: ``full``; ``offload:BYTES``, within so much memory of the process, the graph read from a store. ``store`` trains
nothing: it writes that store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rivals.common import Job, main
from rivals.ours import make_trainer, measure  # sets up the threads, so it comes before whatever loads torch
from rivals.typed_data import HEADS, Facts, TypedArrays, graph_folder, read_facts, read_typed, start_file

if TYPE_CHECKING:
    from torch import Tensor

    from outgrow.graph.graph import Graph
    from outgrow.nn.model import Model


STORE = "store"


def store_folder(job: Job) -> Path:
    """Where the store of the graph of a job is: with features of edges for the model that reads them."""
    return graph_folder(job) / ("store-with-edges" if job.model.endswith(":gatv2") else STORE)


def make_graph(facts: Facts, arrays: TypedArrays, *, edge_features: bool) -> Graph:
    """The arrays as a graph of the library."""
    import torch

    import outgrow as og
    from outgrow.graph.topology import Topology
    from outgrow.ops.sparse import SparseRows

    parts = [torch.from_numpy(each) for each in arrays]
    indptr, indices, relation, of_edges, labels, train, ends, columns, values = parts
    sparse = SparseRows(indptr=ends, indices=columns, values=values, num_columns=facts.columns[-1])
    widths = [0] * len(facts.names) if facts.shares_columns else np.diff(facts.columns).tolist()
    nodes = zip(facts.names, facts.borders, facts.borders[1:], widths, strict=False)
    none = torch.empty(0, dtype=torch.int64)
    return og.Graph(
        name="typed",
        topology=Topology(
            indptr=indptr,
            indices=indices,
            relation=relation,
            edge_features=of_edges if edge_features else None,
        ),
        features=sparse if len(ends) else values,
        labels=labels,
        split=og.Split(train=train, val=none, test=none),
        num_classes=facts.classes,
        relation_names=tuple("__".join(each) for each in facts.edge_types),
        node_types=tuple(
            og.NodeType(name=name, first=first, last=last, num_columns=width) for name, first, last, width in nodes
        ),
    )


def make_model(name: str, graph: Graph, facts: Facts) -> Model:
    """A model, with the parameters of its constructor."""
    import torch

    import outgrow as og

    sizes = graph.num_features, facts.hidden, facts.classes
    if name == "sage":
        return og.nn.to_hetero(og.nn.SAGE(*sizes, layers=2, dropout=0.0), graph)
    if name == "gatv2":
        then = og.nn.Epilogue(activation=torch.relu)
        options: dict[str, Any] = {"edge_dim": facts.edge_features, "self_loops": False}
        first = og.nn.GATv2Conv(sizes[0], sizes[1], heads=HEADS, **options)
        return og.nn.Model([og.nn.Layer(first, then), og.nn.Layer(og.nn.GATv2Conv(*sizes[1:], heads=1, **options))])
    return og.nn.HGT(*sizes, types=graph.types, heads=HEADS, layers=2, dropout=0.0, activation=None)


def named_parameters(name: str, model: Model, facts: Facts) -> dict[str, list[Tensor]]:
    """Views of the parameters by PyG's names, in the form that PyG has them; parts of one that is divided in order."""
    convs: list[Any] = [layer.conv for layer in model.layers_list()]
    found: dict[str, list[Tensor]] = {}
    for number, conv in enumerate(convs, 1):
        if name == "sage":
            for edge_type in facts.edge_types:
                each = conv.conv_of(tuple(edge_type))
                at = f"conv{number}.{'__'.join(edge_type)}"
                found[f"{at}.lin_l.weight"] = [each.neighbour.weight.T]
                found[f"{at}.lin_l.bias"] = [each.itself.bias]
                found[f"{at}.lin_r.weight"] = [each.itself.weight.T]
        elif name == "gatv2":
            found |= {f"conv{number}.att": [conv.aggregation.attention[None]], f"conv{number}.bias": [conv.bias]}
            found[f"conv{number}.lin_edge.weight"] = [conv.aggregation.edge_weight.T]
            for side, given in (("lin_l", conv.message), ("lin_r", conv.itself)):
                found |= {f"conv{number}.{side}.weight": [given.weight.T], f"conv{number}.{side}.bias": [given.bias]}
        else:
            found |= _named_hgt(f"convs.{number - 1}", conv, facts)
    if name == "hgt":
        readout = convs[-1].last
        found |= {"lin.weight": [readout.weight.T], "lin.bias": [readout.bias]}
        encoder: Any = model.encoder
        for kind in facts.names:
            found[f"lin_dict.{kind}.weight"] = [encoder.projections[f"type_{kind}"].weight.T]
            found[f"lin_dict.{kind}.bias"] = [encoder.biases[f"type_{kind}"]]
    return found


def _named_hgt(at: str, conv: Any, facts: Facts) -> dict[str, list[Tensor]]:
    from outgrow.nn.hetero_checks import type_module_name

    found: dict[str, list[Tensor]] = {}
    wide = facts.hidden
    for kind in facts.names:
        both, query, out = (each.projection_of(kind) for each in (conv.key_value, conv.query, conv.out))
        # PyG joins keys, queries and values.
        for part in ("weight", "bias"):
            key_value, asked = getattr(both, part), getattr(query, part)
            found[f"{at}.kqv_lin.lins.{kind}.{part}"] = [
                each.T if each.dim() > 1 else each for each in (key_value[..., :wide], asked, key_value[..., wide:])
            ]
        found |= {f"{at}.out_lin.lins.{kind}.weight": [out.weight.T], f"{at}.out_lin.lins.{kind}.bias": [out.bias]}
        found[f"{at}.skip.{kind}"] = [conv.skip[type_module_name(kind)]]
    order, attention = conv.aggregation.order, conv.aggregation
    for name, matrices in (("k_rel", attention.key_matrices), ("v_rel", attention.value_matrices)):
        # A matrix for each head and edge type, the heads outside.
        found[f"{at}.{name}.weight"] = [matrices[each][head] for head in range(HEADS) for each in order]
    for edge_type, each in zip(facts.edge_types, order, strict=True):
        found[f"{at}.p_rel.{'__'.join(edge_type)}"] = [attention.priors[each][None]]
    return found


def set_start(job: Job, named: dict[str, list[Tensor]]) -> None:
    """Copy the parameters that all rivals start from."""
    import torch

    with np.load(start_file(job)) as file, torch.no_grad():
        if set(file.files) != named.keys():
            raise ValueError(f"parameters differ: {sorted(set(file.files) ^ named.keys())}")
        for name, parts in named.items():
            given = torch.from_numpy(file[name])
            # Matrices of relations are stacked; what is joined of several projections is so along its first axis.
            pieces = given.unbind() if given.dim() > parts[0].dim() else given.split([len(part) for part in parts])
            for part, piece in zip(parts, pieces, strict=True):
                part.copy_(piece.view_as(part))


def work(job: Job) -> dict[str, Any]:
    """Train; see `rivals.common.main`."""
    import outgrow as og
    from outgrow.app.compatibility import validate_model_fits_graph
    from outgrow.strategies.offload.strategy import Offload

    facts = read_facts(graph_folder(job))
    name = job.model.partition(":")[2]
    limit = job.form.partition(":")[2]
    if limit:
        graph = og.load(store_folder(job))
    else:
        arrays = read_typed(graph_folder(job), edge_features=name == "gatv2")
        graph = make_graph(facts, arrays, edge_features=name == "gatv2")
        del arrays
    if job.form == STORE:
        og.save_graph(graph, store_folder(job))
        return {}
    model = make_model(name, graph, facts)
    validate_model_fits_graph(graph, model)
    set_start(job, named_parameters(name, model, facts))
    return measure(job, make_trainer(job, graph, model), Offload(memory=limit) if limit else None)


if __name__ == "__main__":
    main(work, ("outgrow", "numba", "scipy"))
