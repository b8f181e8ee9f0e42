"""Compare a trained network with its deployed versions on real data."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import comb
from pathlib import Path

import torch
from torch import Tensor

from rheobase.analysis.operations import IMAGES, operations
from rheobase.data.feed import Feed, first_images
from rheobase.deploy import nirfile
from rheobase.deploy.agreement import Agreement, Record, agreement, record
from rheobase.deploy.formats import nir
from rheobase.deploy.formats.onnx import Session
from rheobase.deploy.network import Network
from rheobase.deploy.quantize import Tell, silent
from rheobase.deploy.simulate import simulate
from rheobase.functional import readout
from rheobase.tasks.open import About, about, open_dataset, open_file, open_with_spikes
from rheobase.train.runs import Run, load_network
from rheobase.train.switches import cudnn

__all__ = ["Comparison", "Verification", "verify"]

LOSS, LOSS_INT8 = 0.0005, 0.003  # accepted loss of accuracy
CHANCE = 0.1  # a loss that is less likely than this for equal networks is not put down to chance
SAME_PREDICTIONS = 0.99
SAME_LOGITS = 1e-4  # for float32 weights in double precision

CPU = torch.device("cpu")

Batch = tuple[Tensor, Tensor]
Forward = Callable[..., Tensor]  # (x, timesteps) -> logits [T, N, K]


@dataclass(frozen=True)
class Verification:
    """The results of a file, compared with the network it came from."""

    agreement: Agreement  # on the first images, in double precision if the file allows it
    logits: float  # largest difference, relative to the largest logit
    images: int  # all test images, on which accuracy is measured
    right: int  # images that the trained network recognises
    lost: int  # of these, the images that the file does not recognise
    won: int  # images that only the file recognises
    bits: int | None  # of the weights, if the network is quantised
    operations: tuple[float, float] | None  # additions and multiplications per image, if the file shows its spikes
    simulation: "Comparison | None"

    @property
    def integer(self) -> bool:
        """Whether the file is a quantised network."""
        return self.bits is not None

    @property
    def trained(self) -> float:
        """Accuracy of the trained network."""
        return self.right / self.images

    @property
    def deployed(self) -> float:
        """Accuracy of the file."""
        return (self.right - self.lost + self.won) / self.images

    @property
    def simulated_alike(self) -> bool:
        """Whether the simulator found no different spike; true if it did not run."""
        found = self.simulation
        return found is None or (found.different == 0 and found.logits <= SAME_LOGITS)

    @property
    def passed(self) -> bool:
        """Whether the file is as good as the run."""
        if not self.simulated_alike:
            return False
        fewer = (self.lost - self.won) / self.images
        if self.integer:
            return fewer <= LOSS_INT8
        return abs(fewer) <= LOSS and self.agreement.predictions >= SAME_PREDICTIONS

    @property
    def only_rounded(self) -> bool:
        """Whether the file is an integer version that runs as it should, whatever its accuracy."""
        return self.integer and self.simulated_alike

    @property
    def by_chance(self) -> bool:
        """Whether equally good networks would often lose as many of the images on which they differ (sign test)."""
        changed = self.lost + self.won
        return sum(comb(changed, k) for k in range(self.lost, changed + 1)) / 2**changed > CHANCE

    @property
    def verdict(self) -> str:
        """The result in words."""
        if not self.passed and self.only_rounded:
            fewer = f"{self.lost - self.won} of {self.images} test images fewer ({self.lost} lost, {self.won} won)"
            chance = ", which may be chance: measure it on more images" if self.by_chance else ""
            return f"less accurate than the trained network: {fewer}{chance}"
        if not self.passed:
            return "NOT the same network"
        same_spikes = self.agreement.layers and not any(self.agreement.layers.values())
        if same_spikes and self.logits <= SAME_LOGITS:
            return "the same network, spike for spike"
        return "as accurate as the trained network"


@dataclass(frozen=True)
class Comparison:
    """The reference simulator compared with the file's network in torch."""

    images: int
    different: int  # spikes
    logits: float  # largest difference, relative to the largest logit


@torch.no_grad()
def recognised(forward: Forward, batches: Iterable[Batch], timesteps: int) -> Tensor:
    """Return which images the network classifies correctly."""
    found = [readout(forward(x, timesteps)).argmax(1).cpu() == labels.cpu() for x, labels in batches]
    return torch.cat(found)


