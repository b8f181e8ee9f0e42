"""A deployed network does the same in one go as node by node."""

import pytest
import torch
from torch import nn

from rheobase import kernels
from rheobase.deploy.convolution import convolution
from rheobase.deploy.folding import fold
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale
from rheobase.deploy.quantize import quantize
from rheobase.models.blocks import BasicBlock, MSBlock, PooledBlock, PooledHead, SEWBlock
from tests.deploy.networks import images, styled, trained_like


def _network(last: str, v_th: torch.Tensor, fraction_bits: int | None = None) -> Network:
    """Two scales, of which neurons read both and `last` reads one more."""
    torch.manual_seed(0)
    weights = torch.randn(2, 3, dtype=torch.float64)
    nodes: dict[str, nn.Module] = {
        "first": Scale(weights[0], None),
        "second": Scale(weights[1], None),
        "neurons": LIF(0.5, v_th.double(), fraction_bits),
        "synapse": convolution(torch.randn(5, 3, 1, 1, dtype=torch.float64), None),
    }
    inputs = {"first": [INPUT], "second": [INPUT], "neurons": ["first", "second"], "synapse": [last]}
    return Network(nodes, inputs)


@pytest.mark.parametrize("last", ["neurons", "second"])
@pytest.mark.parametrize(
    ("v_th", "fraction_bits"), [([0.4, 0.4, 0.4], None), ([0.2, 0.4, 0.6], None), ([0.4, 0.4, 0.4], 6)]
)
def test_scales_are_applied_whoever_does_it(last: str, v_th: list[float], fraction_bits: int | None) -> None:
    network = _network(last, torch.tensor(v_th), fraction_bits)
    x = torch.randn(4, 2, 3, 6, 7, dtype=torch.float64)
    *_, (name, expected) = network.run(x)
    assert name == "synapse"
    assert torch.equal(network(x), expected.flatten(2))
    assert 0.1 < dict(network.run(x))["neurons"].mean() < 0.9


def test_many_images_run_in_parts_and_steps_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = _network("neurons", torch.tensor([0.4, 0.4, 0.4]))
    network = Network(exact.nodes, exact.inputs, input_unit=0.5, input_largest=3, logit_unit=0.25)
    x = torch.randn(4, 5, 3, 6, 7, dtype=torch.float64)
    expected, found, state = network(x), [], None
    for x_t in x:
        logits, state = network.step(x_t, state)
        found.append(logits)
    assert torch.equal(torch.stack(found), expected)
    still = network(x[0], timesteps=4)
    monkeypatch.setattr("rheobase.deploy.network.TOGETHER", 8)  # two images at a time
    assert torch.equal(network(x), expected)
    assert torch.equal(network(x, timesteps=4.0), expected)  # type: ignore[arg-type]
    assert torch.equal(network(x[0], timesteps=4), still)


def test_a_state_of_another_batch_or_network_is_refused() -> None:
    network = _network("neurons", torch.tensor([0.4, 0.4, 0.4]))
    one, two = torch.randn(1, 3, 6, 7, dtype=torch.float64), torch.randn(2, 3, 6, 7, dtype=torch.float64)
    _, state = network.step(one)
    with pytest.raises(ValueError, match=r"^the state of 'neurons' has the shape \[1, 3, 6, 7\], but this step needs"):
        network.step(two, state)
    with pytest.raises(ValueError, match="the state has no potential of 'neurons'"):
        network.step(one, {})
    logits, _ = network.step(one, state)
    assert logits.shape == (1, 5 * 6 * 7)


@pytest.mark.parametrize("gpu", [False, True])  # where neurons add the biases
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_with_other_channels_are_refused(dtype: torch.dtype, gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "integrates", lambda x: gpu)
    nodes = {
        "conv": convolution(torch.randn(5, 3, 2, 2, dtype=dtype), torch.ones(5, dtype=dtype)),
        "neurons": LIF(0.5, torch.ones(5, dtype=dtype)),
        "readout": convolution(torch.randn(2, 5, 5, 6, dtype=dtype), None),
    }
    network = Network(nodes, {"conv": [INPUT], "neurons": ["conv"], "readout": ["neurons"]})
    for run in (network.step, lambda x: network(x, 1)):
        with torch.no_grad(), pytest.raises(ValueError, match=r"expected 3 channels, got 4 in input \[2, 4, 6, 7\]"):
            run(torch.randn(2, 4, 6, 7, dtype=dtype))


