"""The ReLU twin: torch's batch normalisation and ReLU, in the place of a soma."""

import re

import pytest
import torch
from torch import Tensor, nn

from rheobase.models import build
from rheobase.nn import ReluSoma, Soma, set_memory, somas

N, C, H, W = 4, 5, 6, 8


def twins(branches: int) -> tuple[ReluSoma, list[nn.BatchNorm2d]]:
    """A soma and torch's layers with the same weights."""
    soma = ReluSoma(C, branches).double()
    norms = [nn.BatchNorm2d(C).double() for _ in range(branches)]
    nn.init.uniform_(soma.weight, 0.5, 2)
    nn.init.normal_(soma.bias)
    with torch.no_grad():
        for norm, weight, bias in zip(norms, soma.weight, soma.bias, strict=True):
            norm.weight.copy_(weight)
            norm.bias.copy_(bias)
    return soma, norms


@pytest.mark.parametrize("branches", [1, 2, 3])
def test_equals_torch_in_training(branches: int) -> None:
    soma, norms = twins(branches)
    for _ in range(2):
        xs = [torch.randn(N, C, H, W, dtype=torch.float64) * (b + 1) + b for b in range(branches)]
        own, theirs = ([x.clone().requires_grad_() for x in xs] for _ in range(2))
        out = soma(*(x[None] for x in own))
        currents = [norm(x) for norm, x in zip(norms, theirs, strict=True)]
        want = sum(currents[1:], start=currents[0]).relu()
        torch.testing.assert_close(out[0], want, rtol=1e-12, atol=1e-12)
        grad = torch.randn_like(want)
        grads = torch.autograd.grad(out[0], [*own, soma.weight, soma.bias], grad)
        expected = torch.autograd.grad(want, [*theirs, *(n.weight for n in norms), *(n.bias for n in norms)], grad)
        for x, y in zip(grads[:branches], expected[:branches], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(torch.cat(list(torch.cat(grads[branches:]))), torch.cat(expected[branches:]))
    for norm, mean, var in zip(norms, soma.running_mean, soma.running_var, strict=True):
        torch.testing.assert_close(mean, norm.running_mean)
        count, left = N * H * W, 0.9**2  # left of the variance 1 at the beginning, after two steps
        torch.testing.assert_close((var - left) * count / (count - 1), norm.running_var - left)  # torch's is unbiased


def test_evaluation_uses_the_running_statistics() -> None:
    soma = ReluSoma(1).eval()
    soma.running_mean.fill_(10)
    soma.running_var.fill_(4)
    x = torch.tensor([8.0, 10.0, 11.0, 14.0]).view(1, 4, 1)
    torch.testing.assert_close(soma(x).flatten(), torch.tensor([0.0, 0.0, 0.5, 2.0]))


@pytest.mark.parametrize("memory", ["speed", "packed", "recompute"])
@pytest.mark.parametrize("half", [False, True])
def test_a_network_of_them_trains(memory: str, half: bool) -> None:
    network = build("resnet8", soma=ReluSoma, decay=0.5, v_th=0.5, width=1.0)
    set_memory(network, memory)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = network(torch.randn(N, 1, 8, 8), timesteps=1)
    logits.float().square().sum().backward()
    assert logits.shape == (1, N, 10)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    spiking = build("resnet8")
    assert {n: p.shape for n, p in network.named_parameters()} == {n: p.shape for n, p in spiking.named_parameters()}
    assert list(somas(network)) == list(somas(spiking))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does it
def test_compiles_as_one_graph() -> None:
    network = build("resnet8", soma=ReluSoma)
    images = torch.randn(3, 1, 8, 8)
    expected = network(images, 1)
    assert torch.equal(torch.compile(network, fullgraph=True, backend="aot_eager")(images, 1), expected)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, N, C), "a ReLU network has no time dimension: got 2 timesteps; use timesteps=1"),
        (torch.zeros(1, 1, C), f"expected more than one value per channel, got [1, 1, {C}]; use a larger batch"),
        (torch.zeros(1, N, C + 1), f"fire: expected {C} channels in dimension 2, got [1, {N}, {C + 1}]"),
    ],
)
def test_bad_input(x: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ReluSoma(C)(x)


def test_is_watched_and_saved_like_a_soma() -> None:
    soma = ReluSoma(C, 2)
    soma(torch.randn(1, N, C), torch.randn(1, N, C))
    other = ReluSoma(C, 2)
    other.load_state_dict(soma.state_dict())
    assert torch.equal(other.running_mean, soma.running_mean)
    assert soma.running_mean.any()
    assert isinstance(soma, Soma)
