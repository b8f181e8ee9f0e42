"""Weights that are cast once are the weights that autocast would cast."""

import pytest
import torch
from torch import nn

from rheobase.deploy.folding import fold
from rheobase.models import resnet8
from rheobase.nn import Conv2d
from rheobase.train.casting import hold_weights, synapses


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("deployed", [False, True], ids=["as trained", "folded"])
def test_held_weights_change_nothing_under_autocast(dtype: torch.dtype, deployed: bool) -> None:
    network = resnet8().eval()
    x = torch.randn(3, 1, 8, 8)
    network.train()(x, 2)
    found = fold(network.eval()) if deployed else network
    assert len(synapses(found)) == 1 + 2 + 3 + 3 + 1
    with torch.no_grad(), torch.autocast("cpu", dtype):
        expected = found(x, 2)
        hold_weights(found, dtype)
        assert torch.equal(found(x, 2), expected)
    assert {synapse.weight.dtype for synapse in synapses(found).values()} == {dtype}
    assert all(synapse.bias is None or synapse.bias.dtype == torch.float32 for synapse in synapses(found).values())


def test_layers_of_another_kind_keep_their_weights() -> None:
    class Standardised(Conv2d):
        """Its weights are means and deviations before they are a kernel."""

    network = nn.Sequential(Standardised(1, 2, 3), nn.Linear(4, 5))
    hold_weights(network, torch.bfloat16)
    assert [p.dtype for p in network.parameters() if p.ndim > 1] == [torch.float32, torch.bfloat16]
