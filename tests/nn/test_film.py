"""FiLM with a modulation per relation, against its formula with a row per edge."""

from __future__ import annotations

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.nn import FiLMConv, Layer
from outgrow.nn.zoo import FiLM
from support import destinations_of, normal, random_topology, with_relations

IN, OUT, RELATIONS = 5, 4, 3


def test_every_relation_has_weights_of_its_own() -> None:
    conv = FiLMConv(IN, OUT, num_relations=RELATIONS).double()
    topology, x = with_relations(random_topology(30, 200), RELATIONS), normal(30, IN)
    message, scale, shift = (
        projection(x).view(30, RELATIONS, OUT) for projection in (conv.message, conv.scale, conv.shift)
    )
    src, dst = topology.indices.long(), destinations_of(topology.block.edges)
    assert topology.relation is not None
    relation = topology.relation.long()
    heard = torch.relu(scale[dst, relation] * message[src, relation] + shift[dst, relation])
    mean = torch.zeros(30, OUT).double().index_add(0, dst, heard) / topology.degree.clamp(min=1)[:, None]
    own = torch.relu(conv.own_scale(x) * conv.itself(x) + conv.own_shift(x))
    torch.testing.assert_close(Layer(conv)(topology.block, x, x), own + mean, rtol=1e-12, atol=1e-12)


def test_initial_weights_are_as_large_as_without_relations() -> None:
    many, one = FiLMConv(200, 200, num_relations=20), FiLMConv(200, 200)
    for name in ("message", "scale", "shift"):
        ratio = getattr(many, name).weight.std() / getattr(one, name).weight.std()
        assert abs(ratio.item() - 1) < 0.02


def test_a_graph_without_relations_is_refused() -> None:
    with pytest.raises(InputError, match="without a relation"):
        Layer(FiLMConv(IN, OUT, num_relations=2))(
            random_topology(9, 20).block, normal(9, IN).float(), normal(9, IN).float()
        )


def test_a_negative_number_of_relations_is_refused() -> None:
    with pytest.raises(InputError, match="-1"):
        FiLMConv(IN, OUT, num_relations=-1)


def test_the_model_passes_relations_on() -> None:
    model = FiLM(IN, 8, OUT, num_relations=RELATIONS, layers=2)
    assert [layer.spec.source[0] for layer in model.layers] == [RELATIONS, RELATIONS]
