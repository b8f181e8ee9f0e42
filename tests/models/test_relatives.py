"""Networks of other styles: what their blocks compute, by hand, and that each of them trains."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rheobase import recipes
from rheobase.data import Dataset, Split, load
from rheobase.functional import lif
from rheobase.models import MODELS, MSBlock, SEWBlock
from rheobase.nn import Soma, normalisations
from rheobase.train import fit
from tests.models.test_models import SMALL


def test_sew_adds_spikes() -> None:
    """By hand: the block's own spikes and the shortcut's, 0, 1 or 2."""
    net = settled_block(SEWBlock(3, 3, 1, Soma))
    s = (torch.rand(4, 2, 3, 5, 5, dtype=torch.float64) < 0.5).double()
    inner = net.soma2(net.conv2(net.soma1(net.conv1(s))))
    assert inner.any()
    assert torch.equal(net(s), inner + s)
    assert net(s).unique().tolist() == [0, 1, 2]


def test_sew_shortcut_of_another_shape_fires() -> None:
    block = settled_block(SEWBlock(3, 5, 2, Soma))
    out = block.shortcut((torch.rand(4, 2, 3, 6, 6, dtype=torch.float64) < 0.5).double())
    assert out.shape == (4, 2, 5, 3, 3)
    assert out.unique().tolist() == [0, 1]


def test_ms_carries_currents() -> None:
    """By hand: neurons without normalisation fire on the current; it is handed on with the block's own added."""
    block = settled_block(MSBlock(3, 3, 1, Soma))
    current = torch.randn(4, 2, 3, 5, 5, dtype=torch.float64)
    assert torch.equal(block(current), current)  # its own has a weight of 0 in the beginning
    nn.init.ones_(block.norm.weight)
    s = lif(current, decay=0.25, v_th=0.5, width=1.0)
    assert torch.equal(block.neurons(current), s)
    own = block.norm(block.conv2(block.soma(block.conv1(s))))
    assert own.any()
    torch.testing.assert_close(block(current), current + own, rtol=0, atol=0)


def test_ms_shortcut_of_another_shape_reads_spikes() -> None:
    block = settled_block(MSBlock(3, 5, 2, Soma))
    seen: list[Tensor] = []
    block.shortcut[0].register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    assert block(torch.randn(4, 2, 3, 6, 6, dtype=torch.float64)).shape == (4, 2, 5, 3, 3)
    assert seen[0].unique().tolist() == [0, 1]


def settled_block(block: nn.Module) -> Any:
    """In float64 and evaluation, with statistics of a batch."""
    torch.manual_seed(0)
    for layer in normalisations(block):
        layer.momentum = 1.0
    block.double()(torch.randn(4, 9, 3, 6, 6, dtype=torch.float64))
    return block.eval()


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith(("sew", "ms", "vgg", "cifar"))])
def test_trains_a_step_on_digits(name: str, tmp_path: Path) -> None:
    data = load("digits")
    size = SMALL[name]["image_size"]

    def some(split: Split, number: int) -> Split:
        images = split.images[:number].repeat_interleave(size // 8, 2).repeat_interleave(size // 8, 3)
        return Split(images, split.labels[:number])

    small = Dataset.of("some-digits", some(data.train, 8), some(data.test, 8), data.info.classes)
    recipe = recipes.get("demo").changed([f"network={name}", "epochs=1", "batch_size=8", "timesteps=2"])
    run = fit(recipe, dataset=small, out=tmp_path / "run", device="cpu")
    assert 0 < run.rows()[-1]["loss"] < 20
