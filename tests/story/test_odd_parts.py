"""Parts that are unlike ours, or broken: they work, or one sentence says why not."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from rheobase import recipes
from rheobase.nn import ReferenceSoma, Soma
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train import checkpoint, fit
from rheobase.train.runs import Run
from tests.story.plugin import Command

pytestmark = pytest.mark.slow

OTHERS = """
import torch
from torch import nn
from rheobase.nn import Conv2d, Soma, as_sequence
from rheobase.plugins import network, neuron, optimizer

class Standardised(Conv2d):
    def convolve(self, x):
        weight, self.weight.data = self.weight.data, self.weight.data / self.weight.data.std()
        try:
            return super().convolve(x)
        finally:
            self.weight.data = weight

class Small(nn.Module):
    def __init__(self, layers, in_channels, size, classes):
        super().__init__()
        self.layers, self.drop = nn.Sequential(*layers), nn.Dropout(0.1)
        self.decode = nn.Linear(8 * size * size, classes)

    def forward(self, x, steps=None):
        return self.decode(self.drop(self.layers(as_sequence(x, steps))).flatten(2))

@network
def standardised(num_classes, in_channels, image_size, decay, v_th, width):
    layers = [Conv2d(in_channels, 8, 3, padding=1, bias=False), Soma(8), Standardised(8, 8, 1, bias=False), Soma(8)]
    return Small(layers, in_channels, image_size, num_classes)

@network
def biased(num_classes, in_channels, image_size, **settings):
    layers = [Conv2d(in_channels, 8, 3, padding=1), Soma(8), Conv2d(8, 8, 3, padding=1), Soma(8)]
    return Small(layers, in_channels, image_size, num_classes)

@network
def single(num_classes, in_channels, image_size, **settings):
    return Small([Conv2d(in_channels, 8, 3, padding=1), Soma(8, **settings)], in_channels, image_size, num_classes)

@network
class Linear(nn.Module):
    def __init__(self, num_classes, in_channels, image_size, **settings):
        super().__init__()
        self.decode = nn.Linear(in_channels * image_size**2, num_classes)

    def forward(self, x, steps=None):
        return self.decode(as_sequence(x, steps).flatten(2))

@neuron
class Bare(nn.Module):
    def __init__(self, channels, branches=1, **settings):
        super().__init__()

    def forward(self, *xs):
        return (sum(xs) > 0.5).to(xs[0].dtype) + 0 * sum(xs)

