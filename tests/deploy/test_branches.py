"""tdBN as a factor and a shift of a synapse, by hand."""

import torch
from torch import nn

from rheobase.deploy.branches import Branch, without_identities
from rheobase.deploy.folding import fold
from rheobase.deploy.nodes import Scale
from tests.deploy.networks import tiny


def test_equation_9_and_10_by_hand():
    model = tiny()
    soma = model.soma
    soma.weight.fill_(-3.0)
    soma.bias.fill_(0.125)
    soma.running_mean.fill_(2.0)
    soma.running_var.fill_(4.0 - soma.eps)
    stem = fold(model).nodes["stem"]
    # lambda * alpha * v_th / sqrt(var + eps) = -3 * 1 * 0.5 / 2
    torch.testing.assert_close(stem.weight, -0.75 * model.stem.weight)
    torch.testing.assert_close(stem.bias, torch.full((4,), -0.75 * (0 - 2) + 0.125, dtype=torch.float64))


def test_identity_shortcut_is_a_scale_with_half_the_variance():
    model = tiny()
    soma = model.body[0].soma2
    for p, value in ((soma.weight, 1.0), (soma.bias, 0.25), (soma.running_mean, 0.0)):
        p.fill_(value)
    soma.running_var.fill_(1.0 - soma.eps)
    network = fold(model)
    shortcut, conv = network.nodes["body_0_shortcut"], network.nodes["body_0_conv2"]
    assert isinstance(shortcut, Scale)
    torch.testing.assert_close(shortcut.weight, torch.full((4,), 0.5 / 2**0.5, dtype=torch.float64))
    assert shortcut.bias is None  # both biases sit on the first branch
    torch.testing.assert_close(conv.bias, torch.full((4,), 0.5, dtype=torch.float64))
    assert network.inputs["body_0_soma2"] == ("body_0_conv2", "body_0_shortcut")


def test_two_normalisations_in_a_row():
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 1, dtype=torch.float64)
    factors, shifts, x = torch.randn(2, 3).double(), torch.randn(2, 3).double(), torch.randn(5, 2, 4, 7).double()
    branch, expected = Branch("conv", conv, ("input",)), conv(x)
    for factor, shift in zip(factors, shifts, strict=True):
        branch = branch.scaled(factor, shift, torch.float64)
        expected = factor[:, None, None] * expected + shift[:, None, None]
    torch.testing.assert_close(branch.synapse(branch.bias())(x), expected, rtol=0, atol=1e-12)


def test_only_an_identity_that_changes_nothing_is_left_out():
    plain = Branch("plain", nn.Identity(), ("one", "two"))
    scaled = Branch("scaled", nn.Identity(), ("three",)).scaled(torch.ones(3), None, torch.float32)
    assert without_identities((plain, "four", scaled)) == ("one", "two", "four", scaled)
