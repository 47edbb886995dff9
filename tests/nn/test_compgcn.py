"""CompGCN by its formula, and the decoder that shares its vectors of relations."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.nn import CompGCN, CompGCNConv, ComposedDistMult, Model
from outgrow.nn.layer import Layer
from support import destinations_of, normal, random_topology, whole_blocks, with_relations

NODES, RELATIONS, IN, HIDDEN, OUT = 20, 4, 5, 6, 3
TOPOLOGY = with_relations(random_topology(NODES, 90), RELATIONS)
WAYS = [(composition, inverses) for composition in ("mult", "sub", "corr") for inverses in (False, True)]


def model_of(composition: str, inverses: bool) -> Model:
    torch.manual_seed(0)
    options = {"composition": composition, "inverses": inverses, "dropout": 0.0, "activation": torch.tanh}
    model = CompGCN(IN, HIDDEN, OUT, num_relations=RELATIONS, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def compose(composition: str, x: Tensor, z: Tensor) -> Tensor:
    if composition == "corr":
        return torch.stack([(x * z.roll(-k)).sum() for k in range(len(x))])
    return x * z if composition == "mult" else x - z


def by_loops(model: Model, composition: str, inverses: bool, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the vectors after the last layer, edge by edge."""
    assert TOPOLOGY.relation is not None
    edges = list(zip(TOPOLOGY.indices.tolist(), TOPOLOGY.relation.tolist(), strict=True))
    targets, z = destinations_of(TOPOLOGY.block.edges).tolist(), None
    layers = model.layers_list()
    for number, layer in enumerate(layers):
        conv = layer.conv
        assert isinstance(conv, CompGCNConv)
        z = conv.relations.vectors if z is None else z @ conv.relations.map.weight
        rows = []
        for node in range(NODES):
            row = compose(composition, x[node], conv.own_vector) @ conv.itself.weight + conv.itself.bias
            entering = [edge for edge, target in zip(edges, targets, strict=True) if target == node]
            width = x.shape[1]
            for source, relation in entering:
                first = width if inverses and relation >= RELATIONS // 2 else 0
                weight = conv.neighbour.weight[first : first + width]
                row = row + compose(composition, x[source], z[relation]) @ weight / len(entering)
            rows.append(row)
        x = torch.stack(rows)
        if number < len(layers) - 1:
            x = torch.tanh(x)
    return x, z


@pytest.mark.parametrize(("composition", "inverses"), WAYS)
def test_rows_and_gradients_are_those_of_loops(composition: str, inverses: bool) -> None:
    model, x = model_of(composition, inverses), normal(NODES, IN).requires_grad_()
    probe, wanted = normal(NODES, OUT, seed=1), [x, *model.parameters()]
    ours, (theirs, _) = model(whole_blocks(model, TOPOLOGY), x), by_loops(model, composition, inverses, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    found, expected = (torch.autograd.grad((out * probe).sum(), wanted) for out in (ours, theirs))
    for mine, other in zip(found, expected, strict=True):
        assert other.abs().max() > 1e-6
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)


def test_vectors_are_one_parameter_for_all_layers() -> None:
    model = model_of("mult", True)
    shared = [name for name, _ in model.named_parameters() if "vectors" in name]
    assert shared == ["layers.0.conv.relations.vectors"]
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.layers_list()[0].conv.relations.vectors.zero_()
    x = normal(NODES, IN)
    changed, before = (each(whole_blocks(each, TOPOLOGY), x) for each in (other, model))
    assert not torch.allclose(changed, before)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(whole_blocks(other, TOPOLOGY), x), before)


def test_a_decoder_shares_the_vectors() -> None:
    model = model_of("mult", True)
    model = model.with_decoder(ComposedDistMult(model).double())
    decoder = model.decoder
    assert isinstance(decoder, ComposedDistMult)
    names = [name for name, _ in model.named_parameters() if name.startswith("decoder")]
    assert names == ["decoder.relations.map.weight"]
    x = normal(NODES, IN)
    rows, z = by_loops(model, "mult", True, x)
    z = z @ decoder.relations.map.weight
    relation = torch.arange(NODES) % RELATIONS
    expected = (rows * z[relation] * rows.flip(0)).sum(1) / OUT**0.5
    torch.testing.assert_close(decoder.score(rows, relation, rows.flip(0)), expected)
    assert decoder.accepts_width(OUT)
    assert not decoder.accepts_width(OUT + 1)
    with pytest.raises(InputError, match="another encoder"):
        ComposedDistMult(og.nn.SAGE(IN, HIDDEN, OUT))


@pytest.mark.parametrize("composition", ["sub", "corr"])
def test_it_trains_under_every_strategy_for_whole_graphs(composition: str) -> None:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(60, (2, 400), generator=generator)
    graph = og.from_arrays(
        edge_index, relation=torch.randint(RELATIONS, (400,), generator=generator), features=normal(60, IN).float()
    )
    losses = []
    for strategy in ("full", "offload", "tensor"):
        torch.manual_seed(0)
        model = CompGCN(IN, 8, 8, num_relations=RELATIONS, composition=composition, inverses=True, dropout=0.2)
        model = model.double()
        model = model.with_decoder(ComposedDistMult(model).double())
        run = og.train(graph, model, epochs=3, strategy=strategy, lr=0.05, eval_every=3, progress=False)
        losses.append(run.summary["loss"])
        assert run.summary["exact"]
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
    assert losses[2] == pytest.approx(losses[0], rel=1e-9)


def test_layers_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="even number"):
        CompGCNConv(4, 4, 3, inverses=True)
    with pytest.raises(InputError, match="composition"):
        CompGCNConv(4, 4, 4, composition="add")
    with pytest.raises(InputError, match="the layer before"):
        CompGCNConv(4, 4, 4, before=CompGCNConv(4, 5, 4))
    assert Layer(CompGCNConv(4, 4, 4, before=CompGCNConv(4, 4, 4))) is not None
