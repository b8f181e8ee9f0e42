"""tdBN as a layer: equal to the law in outputs, gradients and running statistics; and somas without it."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase import functional
from rheobase.nn import ReferenceSoma, Soma, TdBN, together

SHAPE = (4, 3, 5, 2, 7)  # T, N, C, H, W


def inputs(n: int, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    return [(3 * torch.randn(SHAPE, dtype=torch.float64) + i).requires_grad_() for i in range(n)]


def spoiled(layer: TdBN) -> TdBN:
    """With parameters that are not those of the beginning."""
    torch.manual_seed(1)
    with torch.no_grad():
        layer.weight.uniform_(0.5, 2)
        layer.bias.normal_()
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    return layer


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("branches", [1, 2, 3])
def test_currents_are_those_of_the_law(branches: int, training: bool) -> None:
    layer = spoiled(TdBN(5, branches, v_th=0.7, momentum=0.3).double()).train(training)
    law = spoiled(ReferenceSoma(5, branches, v_th=0.7, momentum=0.3).double()).train(training)
    xs, ys = inputs(branches), inputs(branches)
    ours, theirs = layer(*xs), law.current(*ys)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    factor = torch.randn(SHAPE, dtype=torch.float64)
    (ours * factor).sum().backward()
    (theirs * factor).sum().backward()
    for a, b in zip([*xs, layer.weight, layer.bias], [*ys, law.weight, law.bias], strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(layer.running_mean, law.running_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.running_var, law.running_var, rtol=1e-12, atol=1e-12)


def test_two_channels_by_hand() -> None:
    x = torch.tensor([[[0.0, 5.0]], [[2.0, 9.0]]], dtype=torch.float64)  # T = 2, N = 1: means 1 and 7
    layer = TdBN(2, v_th=0.5, eps=1e-12).double()
    torch.testing.assert_close(layer(x), torch.tensor([[[-0.5, -0.5]], [[0.5, 0.5]]], dtype=torch.float64))
    torch.testing.assert_close(layer.running_mean, torch.tensor([[0.1, 0.7]], dtype=torch.float64))
    torch.testing.assert_close(layer.running_var, torch.tensor([[1.0, 1.3]], dtype=torch.float64))


def test_a_static_input_is_normalised_once() -> None:
    layers = [spoiled(TdBN(5).double()) for _ in range(2)]
    (x,) = inputs(1)
    static = x[:1].expand(4, -1, -1, -1, -1)
    torch.testing.assert_close(layers[0](static), layers[1](static.contiguous()), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layers[0].running_var, layers[1].running_var, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [Soma, ReferenceSoma])
@pytest.mark.parametrize("branches", [1, 2])
def test_a_soma_without_tdbn_gets_its_currents_as_they_are(kind: type[Soma], branches: int) -> None:
    soma = kind(5, branches, normalize=False, v_th=0.3, decay=0.6, width=0.9).double()
    assert not list(soma.parameters())
    xs, ys = inputs(branches), inputs(branches)
    for training in (True, False):
        spikes = soma.train(training)(*xs)
        expected = functional.lif(torch.stack(ys).sum(0), decay=0.6, v_th=0.3, width=0.9)
        assert torch.equal(spikes, expected)
    factor = torch.randn(SHAPE, dtype=torch.float64)
    (spikes * factor).sum().backward()
    (expected * factor).sum().backward()
    for a, b in zip(xs, ys, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-11)


def test_a_checkpoint_knows_whether_there_is_tdbn() -> None:
    with pytest.raises(ValueError, match=r"normalize False \(here True\)"):
        Soma(3).set_extra_state(Soma(3, normalize=False).get_extra_state())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TdBN(0), "TdBN: expected at least one channel and branch, got 0 and 1"),
        (lambda: TdBN(2, v_th=0), r"TdBN: expected v_th, eps > 0 and momentum in \[0, 1\], got 0, 1e-05, 0.1"),
        (lambda: TdBN(2)(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2)), "TdBN: expected 1 branches, got 2"),
        (lambda: TdBN(2)(torch.zeros(1, 1, 2)), "expected more than one value per channel"),
    ],
)
def test_mistakes(make, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()


def test_statistics_that_move_together_move_as_they_would_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a layer that runs several times; at once there is each tensor but once, as a GPU needs it."""
    found, at_once, move = [], [], torch._foreach_lerp_

    def noted(running: list[torch.Tensor], *others: Any) -> None:
        at_once.append([id(x) for x in running])
        move(running, *others)

    monkeypatch.setattr(torch, "_foreach_lerp_", noted)
    for context in (nullcontext(), together()):
        torch.manual_seed(0)
        layers = [Soma(3, momentum=0.3), TdBN(3, 2), Soma(3)]
        with context:
            for i in (0, 1, 0, 2, 0):
                layers[i](*torch.randn(layers[i].branches, 4, 2, 3, 5))
        found.append([buffer.clone() for layer in layers for buffer in layer.buffers()])
    for alone, joint in zip(*found, strict=True):
        assert torch.equal(alone, joint)
    assert [len(tensors) for tensors in at_once] == [2, 4, 2, 2]  # by turn and momentum
    assert all(len(set(tensors)) == len(tensors) for tensors in at_once)


def test_statistics_stay_where_a_forward_pass_fails() -> None:
    soma = Soma(3)

    def run() -> None:
        with together():
            soma(torch.randn(4, 2, 3, 5))
            soma(torch.randn(4, 2, 3, 5), torch.randn(4, 2, 3, 5))

    with pytest.raises(ValueError, match="expected 1 branches"):
        run()
    assert not soma.running_mean.any()
    soma(torch.randn(4, 2, 3, 5))
    assert soma.running_mean.all()