class Counting(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            group["momentum"] = 0.5 + 0.4 / group["count"]
        return super().step(closure)

@optimizer
def counting(groups, lr, recipe):
    return Counting(groups, lr=lr, momentum=0.9)
"""


@pytest.fixture
def others(place: Path) -> tuple[str, ...]:
    Path("others.py").write_text(OTHERS)
    return ("--plugin", "mine.py", "--plugin", "others.py", "--set", "epochs=1", "--set", "optimizer=sgd")


def test_a_synapse_that_computes_in_a_way_of_its_own(rheobase: Command, others: tuple[str, ...]) -> None:
    plugin = others[:4]
    for memory in ("speed", "packed"):
        words = ("--set", "network=standardised", "--set", "neuron=lif", "--set", f"memory={memory}", "--out", memory)
        code, _, err = rheobase("train", "stripes_tiny", *words, *others)
        assert code == 0, err
        assert ("because it has its own convolve method" in err) == (memory == "packed")
    assert Run(Path("packed")).rows()[0]["loss"] == Run(Path("speed")).rows()[0]["loss"]
    code, _, err = rheobase("fold", "speed", *plugin)
    assert (code, "fold: layers.2 (Standardised) overrides the computation of its base class" in err) == (1, True)


@pytest.mark.parametrize("changes", [("network=biased",), ("network=single",), ("network=resnet8", "neuron=Bare")])
def test_other_networks_go_the_whole_way(rheobase: Command, others: tuple[str, ...], changes: tuple[str, ...]) -> None:
    words = [word for change in ("neuron=lif", *changes) for word in ("--set", change)]
    plugin = others[:4]
    for command in (
        ("train", "stripes_tiny", *words, *others, "--out", "other"),
        ("plan", "stripes_tiny", *words, *others),
        ("eval", "other", *plugin),
        ("report", "other", *plugin),
        ("analyze", "other", *plugin),
        ("models", *plugin),
        ("analyze", "--network", "single", *plugin),
    ):
        code, _, err = rheobase(*command)
        assert code == 0, err
    code, _, err = rheobase("fold", "other", *plugin)
    assert code == (changes[-1] == "neuron=Bare"), err


@pytest.mark.parametrize("network", ["single", "Linear"])
def test_networks_with_one_layer_of_neurons_or_none_are_measured(
    rheobase: Command, others: tuple[str, ...], network: str
) -> None:
    plugin = others[:4]
    for command in (
        ("train", "stripes_tiny", "--set", "neuron=lif", "--set", f"network={network}", *others, "--out", "other"),
        ("eval", "other", "--sweep", *plugin),
        ("paper", "table1", "other", *plugin),
        ("export", "other", "--to", "nir", "--int8", *plugin),
        ("verify", "other/network-int8.nir", "other", *plugin),
    ):
        code, _, err = rheobase(*command)
        assert code == 0, err
    code, out, err = rheobase("paper", "fig6", "other", *plugin)
    if network == "single":
        assert (code, "second" in out) == (0, False), err
    else:
        assert (code, err) == (1, "error: other: its network has no layers of neurons, so there are no spikes\n")


def test_what_an_optimiser_keeps_in_its_groups_is_resumed(rheobase: Command, others: tuple[str, ...]) -> None:
    words = ("train", "stripes_tiny", *others[:4], "--set", "optimizer=counting", "--set", "epochs=3")
    assert rheobase(*words, "--out", "whole", "--save-every", "0")[0] == 0
    shutil.copytree("whole", "resumed")
    newest = max(Path("resumed/checkpoints").glob("0*"))
    shutil.rmtree(newest)
    assert rheobase("train", "--resume", "resumed", *others[:4])[0] == 0
    whole, resumed = (checkpoint.latest(Path(run) / "checkpoints") for run in ("whole", "resumed"))
    assert whole is not None
    assert resumed is not None
    assert whole.state["optimizer"]["group0.count"] == resumed.state["optimizer"]["group0.count"] == whole.step
    for name, tensor in whole.tensors["weights"].items():
        assert torch.equal(resumed.tensors["weights"][name], tensor), name


def test_a_part_with_the_name_of_one_of_ours_is_not_taken_for_it(tmp_path: Path) -> None:
    def mean(logits, labels, recipe):  # type: ignore[no-untyped-def]
        return 3 * torch.nn.functional.cross_entropy(logits.mean(0), labels)

    class lif(ReferenceSoma):
        def fire(self, current: torch.Tensor) -> torch.Tensor:
            fired.append(1)
            return super().fire(current)

    fired: list[int] = []
    recipe = recipes.get("demo").changed(["epochs=1", "batch_size=512", "timesteps=1"])
    run = fit(recipe, loss=mean, neuron=lif, out=tmp_path / "run", device="cpu")
    assert fired
    assert evaluate_run(run, device="cpu").loss == pytest.approx(run.rows()[-1]["test_loss"])
    with pytest.raises(ValueError, match="needs the neuron 'lif', which was passed in Python"):
        evaluate_run(run.folder, device="cpu")


BROKEN = """
import torch
from rheobase.data import Dataset, Split
from rheobase.nn import Soma
from rheobase.plugins import dataset, loss, network, optimizer
from mine import Tiny

@dataset
def keyless(path):
    return {}["train"]

@loss
def shapeless(logits, labels, recipe):
    return logits[0] - labels

@loss
def twice(logits, labels, recipe):
    return logits.mean((0, 2))

@network
def timeless(num_classes, in_channels, image_size, **soma):
    class Timeless(Tiny):
        def forward(self, x, timesteps=None):
            return super().forward(x, timesteps).mean(0)
    return Timeless(num_classes, in_channels, image_size, Soma)

@network
def narrow(num_classes, in_channels, image_size, **soma):
    return Tiny(num_classes - 1, in_channels, image_size, Soma)

@network
def twofold(num_classes, in_channels, image_size, **soma):
    class Twofold(Tiny):
        def forward(self, x, timesteps=None):
            return super().forward(x, timesteps), x
    return Twofold(num_classes, in_channels, image_size, Soma)

optimizer(torch.optim.Adam)

@optimizer
def newton(groups, lr, recipe):
    return torch.optim.LBFGS([p for group in groups for p in group["params"]], lr=lr)
"""


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data=keyless", r"broken.py, line 10: KeyError: 'train'"),
        ("loss=shapeless", r"broken.py, line 14: RuntimeError: The size of tensor"),
        ("loss=twice", r"loss 'twice': expected one number as a tensor, got \[40\]; return the mean"),
        ("network=timeless", r"network 'timeless': expected logits \[T, N, K\] = \[3, 40, 3\], got \[40, 3\]"),
        ("network=narrow", r"network 'narrow': expected logits \[T, N, K\] = \[3, 40, 3\], got \[3, 40, 2\]"),
        ("network=twofold", r"network 'twofold': expected logits \[T, N, K\] = \[3, 40, 3\], got tuple"),
        ("optimizer=Adam", r"optimizer 'Adam': torch's own class knows no recipe; wrap it"),
        ("optimizer=newton", r"optimizer 'newton': LBFGS repeats steps, which training does not; use another"),
    ],
)
def test_a_part_that_breaks_is_one_sentence_and_leaves_nothing(
    place: Path, rheobase: Command, setting: str, message: str
) -> None:
    Path("broken.py").write_text(BROKEN)
    words = ("train", "stripes_tiny", "--plugin", "mine.py", "--plugin", "broken.py", "--set", setting)
    code, _, err = rheobase(*words, "--set", "neuron=lif", "--out", "broken")
    assert code == 1
    assert re.match(f"error: {message}", err), err
    assert err.count("\n") == 1
    assert not Path("broken").exists()


def test_a_surrogate_in_the_wrong_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Wrong: the kernels of Soma do not call fire or spike; derive"):
        type("Wrong", (Soma,), {"spike": lambda self, u: u})
