import copy

import pytest
import torch

from rheobase.deploy.convolution import FrozenConv2d, convolution
from rheobase.deploy.pairs import FRACTION_BITS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("stride", "padding", "groups", "bias"), [(1, 1, 1, True), (2, 1, 1, False), ((2, 3), (0, 2), 2, True)]
)
def test_equals_the_convolution_of_torch(dtype, stride, padding, groups, bias):
    weight = torch.randn(6, 4 // groups, 3, 3, dtype=dtype)
    bias = torch.randn(6, dtype=dtype) if bias else None
    conv = convolution(weight, bias, stride, padding, groups=groups)
    assert isinstance(conv, FrozenConv2d)
    for layout in (torch.contiguous_format, torch.channels_last):
        for size in (7, 9):  # the packed weights serve every size
            x = torch.randn(2, 4, size, size + 1, dtype=dtype).to(memory_format=layout)
            expected = torch.conv2d(x, weight, bias, stride, padding, groups=groups)
            tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
            torch.testing.assert_close(conv(x), expected, **tolerance)


def test_changed_weights_are_noticed():
    conv = convolution(torch.randn(3, 2, 3, 3), None, padding=1)
    x = torch.randn(1, 2, 5, 6)
    before = conv(x)
    conv.weight.mul_(2)
    torch.testing.assert_close(conv(x), 2 * before)
    conv.weight = torch.nn.Parameter(-conv.weight.detach(), requires_grad=False)
    torch.testing.assert_close(conv(x), -2 * before)


@pytest.mark.parametrize("other", [torch.float16, torch.bfloat16])
def test_weights_that_were_rounded_are_noticed(other):
    conv = convolution(torch.randn(8, 4, 3, 3), torch.randn(8), padding=1)
    x = torch.randn(1, 4, 6, 7)
    conv(x)
    conv.to(other).float()
    assert not conv._prepared._kept  # or else it depends on where the new weights lie
    torch.testing.assert_close(conv(x), torch.conv2d(x, conv.weight, conv.bias, padding=1), rtol=1e-5, atol=1e-5)


def test_a_convolution_that_has_run_can_be_saved(tmp_path):
    conv = convolution(torch.randn(3, 2, 3, 3), torch.randn(3), stride=2)
    x = torch.randn(1, 2, 5, 6)
    before = conv(x)
    torch.save(conv, tmp_path / "conv.pt")
    assert torch.equal(torch.load(tmp_path / "conv.pt", weights_only=False)(x), before)


def test_a_copy_is_independent():
    conv = convolution(torch.randn(3, 2, 3, 3), torch.randn(3), stride=2)
    x = torch.randn(1, 2, 5, 6)
    before = conv(x)
    other = copy.deepcopy(conv)
    other.weight.zero_()
    assert other.stride == (2, 2)
    torch.testing.assert_close(conv(x), before)


def test_gradients_of_the_input_exist():
    conv = convolution(torch.randn(3, 2, 3, 3), torch.randn(3))
    x = torch.randn(1, 2, 5, 6, requires_grad=True)
    conv(x).sum().backward()
    torch.testing.assert_close(x.grad[0, :, 2, 2], conv.weight.sum((0, 2, 3)))


@pytest.mark.parametrize("largest", [1, 511, 2**12])  # of the input; sums of the last are beyond float32
@pytest.mark.parametrize("bias", [True, False])
def test_integers_in_float64_are_exact(largest, bias):
    weight = torch.randint(-127, 128, (6, 32, 3, 3)).double()
    bias = torch.randint(-(2**40), 2**40, (6,)).double() if bias else None
    conv = convolution(weight, bias, padding=(1, 1), stride=(1, 1), dilation=(1, 1))
    x = torch.randint(largest + 1, (2, 32, 7, 8)).double()
    assert conv._small_integers(x) == (largest < 2**12)
    assert torch.equal(conv(x), torch.conv2d(x, weight, bias, padding=1))


@pytest.mark.parametrize("channels", [28, 29])  # 2**24 steps are 2**16, which 29 * 9 times 255 exceed
def test_fractions_of_a_few_bits_are_exact(channels):
    weight = torch.full((6, channels, 3, 3), 255 + 1 / 2**FRACTION_BITS).double()
    conv = convolution(weight, None, padding=(1, 1), stride=(1, 1), dilation=(1, 1))
    x = torch.randint(2, (2, channels, 7, 8)).double()
    assert conv._small_integers(x) == (channels == 28)
    assert torch.equal(conv(x), torch.conv2d(x, weight, padding=1))


def test_fractions_in_float64_stay_in_float64():
    conv = convolution(torch.randn(3, 2, 3, 3).double(), None)
    x = torch.randint(2, (1, 2, 5, 6)).double()
    assert not conv._small_integers(x)
    assert not convolution(conv.weight.round(), None)._small_integers(x / 3)


def test_integers_are_exact_where_winograds_method_would_round():
    weight = torch.randint(-127, 128, (128, 128, 3, 3)).double()
    x = torch.randint(0, 2, (3, 128, 8, 12)).double().contiguous(memory_format=torch.channels_last)
    conv = convolution(weight, None, stride=(1, 1), padding=(1, 1), dilation=(1, 1))
    assert conv._small_integers(x)
    assert torch.equal(conv(x), torch.conv2d(x, weight, padding=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_output_channel_is_summed_right(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randint(-127, 128, (1, 3, 16, 16)).to(dtype)
    x = (torch.rand(2, 3, 16, 16) < 0.3).to(dtype)
    found = convolution(weight, None)(x.contiguous(memory_format=torch.channels_last))
    assert torch.equal(found.flatten(), (x * weight).flatten(1).sum(1))
