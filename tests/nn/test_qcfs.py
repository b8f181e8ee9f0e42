"""The activation that is trained to become spikes: values and gradients by hand."""

import pytest
import torch

from rheobase import functional
from rheobase.models import build
from rheobase.nn import QcfsSoma, ReluSoma, set_memory

N, C = 4, 5


def test_values_by_hand() -> None:
    """Threshold 2, 4 levels: multiples of 0.5, rounded to the nearest (up in the middle), from 0 to 2."""
    x = torch.tensor([-3.0, -0.1, 0.2, 0.25, 0.3, 0.74, 0.76, 1.8, 2.0, 9.0], dtype=torch.float64)
    want = [0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 1.0, 2.0, 2.0, 2.0]
    assert functional.qcfs(x, torch.tensor(2.0), 4).tolist() == want


def test_gradients_by_hand() -> None:
    """Of x: 1 between 0 and the threshold. Of the threshold: 1 above it, (rounded - x) / threshold below."""
    x = torch.tensor([-1.0, 0.3, 0.7, 1.9, 3.0], dtype=torch.float64, requires_grad=True)
    threshold = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 3.0, 5.0, 7.0], dtype=torch.float64)
    (functional.qcfs(x, threshold, 4) * weights).sum().backward()
    assert x.grad is not None
    assert threshold.grad is not None
    assert x.grad.tolist() == [0.0, 2.0, 3.0, 5.0, 0.0]
    by_hand = 2 * (0.5 - 0.3) / 2 + 3 * (0.5 - 0.7) / 2 + 5 * (2.0 - 1.9) / 2 + 7
    assert threshold.grad.item() == pytest.approx(by_hand)


def test_half_precision_stays_half() -> None:
    x = torch.tensor([0.3, 1.9], dtype=torch.bfloat16)
    assert functional.qcfs(x, torch.tensor(2.0), 4).dtype == torch.bfloat16


def test_many_levels_are_a_relu_that_is_cut() -> None:
    fine, plain = QcfsSoma(C, levels=2**20).eval(), ReluSoma(C).eval()
    x = 3 * torch.randn(1, N, C)
    torch.testing.assert_close(fine(x), plain(x).clamp(max=3.0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("memory", ["speed", "packed", "recompute"])
@pytest.mark.parametrize("half", [False, True])
def test_a_network_of_them_trains(memory: str, half: bool) -> None:
    network = build("resnet8", soma=QcfsSoma, decay=0.5, v_th=0.5, width=1.0, levels=4)
    set_memory(network, memory)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = network(torch.randn(N, 1, 8, 8), timesteps=1)
    logits.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    assert network.body[0].soma2.threshold.item() == pytest.approx(3 * 2**0.5)
    assert network.soma.levels == 4


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="QcfsSoma: expected at least one level, got 0"):
        QcfsSoma(C, levels=0)
    with pytest.raises(ValueError, match="has no time dimension: got 2 timesteps"):
        QcfsSoma(C)(torch.zeros(2, N, C))
