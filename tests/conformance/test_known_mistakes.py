"""One test per mistake found in public code for STBP-tdBN, named after the mistake.

That the published code does not run at all is one of them: `test_models.py` builds and trains every network.
"""

from functools import partial

import pytest
import torch
from torch import nn

from rheobase.models import MODELS, BasicBlock, Bottleneck, build
from rheobase.nn import Soma
from tests.conformance.neurons import soma as neuron

T, N, C, H, W = 3, 4, 5, 6, 7
FIRST_STEP_RATE = 0.15866  # P(Z > 1): what N(0, v_th^2) makes fire at the first step


def currents(branches: int = 1) -> list[torch.Tensor]:
    return [torch.randn(T, 20, C, 19, 21, dtype=torch.float64) * 3 + 1 for _ in range(branches)]


def gradient(x: list[float], weigh: list[float], *, v_th: float = 0.5, width: float = 1.0) -> list[float]:
    """Of sum(weigh * spikes) by the current x of a single neuron with decay 1/4."""
    current = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    spikes = neuron(current, decay=0.25, v_th=v_th, width=width)
    (spikes * torch.tensor(weigh, dtype=torch.float64)).sum().backward()
    assert current.grad is not None
    return current.grad.tolist()


@pytest.mark.parametrize("branches", [1, 2, 3])
def test_alpha_or_v_th_dropped(branches: int) -> None:
    """v_th dropped: P(Z > 0.5) = 31 % fire; alpha dropped: 24 % with two branches, 28 % with three."""
    spikes = Soma(C, branches).double()(*currents(branches))
    assert spikes[0].mean().item() == pytest.approx(FIRST_STEP_RATE, abs=0.008)


@pytest.mark.parametrize("branches", [1, 2])
def test_alpha_and_v_th_made_the_initial_weight(branches: int) -> None:
    """The same function, but trained differently: weight starts at 1, and halving it halves the current."""
    soma = Soma(C, branches).double()
    assert torch.equal(soma.weight, torch.ones(branches, C).double())
    with torch.no_grad():
        soma.weight.mul_(0.5)
    rate = soma(*currents(branches))[0].mean().item()
    assert rate == pytest.approx(0.02275, abs=0.004)  # P(Z > 2)


@pytest.mark.parametrize("v_th", [0.25, 1.0, 2.0])
def test_threshold_kept_in_two_places(v_th: float) -> None:
    """The scale of tdBN follows the threshold of the neuron, so v_th alone changes nothing at initialisation."""
    xs = currents(2)
    default, other = Soma(C, 2).double(), Soma(C, 2, v_th=v_th).double()
    assert torch.equal(default(*xs), other(*xs))


def test_threshold_subtracted_twice() -> None:
    spikes = neuron(torch.tensor([0.5625], dtype=torch.float64), decay=0.25, v_th=0.5, width=1.0)
    assert spikes.item() == 1  # not only from 2 * v_th = 1 on


def test_surrogate_centred_at_zero() -> None:
    # width 1/4 around v_th = 1/2: from 0.375 to 0.625, and nothing near 0
    assert gradient([0.0625], [1.0], width=0.25) == [0]
    assert gradient([-0.0625], [1.0], width=0.25) == [0]
    assert gradient([0.4375], [1.0], width=0.25) == pytest.approx([4])
    assert gradient([0.5625], [1.0], width=0.25) == pytest.approx([4])


@pytest.mark.parametrize("width", [0.25, 0.5, 1.0, 4.0])
def test_surrogate_of_wrong_height(width: float) -> None:
    """The area under the rectangle is 1."""
    assert gradient([0.5], [1.0], width=width) == pytest.approx([1 / width])


def test_running_statistics_rebound() -> None:
    """A new tensor in their place would be lost to replicas, to process groups and to captured graphs."""
    soma = Soma(C)
    before = {name: (id(buffer), buffer.data_ptr(), buffer.clone()) for name, buffer in soma.named_buffers()}
    soma(torch.randn(T, N, C, H, W) + 3)
    for name, buffer in soma.named_buffers():
        identity, address, values = before[name]
        assert (id(buffer), buffer.data_ptr()) == (identity, address)
        assert not torch.equal(buffer, values)


def test_running_statistics_reshaped() -> None:
    soma = Soma(C, 2)
    before = {name: value.shape for name, value in soma.state_dict().items()}
    soma(torch.randn(T, N, C, H, W), torch.randn(T, N, C, H, W))
    assert {name: value.shape for name, value in soma.state_dict().items()} == before
    assert soma.running_mean.shape == soma.running_var.shape == (2, C)


def test_converted_to_synchronised_batch_norm() -> None:
    """The conversion of torch would drop alpha * v_th or take N for C; it must find nothing to convert."""
    net = build("resnet8").double()
    x = torch.randn(N, 1, 8, 8, dtype=torch.float64)
    before = net(x, timesteps=T)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in converted.modules())
    torch.testing.assert_close(converted(x, timesteps=T), before, rtol=1e-9, atol=1e-12)


