"""A deployed network does the same in one go as node by node."""

import pytest
import torch
from torch import nn

from rheobase.deploy.convolution import convolution
from rheobase.deploy.network import INPUT, LIF, Network, Scale


def _network(last: str, v_th: torch.Tensor, fraction_bits: int | None = None) -> Network:
    """Two scales, of which neurons read both and `last` reads one more."""
    torch.manual_seed(0)
    weights = torch.randn(2, 3, dtype=torch.float64)
    nodes: dict[str, nn.Module] = {
        "first": Scale(weights[0], None),
        "second": Scale(weights[1], None),
        "neurons": LIF(0.5, v_th.double(), fraction_bits),
        "synapse": convolution(torch.randn(5, 3, 1, 1, dtype=torch.float64), None),
    }
    inputs = {"first": [INPUT], "second": [INPUT], "neurons": ["first", "second"], "synapse": [last]}
    return Network(nodes, inputs)


@pytest.mark.parametrize("last", ["neurons", "second"])
@pytest.mark.parametrize(
    ("v_th", "fraction_bits"), [([0.4, 0.4, 0.4], None), ([0.2, 0.4, 0.6], None), ([0.4, 0.4, 0.4], 6)]
)
def test_scales_are_applied_whoever_does_it(last: str, v_th: list[float], fraction_bits: int | None) -> None:
    network = _network(last, torch.tensor(v_th), fraction_bits)
    x = torch.randn(4, 2, 3, 6, 7, dtype=torch.float64)
    *_, (name, expected) = network.run(x)
    assert name == "synapse"
    assert torch.equal(network(x), expected.flatten(2))
    assert 0.1 < dict(network.run(x))["neurons"].mean() < 0.9


def test_a_state_of_another_batch_or_network_is_refused() -> None:
    network = _network("neurons", torch.tensor([0.4, 0.4, 0.4]))
    one, two = torch.randn(1, 3, 6, 7, dtype=torch.float64), torch.randn(2, 3, 6, 7, dtype=torch.float64)
    _, state = network.step(one)
    with pytest.raises(ValueError, match=r"^the state of 'neurons' has the shape \[1, 3, 6, 7\], this step needs"):
        network.step(two, state)
    with pytest.raises(ValueError, match="the state has no potential of 'neurons'"):
        network.step(one, {})
    logits, _ = network.step(one, state)
    assert logits.shape == (1, 5 * 6 * 7)
