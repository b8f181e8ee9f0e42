import pytest
import torch

from rheobase.analysis.variants import NoNorm, StepNorm
from rheobase.models import SpikingNet, build
from rheobase.nn import AvgPool2d, Conv2d, Soma
from rheobase.recipes import Recipe
from rheobase.tasks.gradients import gradient_norms, inner_layers


def plain(**options: object) -> SpikingNet:
    torch.manual_seed(0)
    return build("plain20", num_classes=5, in_channels=2, image_size=6, channels=12, **options)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(7, 2, 6, 6), torch.randint(5, (7,))) for _ in range(count)]


def recipe(timesteps: int = 2, precision: str = "fp32") -> Recipe:
    return Recipe(
        name="r", data="noise", network="plain20", timesteps=timesteps, epochs=1, batch_size=7, precision=precision
    )


def test_norms_are_those_of_autograd() -> None:
    network, ((x, labels),) = plain(), batches(1)
    found = gradient_norms(network, [(x, labels)], recipe(3), learn=False)
    network.train().zero_grad()
    torch.nn.functional.cross_entropy(network(x, 3).mean(0), labels).backward()
    expected = [float(network.body[i].conv.weight.grad.norm()) for i in range(17)]
    assert found.weights == pytest.approx(expected, rel=1e-4)
    assert len(found.layers) == len(found.spikes) == 17
    assert found.ratio == pytest.approx(expected[0] / expected[-1], rel=1e-4)
    assert found.steps == 1


def test_gradients_vanish_without_normalisation_only() -> None:
    with_tdbn = gradient_norms(plain(decay=0.0), batches(2), recipe())
    without = gradient_norms(plain(decay=0.0, soma=NoNorm), batches(2), recipe())
    assert 0.1 < with_tdbn.spike_ratio < 10
    assert not without.spikes[0] > 1e-3 * with_tdbn.spikes[0]


def test_the_step_moves_the_weights_unless_told_otherwise() -> None:
    network = plain()
    before = network.body[0].conv.weight.clone()
    gradient_norms(network, batches(1), recipe(), learn=False)
    assert torch.equal(network.body[0].conv.weight, before)
    gradient_norms(network, batches(1), recipe())
    assert not torch.equal(network.body[0].conv.weight, before)


def test_shortcuts_are_left_out() -> None:
    torch.manual_seed(0)
    network = build("resnet8", num_classes=5, in_channels=2, image_size=6)
    found = gradient_norms(network, batches(1), recipe(), learn=False)
    assert len(found.weights) == len(found.layers) == 6


def test_a_frozen_synapse_has_no_gradient() -> None:
    network = plain()
    network.body[2].conv.requires_grad_(False)
    found = gradient_norms(network, batches(1), recipe())
    assert found.weights[2] == 0
    assert min(found.weights[:2] + found.weights[3:]) > 0


def test_half_precision_gives_about_the_same() -> None:
    exact, half = (gradient_norms(plain(decay=0.0), batches(1), recipe(precision=p)) for p in ("fp32", "bf16"))
    assert half.weights == pytest.approx(exact.weights, rel=0.5)
    assert half.weights != exact.weights


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("soma", [Soma, StepNorm, NoNorm])
def test_captured_norms_are_those_of_a_cpu_gpu(soma: type[Soma]) -> None:
    cpu = [(x.double(), labels) for x, labels in batches(6)]
    gpu = [(x.cuda(), labels.cuda()) for x, labels in cpu]
    expected = gradient_norms(plain(soma=soma).double(), cpu, recipe(precision="fp64"))
    found = gradient_norms(plain(soma=soma).double().cuda(), gpu, recipe(precision="fp64"))
    assert found.weights == pytest.approx(expected.weights, rel=1e-6)
    assert found.spikes == pytest.approx(expected.spikes, rel=1e-6)


def test_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one batch"):
        gradient_norms(plain(), [], recipe())


def test_a_network_without_a_body_leaves_out_its_first_layer() -> None:
    network = torch.nn.Sequential(
        Conv2d(2, 3, 3), Soma(3), Conv2d(3, 4, 1), Soma(4), AvgPool2d(4), torch.nn.Linear(1, 2)
    )
    somas, synapses = inner_layers(network)
    assert (list(somas), list(synapses)) == (["3"], ["2"])
    with pytest.raises(ValueError, match="no layers between"):
        inner_layers(network[:2])