def test_batch_taken_for_channels_when_equal() -> None:
    x = torch.randn(T, C, C, H, W, dtype=torch.float64) + torch.arange(C)[:, None, None]
    soma = Soma(C, momentum=1.0).double()
    soma(x)
    expected = torch.stack([x[:, :, c].mean() for c in range(C)])
    torch.testing.assert_close(soma.running_mean[0], expected)


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
@pytest.mark.parametrize("stride", [1, 2])
def test_shortcut_without_normalisation(block: type[BasicBlock] | type[Bottleneck], stride: int) -> None:
    """Also an identity shortcut goes through tdBN: how large its spikes are does not matter, nor any offset."""
    channels = 4 * block.expansion
    module = block(channels, 4, stride, partial(Soma, eps=1e-12)).double()
    assert isinstance(module.shortcut, nn.Identity) == (stride == 1)
    s = (torch.rand(T, N, channels, H, W, dtype=torch.float64) > 0.8).double()
    expected = module(s)
    module.shortcut.register_forward_hook(lambda _, __, out: 7 * out + 2)
    assert torch.equal(module(s), expected)
    last = module.soma2 if block is BasicBlock else module.soma3
    assert last.branches == 2


@pytest.mark.parametrize("name", [name for name in MODELS if name != "plain20"])
def test_branch_factor_where_nothing_is_summed(name: str) -> None:
    """Two branches exactly where a block ends, one in the stem, inside blocks and in the head."""
    with torch.device("meta"):
        net = build(name)
    for path, module in net.named_modules():
        if isinstance(module, BasicBlock | Bottleneck):
            somas = [child for child in module.children() if isinstance(child, Soma)]
            assert [soma.branches for soma in somas] == [1] * (len(somas) - 1) + [2]
        elif isinstance(module, Soma) and not path.startswith("body"):
            assert module.branches == 1


@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet34_large"])
def test_initialisation_overwrites_the_normalisation(name: str) -> None:
    """Neither reset by a loop over modules nor set to zero at the end of a block."""
    somas = [module for module in build(name).modules() if isinstance(module, Soma) and module.normalize]
    assert somas
    for soma in somas:
        assert (soma.weight == 1).all()
        assert (soma.bias == 0).all()


@pytest.mark.parametrize("decay", [0.0, 0.25, 0.5, 1.0])
def test_current_scaled_by_the_decay(decay: float) -> None:
    """u[1] = x[1], whatever the decay; (x - u) / tau would shrink it."""
    x = torch.tensor([[0.5, 0.5625]], dtype=torch.float64)
    assert [neuron(x[:, i], decay=decay, v_th=0.5, width=1.0).item() for i in range(2)] == [0, 1]


def test_reset_detached() -> None:
    # L = 5 s[2], u = 0.75 (spike), 0.25: dL/du[1] = 5 * (-1/4 * 0.75) through the reset alone, 0 if detached
    assert gradient([0.75, 0.25], [0.0, 5.0]) == pytest.approx([-0.9375, 5.0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_fires_at_the_threshold(dtype: torch.dtype) -> None:
    soma = Soma(1, eps=2.0**-10).eval()
    soma.running_var.fill_(0.25 - 2.0**-10)
    soma = soma.double() if dtype == torch.float64 else soma
    x = torch.tensor([0.5, 0.50390625], dtype=dtype).view(1, 2, 1)
    assert soma(x).flatten().tolist() == [0, 1]


def test_number_of_timesteps_fixed() -> None:
    """Trained at one T, run at others; a shorter run is the beginning of a longer one."""
    net = build("resnet8", momentum=1.0).double()
    x = torch.randn(N, 1, 8, 8, dtype=torch.float64)
    keys = net.state_dict().keys()
    net(x, timesteps=2).sum().backward()
    assert net.state_dict().keys() == keys
    net.eval()
    long = net(x, timesteps=7)
    assert long.shape == (7, N, 10)
    assert len(long.unique(dim=0)) > 1
    for timesteps in (1, 3, 5):
        torch.testing.assert_close(net(x, timesteps=timesteps), long[:timesteps], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("branches", [1, 2])
def test_several_copies_kept_for_the_backward_pass(branches: int) -> None:
    """Normalisation and neuron together keep nothing of the size of their inputs but the inputs."""
    xs = [torch.randn(T, N, C, 10 * H, 10 * W, requires_grad=True) for _ in range(branches)]
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        Soma(C, branches)(*xs)
    large = {tensor.data_ptr() for tensor in kept if tensor.numel() > 100 * C}
    assert large == {x.data_ptr() for x in xs}


def test_mixed_precision_undone_by_float32_spikes() -> None:
    net = build("resnet8")
    seen = {}
    for name, module in net.named_modules():
        if isinstance(module, Soma | nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out.dtype}))
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.randn(N, 1, 8, 8), timesteps=2)
    assert seen
    assert set(seen.values()) == {torch.bfloat16}