def test_every_node_sums_its_inputs() -> None:
    torch.manual_seed(0)
    kinds: dict[str, nn.Module] = {
        "conv": convolution(torch.randn(4, 3, 2, 2).double(), None),
        "scale": Scale(torch.randn(3).double(), torch.randn(3).double()),
        "pool": nn.AvgPool2d(2),
        "flatten": nn.Flatten(),
    }
    x = torch.randn(4, 2, 3, 6, 7, dtype=torch.float64)
    for name, node in kinds.items():
        halves = {half: Scale(torch.randn(3).double(), None) for half in ("one", "two")}
        wiring = {"one": [INPUT], "two": [INPUT], name: ["one", "two"]}
        values = dict(Network(halves | {name: node}, wiring).run(x))
        expected = node((values["one"] + values["two"]).flatten(0, 1)).unflatten(0, (4, 2))
        torch.testing.assert_close(values[name], expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"^node 'one': it has the same input twice; double it in a synapse"):
        Network({"one": kinds["pool"]}, {"one": [INPUT, INPUT]})
    with pytest.raises(ValueError, match=r"^node 'one': expected at least one input, got none$"):
        Network({"one": kinds["pool"]}, {"one": []})


@pytest.mark.parametrize(
    ("style", "reset"), [(BasicBlock, "hard"), (SEWBlock, "soft"), (MSBlock, "hard"), (PooledBlock, "soft")]
)
def test_on_a_gpu_neurons_do_more_and_fire_the_same_spikes(
    style: type[nn.Module], reset: str, triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, Triton's interpreter takes its place."""
    model = styled(style, PooledHead, reset=reset, learn_decay="channel").to(triton_device)
    network, x = fold(model), images(3, 2, 8).to(triton_device)
    expected, whole = model(x, timesteps=4), dict(network.run(x, 4))
    monkeypatch.setattr(kernels, "integrates", lambda x: True)
    torch.testing.assert_close(network(x, 4), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(network(x[None].expand(4, -1, -1, -1, -1)), expected, rtol=1e-9, atol=1e-9)
    spikes = {name: value for name, value in network.run(x, 4) if isinstance(network.nodes[name], LIF)}
    assert all(torch.equal(value, whole[name]) for name, value in spikes.items())
    integers = quantize(network.cpu(), x.cpu(), 4).to(x.device)
    logits = integers(x, 4)
    monkeypatch.undo()
    assert torch.equal(logits.cpu(), integers.cpu()(x.cpu(), 4))


def test_a_gpus_neurons_add_the_biases() -> None:
    network = fold(styled(BasicBlock))
    biased = {name for name, node in network.nodes.items() if isinstance(node, nn.Conv2d) and node.bias is not None}
    scaled = {name for name, node in network.nodes.items() if isinstance(node, Scale)}
    assert biased
    assert scaled
    assert {n for n, left in network._left_to_neurons(with_biases=True).items() if left.bias is not None} == biased
    assert network._left_to_neurons(with_biases=False).keys() == scaled


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("name", ["resnet8", "resnet19", "sew_resnet19", "ms_resnet19"])
def test_on_a_gpu_it_equals_the_trained_network_and_never_waits(name: str) -> None:
    model = trained_like(name, 16, in_channels=3, image_size=16)
    model.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network, x = fold(model), images(3, 3, 16).cuda()
    expected = model(x, timesteps=5)
    network(x, 5)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        logits = network(x, 5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)


@needs_gpu
@pytest.mark.parametrize("integer", [False, True], ids=["float", "int8"])
def test_it_fits_into_a_cuda_graph(integer: bool) -> None:
    network, x = fold(styled(BasicBlock)), images(3, 2, 8)
    network = (quantize(network, x, 4) if integer else network).cuda()
    held = torch.zeros_like(x).cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        network(held, 4)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = network(held, 4)
    held.copy_(x)
    graph.replay()
    torch.testing.assert_close(logits, network(x.cuda(), 4), rtol=0, atol=0)


@needs_gpu
def test_on_a_gpu_gradients_are_still_there() -> None:
    network, x = fold(styled(BasicBlock)).cuda(), images(3, 2, 8).cuda().requires_grad_()
    network(x, 4).sum().backward()
    assert x.grad is not None
    assert x.grad.any()