def verify(
    path: Path | str,
    source: Run | Path | str,
    *,
    data: Path | str | None = None,
    images: int = 32,
    simulated: int = 1,
    device: torch.device = CPU,
    right: Tensor | None = None,
    tell: Tell = silent,
) -> Verification:
    """Compare the file at `path` with the network it came from, on some `images` in detail and on all for accuracy.

    `source` is the run of that network, or the file of a converted network. `right` says which images it recognises, if
    that is known already. One network after the other sees all images; `tell` is called after each batch, with the
    numbers of images that are done and of all.
    """
    path, data = Path(path), None if data is None else Path(data)
    source = source if isinstance(source, Run) else Path(source)
    graph = nirfile.read(path) if path.suffix == nir.SUFFIX else None  # parsed once, for torch and the simulator
    network = open_file(path) if graph is None else nir.from_graph(graph, str(path))
    if isinstance(source, Run):
        _refuse_converted(path, network)
        model, own_about = load_network(source), About(source.recipe, source.data)
    else:
        model = open_with_spikes(source, source)
        own_about = about(model, source)
    recipe = own_about.recipe
    timesteps = recipe.timesteps
    _refuse_another(path, about(network, path), source, own_about)
    dataset = open_dataset(source, own_about, data)
    simulation = counted = None

    x, _ = first_images(dataset, recipe, images, torch.float64)
    expected = record(model.to(device, torch.float64), x.to(device), timesteps).cpu()
    if isinstance(network, Network):
        own = record(network.to(device, torch.float64), x.to(device), timesteps).cpu()
        if graph is not None and simulated:
            simulation = _simulation(graph, own, x, timesteps, min(simulated, x.shape[-4]))
        few, _ = first_images(dataset, recipe, IMAGES, torch.float64)
        counted = operations(network, few.to(device), timesteps).count()
    else:  # an ONNX file does not show its spikes
        expected, own = Record({}, expected.logits), Record({}, network(x, timesteps).double())

    dtype = torch.float64 if network.integer else torch.float32
    deployed = network.to(device, dtype) if isinstance(network, Network) else network
    where = device if isinstance(network, Network) else torch.device("cpu")
    with cudnn(allow_tf32=False):  # TF32 would flip spikes
        if right is None:
            batches = Feed(dataset, recipe, device, torch.float32, tell=tell).testing()
            right = recognised(model.to(device, torch.float32), batches, timesteps)
        found = recognised(deployed, Feed(dataset, recipe, where, dtype, tell=tell).testing(), timesteps)
    return Verification(
        agreement=agreement(expected, own),
        logits=_difference(expected.logits, own.logits),
        images=len(found),
        right=int(right.sum()),
        lost=int((right & ~found).sum()),
        won=int((found & ~right).sum()),
        bits=_bits(network),
        operations=counted,
        simulation=simulation,
    )


def _refuse_converted(path: Path, network: Network | Session) -> None:
    """Raise a ValueError for a converted network: the ReLU network that it came from has no spikes to compare."""
    if "converted" in network.info:
        raise ValueError(
            f"{path} was converted from a ReLU network, which has no spikes to compare; measure it with `rheobase "
            "eval`, or, if it was exported from a converted file, give that file instead of the run"
        )


def _refuse_another(path: Path, stated: About, source: Run | Path, own: About) -> None:
    for what, one, other in (
        ("network", stated.recipe.network, own.recipe.network),
        ("number of timesteps", stated.recipe.timesteps, own.recipe.timesteps),
        ("image shape", stated.data.shape, own.data.shape),
        ("classes", stated.data.classes, own.data.classes),
        ("normalisation", (stated.data.mean, stated.data.std), (own.data.mean, own.data.std)),
    ):
        if one != other:
            raise ValueError(
                f"{path} and {source} differ in their {what}; give the run that the file was exported from"
            )


def _bits(network: Network | Session) -> int | None:
    """Return the bits of its weights if it is quantised. Files of older versions have 8 and do not say so."""
    if not network.integer:
        return None
    return 16 if network.info.get("bits") == 16 else 8


def _difference(expected: Tensor, found: Tensor) -> float:
    """Return the largest difference of the logits, relative to the largest logit."""
    return ((expected - found).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


def _simulation(graph: nirfile.Graph, own: Record, x: Tensor, timesteps: int, images: int) -> Comparison:
    different, logits = 0, []
    for i in range(images):
        result = simulate(graph, x[i].numpy(), timesteps) if x.ndim == 4 else simulate(graph, x[:, i].numpy())
        for name, spikes in result.spikes.items():
            different += int((torch.from_numpy(spikes).flatten(1) != own.spikes[name][:, i]).sum())
        logits.append(torch.from_numpy(result.logits))
    return Comparison(images, different, _difference(own.logits[:, :images], torch.stack(logits, 1)))
