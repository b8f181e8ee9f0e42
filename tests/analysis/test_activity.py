import pytest
import torch

from rheobase.analysis.activity import LayerActivity, activity, findings
from rheobase.models import build
from rheobase.nn import ReluSoma, Soma


def test_rates_by_hand() -> None:
    soma = Soma(3, decay=0.0, eps=1e-12)  # v_th 0.5, running statistics 0 and 1: the current is half the input
    x = torch.zeros(2, 4, 3, 5, 6)
    x[:, :, 1] = 4.0  # always fires
    x[1, :2, 2] = 4.0  # fires at the second step, for half of the images
    (layer,) = activity(soma_network(soma), [x], 2)
    assert layer.rates == pytest.approx([1 / 3, 1 / 3 + 1 / 6])
    assert (layer.dead, layer.saturated) == pytest.approx((1 / 3, 1 / 3))
    assert layer.neurons == 90
    assert layer.spikes == pytest.approx(2 * layer.rate)


def soma_network(soma: Soma) -> torch.nn.Module:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.soma = soma

        def forward(self, x: torch.Tensor, timesteps: int | None) -> torch.Tensor:
            return self.soma(x)

    return Net()


def test_batches_do_not_matter() -> None:
    network = build("resnet8").train()
    x = torch.randn(6, 1, 8, 8)
    whole, parts = activity(network, [x], 3), activity(network, x.split([4, 2]), 3)
    assert network.training
    assert [layer.name for layer in whole] == [layer.name for layer in parts]
    for a, b in zip(whole, parts, strict=True):
        assert a.rates == pytest.approx(b.rates)
        assert a.dead == b.dead


def test_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one batch"):
        activity(build("resnet8"), [], 3)


@pytest.mark.parametrize(
    ("rates", "dead", "saturated", "words"),
    [
        ([0.2, 0.2], 0.31, 0.0, "31 % of channels never fire"),
        ([0.0, 0.0], 1.0, 0.0, "no neuron fires; nothing reaches the next layer"),
        ([0.2, 0.2], 0.0, 0.1, "10 % of channels always fire"),
        ([0.001, 0.001], 0.0, 0.0, "only 0.10 % of neurons"),
        ([0.7, 0.7], 0.0, 0.0, "no longer sparse"),
        ([0.3, 0.1], 0.0, 0.0, "fades from 0.300 to 0.100"),
    ],
)
def test_findings_in_plain_words(rates: list[float], dead: float, saturated: float, words: str) -> None:
    (sentence,) = findings([LayerActivity("soma", 7, rates, dead, saturated)])
    assert words in sentence


def test_a_healthy_layer_is_no_finding() -> None:
    assert findings([LayerActivity("soma", 7, [0.2, 0.18], 0.0, 0.0)]) == []


def test_of_a_relu_layer_the_share_of_outputs_that_are_not_zero() -> None:
    x = torch.zeros(1, 4, 3, 5, 6)
    x[:, :, 1] = 4.0
    x[:, :1, 2] = 7.0  # for a quarter of the images
    (layer,) = activity(soma_network(ReluSoma(3)), [x], 1)
    assert layer.rates == pytest.approx([1 / 3 + 1 / 12])
    assert (layer.dead, layer.saturated) == pytest.approx((1 / 3, 1 / 3))
