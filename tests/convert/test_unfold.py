"""A folded network becomes one that can be trained again, and is the same one."""

from itertools import islice

import pytest
import torch
from torch import nn

from rheobase import recipes
from rheobase.convert import convert
from rheobase.convert.unfold import unfold
from rheobase.data import load
from rheobase.data.feed import Feed
from rheobase.deploy.agreement import agreement, record
from rheobase.deploy.folding import fold
from rheobase.models import MSBlock, build
from rheobase.nn import Conv2d, QcfsSoma, ReluSoma, Soma, as_sequence, somas
from tests.convert.networks import Single, pixels, relu_net
from tests.deploy.networks import images, randomise

IF = {"decay": 1.0, "reset": "soft"}


def test_unfolding_undoes_folding() -> None:
    recipe = recipes.get("demo").changed(["batch_size=20"])
    feed = Feed(load("digits"), recipe, torch.device("cpu"), torch.float64)
    batches = [x for x, *_ in islice(feed.training(0), 2)]
    for name in ("resnet8", "plain5"):
        options = {"num_classes": 10, "in_channels": 1, "image_size": 8, "v_th": 0.7}
        network = fold(randomise(build(name, **options), 8).double())
        model = build(name, **options).double()
        unfold(network, model, batches, 3)
        expected, found = (record(n.eval(), batches[0], 3) for n in (network, fold(model)))
        assert not any(agreement(expected, found).layers.values())
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-9)

        measured = {path: soma.running_var.clone() for path, soma in somas(model).items()}
        model.train()(torch.cat(batches), 3)  # with moments of the batch, which are the running ones of the same images
        for path, soma in somas(model).items():
            torch.testing.assert_close(soma.running_var, measured[path], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["resnet8", "plain5"])
def test_a_converted_network_fires_the_same_spikes(name: str) -> None:
    """Its layers have thresholds of their own, the somas one for all."""
    options = {"num_classes": 7, "in_channels": 2, "image_size": 8}
    twin = build(name, **options, soma=ReluSoma).double().train()
    x = images(30, 2, 8)
    with torch.no_grad():
        twin(x, 1)
    network = convert(twin, "rmp", 6, images(30, 2, 8, seed=3))  # others: a current that equals a threshold is a tie
    assert len({node.v_th[0].item() for n, node in network.nodes.items() if "soma" in n}) > 3
    model = build(name, **options, **IF, v_th=0.7).double()
    unfold(network, model, [x[:15], x[15:]], 6)
    expected, found = (record(n.eval(), x, 6) for n in (network, model))
    assert not any(agreement(expected, found).layers.values())
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-9)


class Spiking(nn.Module):
    """The spiking network in the place of a `Single`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.decode, self.soma = Conv2d(1, 1, 1, bias=False), nn.Linear(1, 1), Soma(1, **IF)
        self.double()

    def forward(self, x: torch.Tensor, timesteps: int | None = None) -> torch.Tensor:
        return self.decode(self.soma(self.conv(as_sequence(x, timesteps))).flatten(2))


def test_a_potential_at_the_start_is_spread_over_the_steps() -> None:
    """A threshold of 1 and a current of 3/8: half a threshold in 8 steps is 1/16 more at each of them.

    7/16, 14/16, 21/16: a spike; 5/16 are left; 12/16, 19/16: the next; 10/16, 17/16: the third; 8/16.
    """
    relu = Single(1.0, soma=QcfsSoma)
    with torch.no_grad():
        relu.soma.threshold.fill_(1.0)
    model = Spiking()
    unfold(convert(relu, "qcfs", 8), model, [pixels(0.1, 0.4)], 8)
    assert model.eval()(pixels(3 / 8), 8).flatten().round().tolist() == [0, 0, 1, 0, 1, 0, 1, 0]


def test_other_networks_are_refused() -> None:
    network, x = convert(relu_net(), "data-norm", 4, images(5, 2, 8)), [images(5, 2, 8)]
    with pytest.raises(ValueError, match=r"^its layers of neurons differ$"):
        unfold(network, build("plain5", image_size=8), x, 4)
    with pytest.raises(ValueError, match=r"^the synapses of .* differ in shape$"):
        unfold(network, relu_net(soma=Soma, **IF).apply(_narrower), x, 4)
    currents = convert(relu_net(MSBlock), "data-norm", 4, images(5, 2, 8))
    with pytest.raises(ValueError, match="does not normalise its input, so tdBN cannot be put back"):
        unfold(currents, relu_net(MSBlock, soma=Soma, **IF), x, 4)


def _narrower(module: nn.Module) -> None:
    if isinstance(module, Conv2d):
        module.weight = nn.Parameter(module.weight.detach()[..., :1])
