import pytest
import torch
from torch import Tensor

from rheobase.analysis.somas import calibrate_statistics, on_reference
from rheobase.models import build
from rheobase.nn import ReferenceSoma


def test_deviation_of_the_current_of_two_branches() -> None:
    torch.manual_seed(4)
    xs: list[Tensor] = [2 + 3 * torch.randn(3, 40, 5, 6, 7, dtype=torch.float64) for _ in range(2)]
    current = ReferenceSoma(5, 2, v_th=0.3).double().current(*xs).detach()
    torch.testing.assert_close(current.std(), torch.tensor(0.3).double(), rtol=0.02, atol=0)
    torch.testing.assert_close(current.mean(), torch.tensor(0.0).double(), rtol=0, atol=1e-6)


def test_calibrated_statistics_are_those_of_the_batch() -> None:
    torch.manual_seed(5)
    network = build("resnet8", num_classes=3).double().eval()
    x = torch.randn(9, 1, 8, 8, dtype=torch.float64)
    calibrate_statistics(network, x, 2)
    assert not network.training
    torch.testing.assert_close(network(x, 2), network.train()(x, 2))


@pytest.mark.parametrize("memory", ["speed", "packed", "recompute"])
def test_a_copy_on_the_law_knows_all_derivatives(memory: str) -> None:
    network = on_reference(build("resnet8", memory=memory).double())
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(network(x, 2).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), x)
    assert second.abs().max() > 0
