"""Random small networks: folded, streamed, written, read and simulated, they fire the spikes of the law in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rheobase.deploy import nirfile
from rheobase.deploy.agreement import agreement, record
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import nir as rheobase_nir
from rheobase.deploy.quantize import quantize
from rheobase.deploy.simulate import simulate
from rheobase.models import BasicBlock, Bottleneck, GlobalHead, PlainBlock, PooledHead, SpikingNet
from rheobase.nn import AvgPool2d, Conv2d, Soma
from tests.deploy.networks import images, randomise

pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")


class ThreeWays(nn.Module):
    """Three branches that meet in one soma: convolved, pooled, as they are."""

    expansion = 1

    def __init__(self, in_channels, channels, stride, soma):
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.soma1 = soma(channels)
        self.conv2 = Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.pool = AvgPool2d(3, 1, 1)
        self.soma2 = soma(channels, branches=3)

    def forward(self, s):
        h = self.soma1(self.conv1(s))
        return self.soma2(self.conv2(h), self.pool(h), h)


@st.composite
def networks(draw):
    """A network, the shape of its images, and T."""
    decay, v_th = draw(st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.9])), draw(st.sampled_from([0.3, 0.5, 1.0]))
    block = st.sampled_from([PlainBlock, BasicBlock, Bottleneck, ThreeWays])
    stages = draw(st.lists(st.tuples(block, st.integers(1, 4), st.integers(1, 2), st.integers(1, 2)), max_size=3))
    seed = draw(st.integers(0, 2**16))
    torch.manual_seed(seed)
    model = SpikingNet(
        stem=Conv2d(draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.sampled_from([1, 3])), padding="same"),
        stages=stages,
        head=draw(st.sampled_from([GlobalHead, PooledHead])),
        num_classes=draw(st.integers(1, 4)),
        image_size=(size := draw(st.integers(16, 18))),
        soma=lambda channels, branches=1: Soma(channels, branches, decay=decay, v_th=v_th),
    )
    model.stem.padding = tuple(k // 2 for k in model.stem.kernel_size)
    if draw(st.booleans()):
        for module in model.modules():
            if isinstance(module, Conv2d):
                module.bias = nn.Parameter(torch.randn(module.out_channels))
    return randomise(model, size, seed), (model.stem.in_channels, size, size), draw(st.integers(1, 4))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(networks(), st.sampled_from(rheobase_nir.FORMS))
def test_every_version_fires_the_same_spikes(tmp_path_factory, drawn, form):
    model, shape, timesteps = drawn
    x = images(2, shape[0], shape[1])
    expected = record(model, x, timesteps)

    def assert_same(network):
        result = agreement(expected, record(network, x, timesteps))
        assert set(result.layers.values()) == {0.0}
        assert result.logits < 1e-9

    network = fold(model)
    assert_same(network)

    state, logits = None, []
    for _ in range(timesteps):
        y, state = network.step(x, state)
        logits.append(y)
    torch.testing.assert_close(torch.stack(logits), expected.logits, rtol=0, atol=1e-9)

    path = tmp_path_factory.mktemp("nir") / "net.nir"
    rheobase_nir.write(network, path, shape, form)
    assert_same(rheobase_nir.load(path))
    assert_simulated(path, x, timesteps, expected)

    integer = quantize(network, x, timesteps)
    rheobase_nir.write(integer, path, shape)
    assert_simulated(path, x, timesteps, record(integer, x, timesteps))


def assert_simulated(path, x, timesteps, expected):
    result = simulate(nirfile.read(path), x[0].numpy(), timesteps)
    for name, spikes in result.spikes.items():
        np.testing.assert_array_equal(spikes.reshape(timesteps, -1), expected.spikes[name][:, 0].numpy(), name)
    np.testing.assert_allclose(result.logits, expected.logits[:, 0].numpy(), atol=1e-9)
