"""Objects that travel between workers are as long as what they hold, wherever they lie in memory."""

import numpy as np
import pytest
import torch

from outgrow.nn import GCN
from outgrow.runtime.distributed.serialization import deserialize, serialize

TENSORS = {
    "rows": torch.arange(12.0).view(4, 3),
    "columns": torch.arange(12.0).view(4, 3).t(),
    "half": torch.arange(5).to(torch.bfloat16),
    "truths": torch.tensor([True, False]),
    "a column": torch.arange(12.0).view(4, 3)[:, 1],
    "a number": torch.tensor(7, dtype=torch.int16),
    "nothing": torch.empty(3, 0, dtype=torch.int64),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back(name: str) -> None:
    back = deserialize(serialize({"it": (TENSORS[name], 1)}))["it"][0]
    assert back.dtype == TENSORS[name].dtype
    assert back.shape == TENSORS[name].shape
    assert torch.equal(back, TENSORS[name])
    back.zero_()  # its memory is its own
    assert torch.equal(back, torch.zeros_like(TENSORS[name]))


def test_the_same_numbers_are_the_same_bytes_wherever_they_lie() -> None:
    kept = [torch.ones(50, 3) for _ in range(40)]
    spaces = [torch.empty(1 << shift) for shift in range(4, 24)]
    assert len({serialize([each]) for each in kept}) == 1
    assert len({serialize(space[:4].fill_(1)) for space in spaces}) == 1


def test_a_view_travels_without_what_it_is_a_view_of() -> None:
    whole = torch.zeros(2, 1000)
    assert len(serialize(whole[0])) == len(serialize(whole[0].clone())) < whole.nbytes


def test_a_model_comes_back_with_its_ties() -> None:
    torch.manual_seed(0)
    model = GCN(4, 5, 3)
    model.layers[1].conv.tied = model.layers[0].conv.bias
    back = deserialize(serialize(model))
    assert back.layers[1].conv.tied is back.layers[0].conv.bias
    assert back.layers[0].conv.bias.requires_grad
    for mine, theirs in zip(model.parameters(), back.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_an_empty_array_that_was_picked_from_another() -> None:
    picked = torch.from_numpy(np.arange(4)[np.empty(0, dtype=np.int64)])
    assert deserialize(serialize(picked)).shape == (0,)
