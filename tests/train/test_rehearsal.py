"""A step whose kernels are compiled before it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rheobase import kernels, recipes
from rheobase.data import Dataset, Split
from rheobase.data.feed import Feed
from rheobase.kernels import fused, saving
from rheobase.kernels.fused import Constants, Received
from rheobase.models import build
from rheobase.nn import Soma
from rheobase.recipes import Recipe
from rheobase.train.rehearsal import _noted, received, rehearse

SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("resnet8", {}, "bf16"),
    ("resnet8", {"memory": "packed"}, "fp32"),
    ("resnet8", {"learn_decay": "channel", "reset": "soft"}, "fp64"),
    ("ms_resnet18", {}, "bf16"),  # whose last soma does not normalise
]

SIZES = {"resnet8": 8, "ms_resnet18": 32}


def recipe_of(precision: str) -> Recipe:
    return replace(recipes.get("demo"), precision=precision)


def network_of(name: str, options: dict[str, Any], precision: str) -> nn.Module:
    net: nn.Module = build(name, in_channels=1, image_size=SIZES[name], num_classes=3, **options)
    dtype = torch.float64 if precision == "fp64" else torch.float32
    return net.to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(("name", "options", "precision"), SETTINGS)
def test_it_tells_what_the_somas_of_a_step_receive(
    name: str, options: dict[str, Any], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of(name, options, precision)
    images = torch.zeros(5, 1, SIZES[name], SIZES[name], dtype=next(network.parameters()).dtype)
    found = received(network, recipe_of(precision), images, 3)
    really: list[Received] = []

    def note(soma: Soma, xs: tuple[Any, ...], _: Tensor) -> None:
        really.append(_noted(soma, tuple(x if isinstance(x, Tensor) else x.carried_out() for x in xs)))

    somas = [module for module in network.modules() if isinstance(module, Soma)]
    for soma in somas:
        soma.register_forward_hook(note)
    constants: list[tuple[Constants, bool]] = []  # as they come to the kernels
    run = fused.run_forward

    def spy(*of: Any) -> Any:
        *_, decays, settings = of
        constants.append((settings.constants, decays is not None))
        return run(*of)

    for module in (fused, saving):
        monkeypatch.setattr(module, "run_forward", spy)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        network(torch.randn_like(images), 3).sum().backward()
    assert found == really
    assert [(call.constants, call.learns_decay) for call in found] == constants
    assert len(found) == len(somas)
    assert {call.normalises for call in found} == ({True, False} if name == "ms_resnet18" else {True})


@pytest.mark.parametrize("memory", ["speed", "packed"])
def test_it_tells_which_somas_write_and_read_bits(
    memory: str, triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rheobase.kernels import triton as launchers

    network = network_of("resnet8", {"memory": memory}, "fp32").to(triton_device)
    images = torch.zeros(2, 1, 8, 8, device=triton_device)
    found = [(call.packs, call.reads_bits) for call in received(network, recipe_of("fp32"), images, 4)]
    really, forward = [], launchers.forward

    def spy(xs: list[Tensor], neurons: Any, pack: bool) -> Any:
        really.append((pack, fused.are_bits(xs[-1])))
        return forward(xs, neurons, pack)

    monkeypatch.setattr(launchers, "forward", spy)
    monkeypatch.setattr(kernels, "_choose", lambda *_: "triton")
    network(torch.randn_like(images), 4)
    assert found == really
    assert {reads for _, reads in really} == ({False, True} if memory == "packed" else {False})


class Moves(nn.Module):
    """A layer that changes, and draws random numbers, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return nn.functional.dropout(x, 0.5, self.training)


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("not without a reason")


@pytest.mark.parametrize("fails", [False, True])
def test_the_network_stays_as_it_is(fails: bool) -> None:
    network: Any = network_of("resnet8", {}, "fp32")
    network.body[1].eval()  # as a frozen part
    network.head = nn.Sequential(Moves(), Fails() if fails else network.head)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    modes, random = [m.training for m in network.modules()], torch.get_rng_state()
    if fails:
        with pytest.raises(RuntimeError, match="not without a reason"):
            received(network, recipe_of("fp32"), torch.zeros(2, 1, 8, 8), 3)
    else:
        received(network, recipe_of("fp32"), torch.zeros(2, 1, 8, 8), 3)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert [m.training for m in network.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert not any("forward" in vars(module) for module in network.modules())


def feed_of(device: str, recipe: Recipe, size: int = 8) -> Feed:
    images = torch.randint(256, (24, 1, size, size), dtype=torch.uint8)
    split = Split(images, torch.arange(24) % 3)
    return Feed(Dataset.of("noise", split, split, ("a", "b", "c")), recipe, torch.device(device), torch.float32)


def test_a_cpu_needs_no_rehearsal() -> None:
    recipe, network, calls = recipe_of("fp32"), nn.Identity(), []
    network.register_forward_pre_hook(lambda *_: calls.append(1))
    rehearse(network, recipe, feed_of("cpu", recipe), 3)
    assert not calls


def test_blank_images_are_those_of_a_step() -> None:
    recipe = replace(recipe_of("fp32"), batch_size=10)
    feed = feed_of("cpu", recipe)
    images, *_ = next(feed.training(0))
    assert feed.blank(3).shape == images.shape
    assert feed.blank(3).dtype == images.dtype
    assert not feed.blank(3).any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["resnet8", "ms_resnet18"])
def test_the_step_compiles_nothing_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    recipe = recipe_of("bf16")
    network, feed = network_of(name, {}, "bf16").cuda(), feed_of("cuda", recipe, SIZES[name])
    rehearse(network, recipe, feed, 3)
    asked: list[str] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **of: asked.append(of["fn"].name))
    with torch.autocast("cuda", torch.bfloat16):
        network(feed.blank(3).normal_(), 3).float().sum().backward()
    assert asked == []
