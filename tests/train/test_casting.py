"""Weights that are cast once, or together, are the weights that autocast would cast one by one."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rheobase.deploy.folding import fold
from rheobase.models import BasicBlock, GlobalHead, SpikingNet, build, resnet8
from rheobase.nn import Conv2d, Soma, as_sequence, set_memory
from rheobase.train import casting
from rheobase.train.casting import hold_weights, in_few_kernels, synapses

HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("deployed", [False, True], ids=["as trained", "folded"])
def test_held_weights_change_nothing_under_autocast(dtype: torch.dtype, deployed: bool) -> None:
    network = resnet8()
    x = torch.randn(3, 1, 8, 8)
    network(x, 2)
    found = fold(network.eval()) if deployed else network.eval()
    assert len(synapses(found)) == 1 + 2 + 3 + 3 + 1
    with torch.no_grad(), torch.autocast("cpu", dtype):
        expected = found(x, 2)
        hold_weights(found, dtype)
        assert torch.equal(found(x, 2), expected)
    assert {synapse.weight.dtype for synapse in synapses(found).values()} == {dtype}
    assert all(synapse.bias is None or synapse.bias.dtype == torch.float32 for synapse in synapses(found).values())


def test_layers_of_another_kind_keep_their_weights() -> None:
    class Standardised(Conv2d):
        """Its weights have means and deviations before they are a kernel."""

    network = nn.Sequential(Standardised(1, 2, 3), nn.Linear(4, 5))
    hold_weights(network, torch.bfloat16)
    assert [p.dtype for p in network.parameters() if p.ndim > 1] == [torch.float32, torch.bfloat16]
    assert not synapses(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)))
    assert not synapses(nn.utils.spectral_norm(nn.Linear(4, 5)))  # whose weight is no parameter


class Twice(nn.Module):
    """A convolution and a soma that run two times, a weight that two layers share, and one that does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.soma = Conv2d(3, 3, 3, padding=1, bias=False), Soma(3, momentum=0.3)
        self.still, self.last = Conv2d(3, 3, 1).requires_grad_(False), Soma(3)
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor, timesteps: int) -> Tensor:
        s = self.soma(self.conv(as_sequence(x, timesteps)))
        s = self.last(self.still(self.soma(self.conv(s))))
        assert not self.still.weight.requires_grad  # or its gradient would be computed for nobody
        return self.two(self.one(s.mean((3, 4))))


Twice.__module__ = "rheobase.models"  # one of ours: weights of others are left alone


def trained_once(network: nn.Module, forward: Any, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Logits, gradients and running statistics."""
    torch.manual_seed(1)
    x = torch.randn(3, 3, 32, 32)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        logits = forward(x, 2)
    (logits.float() * torch.randn(logits.shape)).sum().backward()
    grads = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return {"logits": logits} | grads | dict(network.named_buffers())


@pytest.mark.parametrize("dtype", [None, *HALF], ids=str)
@pytest.mark.parametrize("kind", ["speed", "packed", "recompute", "twice"])
def test_few_kernels_compute_the_same(kind: str, dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casting, "PORTION", 20_000)  # of 78 thousand
    found = []
    for few in (False, True):
        torch.manual_seed(0)
        network = Twice() if kind == "twice" else build("resnet8", in_channels=3, memory=kind)
        assert synapses(network)
        found.append(trained_once(network, in_few_kernels(network, dtype) if few else network, dtype))
    plain, few = found
    assert plain.keys() == few.keys()
    assert ("still.weight" in plain, "conv.weight" in plain) == (False, kind == "twice")
    for name, value in plain.items():
        assert torch.equal(few[name], value), name
        assert few[name].dtype == value.dtype


class Careful(nn.Module):
    """A network of a user's, which computes its last layer in single precision and bounds a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, timesteps: int) -> Tensor:
        with torch.no_grad():
            self.body.weight.clamp_(-0.1, 0.1)
        x = self.body(x.mean((2, 3)).expand(timesteps, -1, -1))
        with torch.autocast("cpu", enabled=False):
            return self.last(x.float())


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_network_of_a_users_sees_its_own_weights(dtype: torch.dtype) -> None:
    found = []
    for few in (False, True):
        torch.manual_seed(0)
        network = Careful()
        found.append(trained_once(network, in_few_kernels(network, dtype) if few else network, dtype))
        assert network.body.weight.abs().max() <= 0.1
    plain, few = found
    assert plain["logits"].dtype == torch.float32
    for name, value in plain.items():
        assert torch.equal(few[name], value), name
    hold_weights(network, dtype)
    assert {p.dtype for p in network.parameters()} == {torch.float32}


def test_nor_is_a_weight_cast_that_a_part_of_a_users_shares() -> None:
    class Penalty(nn.Module):
        def __init__(self, weight: nn.Parameter) -> None:
            super().__init__()
            self.weight = weight

    first, second = nn.Linear(3, 4), nn.Linear(4, 5)
    network = nn.Sequential(first, second, nn.ModuleDict({"penalty": Penalty(second.weight)}))
    assert [*synapses(network).values()] == [first]


def operations(network: nn.Module) -> Counter[str]:
    """Of one pass forward and backward, by name."""
    found: Counter[str] = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found[function.name().partition(".")[0].partition("::")[2]] += 1
            return function(*args, **(kwargs or {}))

    with Count():
        trained_once(network, in_few_kernels(network, torch.bfloat16), torch.bfloat16)
    return found


def network_of(blocks: int, memory: str) -> SpikingNet:
    stages = [(BasicBlock, 4, blocks, 1)]
    made = SpikingNet(stem=Conv2d(3, 4, 3, bias=False), stages=stages, head=GlobalHead, num_classes=5, image_size=32)
    set_memory(made, memory)
    return made


@pytest.mark.parametrize("memory", ["speed", "packed"])
def test_small_operations_do_not_grow_with_the_network(memory: str) -> None:
    shallow, deep = (operations(network_of(blocks, memory)) for blocks in (2, 5))
    assert deep["convolution"] - shallow["convolution"] == 2 * 3
    for name in ("_foreach_copy_", "_foreach_lerp_", "lerp_", "zeros"):
        assert deep[name] == shallow[name] == {"_foreach_copy_": 2, "_foreach_lerp_": 1}.get(name, 0), name
    if memory == "speed":  # bits are cast where they are unpacked
        assert deep["_to_copy"] == shallow["_to_copy"]
