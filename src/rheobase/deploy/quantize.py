"""Integer networks: int8 weights per channel, integer thresholds, fixed-point decay.

Weights are integers times a unit, the size of an int8 step. All branches of a neuron have the same unit per channel,
and so do all neurons that share a branch, such as those along a stream of currents. Biases, thresholds and potentials
are integers times the unit over 2**FRACTION_BITS and fit into 32 bits. The decay is an integer over 2**FRACTION_BITS.
So a timestep of a layer adds int8 weights, decays by a product and a shift, and compares. Two kinds of weights have
FRACTION_BITS as well, 16 bits in all: identity scales, and the weights of the first layer, which multiplies pixels
anyway and whose errors affect all other layers. If 8 bits flip too many spikes, all weights can have 16. The readout
has one unit for all classes, so its sums can be compared directly. Images are rounded to integers of 13 bits, or of 10
where the first layer shares its unit with 8-bit weights.

Layers are rounded in order of execution, for the spikes that the integer layers before them send (see `rounding`). What
the mean current of a channel loses by rounding its weights is added to its bias. What it loses by flipped spikes is
not: a correction found on some images is mostly noise on others.

The result is a `Network` whose numbers are such integers (over a power of two), held in float64, which is exact.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from rheobase import functional
from rheobase.deploy.calibration import Calibration
from rheobase.deploy.convolution import convolution
from rheobase.deploy.lower import as_scale, lower, origin
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale
from rheobase.deploy.pairs import FRACTION_BITS, LARGEST_INPUT
from rheobase.deploy.rounding import LARGEST, rounded

__all__ = ["quantize"]

BITS = (8, 16)  # of the weights
STEPS = 64  # neurons that do not leak must not overflow within so many, or within those of the calibration
COARSEST, COARSEST_WIDE = 16, 256  # how much coarser units may be for that, of 8-bit weights and of wider ones
WIDE_INPUT = 4095
_ONE = 2.0**FRACTION_BITS

Tell = Callable[[int, int], None]  # how many layers, or images, of how many are done


def silent(done: int, whole: int) -> None:
    """Tell nobody."""


@torch.no_grad()
def quantize(
    network: Network, images: Tensor, timesteps: int | None = None, tell: Tell = silent, *, bits: int = 8
) -> Network:
    """Return the integer version of `network`, calibrated on some `images` without labels.

    These are images [N, C, H, W], shown for `timesteps`, or sequences [T, N, C, H, W], on the device of the network.
    `tell` is called before every layer, with the number of layers that are done and of all. `bits` is 8 or 16: 8 means
    that most weights have 8 bits, 16 that all have 16.
    """
    if bits not in BITS:
        raise ValueError(f"quantize: expected weights of {' or '.join(map(str, BITS))} bits, got {bits}")
    if network.integer:
        raise ValueError("this network is quantised already")
    timesteps = functional.check_sequence(images, timesteps)
    exact = lower(network, tuple(images.shape[-3:])).double()
    convolutions = {name: node for name, node in exact.nodes.items() if isinstance(node, nn.Conv2d)}
    _check(exact)
    first = {name for name in convolutions if exact.inputs[name] == (INPUT,)}
    largest_input = _largest_input(exact, first)
    input_unit = _input_unit(images, largest_input)
    for name in first:  # a convolution reads spikes, or multiples of the input unit
        convolutions[name].weight.mul_(input_unit)
    scales = {name for name in convolutions if isinstance(network.nodes[origin(name, network)], Scale)}
    wide = first | scales if bits == 8 else set(convolutions)
    sequence = images[None] if images.ndim == 4 else images
    device = next(exact.parameters()).device
    calibration = Calibration(exact, (sequence.to(device, torch.float64) / input_unit).round(), timesteps)
    reads = {name: largest_input if name in first else len(exact.inputs[name]) for name in convolutions}
    units = _units(exact, convolutions, wide, scales - first, reads, timesteps)
    nodes: dict[str, nn.Module] = {}
    for name, node in exact.nodes.items():
        if isinstance(node, LIF):
            tell(sum(layer in nodes for layer in units), len(units) + 1)
            unit = units[name]
            synapses = {source: convolutions[source] for source in exact.inputs[name] if source not in nodes}
            if synapses:
                nodes |= _integers(synapses, unit, wide, calibration.inputs(synapses))
            nodes[name] = neurons = _neurons(node, unit)
            sums = torch.stack([_largest_sums(nodes[source], reads[source]) for source in exact.inputs[name]]).sum(0)
            largest = sums * _steps(node, timesteps) + torch.as_tensor(neurons.initial).abs()
            if largest.max() * _ONE >= 2**31:
                raise ValueError(f"quantize: the sums of '{name}' may not fit 32 bits")
            calibration.fire(name, nodes)
    *_, (last, readout) = exact.nodes.items()
    logit_unit = 1.0
    if isinstance(readout, nn.Conv2d):  # neurons yield spikes, which have no unit
        tell(len(units), len(units) + 1)
        logit_unit = readout.weight.abs().max().item() / LARGEST or 1.0
        unit = readout.weight.new_full((len(readout.weight),), logit_unit)
        nodes |= _integers({last: readout}, unit, wide, calibration.inputs({last: readout}))
    for name in scales:
        conv = nodes[name]
        assert isinstance(conv, nn.Conv2d)
        nodes[name] = as_scale(conv) or conv
    ordered = {name: nodes[name] for name in exact.nodes}
    return Network(
        ordered,
        exact.inputs,
        input_unit=input_unit,
        input_largest=largest_input,
        logit_unit=logit_unit,
        info=network.info | {"bits": bits},
    ).eval()


def _check(network: Network) -> None:
    """Raise a ValueError unless synapses lead from the image, or from neurons, to neurons."""
    for name, node in network.nodes.items():
        sources = network.inputs[name]
        for source in sources:
            from_synapse = source != INPUT and not isinstance(network.nodes[source], LIF)
            if from_synapse != isinstance(node, LIF):
                raise ValueError(f"quantize: '{name}' cannot follow '{source}'; neurons and synapses must alternate")
        if INPUT in sources and len(sources) > 1:
            raise ValueError(f"quantize: '{name}' reads the image and spikes, which have no unit in common")


def _units(
    network: Network,
    convolutions: Mapping[str, nn.Conv2d],
    wide: set[str],
    shortcuts: set[str],
    reads: Mapping[str, int],
    timesteps: int,
) -> dict[str, Tensor]:
    """The unit [C] of every layer of neurons; `reads` has the largest input of every synapse."""
    units: dict[str, Tensor] = {}
    for group in _sharing(network):
        neurons = [node for name in group if isinstance(node := network.nodes[name], LIF)]
        synapses = {source: convolutions[source] for name in group for source in network.inputs[name]}
        weights = [conv.weight for source, conv in synapses.items() if source not in shortcuts]
        # identity shortcuts alone are wide enough in any unit
        unit = int8_unit(weights) if weights else torch.stack([lif.v_th for lif in neurons]).amin(0) / LARGEST
        biases = [conv.bias.abs() for conv in synapses.values() if conv.bias is not None]
        coarsest = unit * (COARSEST_WIDE if synapses.keys() <= wide else COARSEST)
        for name, lif in zip(group, neurons, strict=True):
            steps = _steps(lif, timesteps)
            # a channel with hardly any weights needs no unit as fine as they are
            level = torch.stack([lif.v_th, *biases]).amax(0)
            unit = torch.maximum(unit, level * steps / 2**22)
            # what adds up for long needs room; what rounding adds to it stays below a sixteenth
            sums = sum(_largest_sums(convolutions[source], reads[source]) for source in network.inputs[name])
            unit = torch.maximum(unit, torch.minimum(coarsest, sums * steps * _ONE / 2**31 * 16 / 15))
        units |= dict.fromkeys(group, unit)
    return units


def _sharing(network: Network) -> list[list[str]]:
    """The layers of neurons, those together that share a synapse, directly or through others."""
    groups: list[tuple[set[str], list[str]]] = []
    for name, node in network.nodes.items():
        if isinstance(node, LIF):
            synapses, layers = set(network.inputs[name]), [name]
            for group in [group for group in groups if group[0] & synapses]:
                groups.remove(group)
                synapses, layers = synapses | group[0], group[1] + layers
            groups.append((synapses, layers))
    return [layers for _, layers in groups]


def _largest_input(network: Network, first: set[str]) -> int:
    """13 bits, unless the layers that read the image share the unit of others: those would become too coarse."""
    for group in _sharing(network):
        synapses = {source for name in group for source in network.inputs[name]}
        if synapses & first and not synapses <= first:
            return LARGEST_INPUT
    return WIDE_INPUT


def _input_unit(images: Tensor, largest_input: int) -> float:
    """Counts of events are integers already; other inputs are scaled so that the largest takes the whole range."""
    largest = images.abs().max().item()
    if largest <= largest_input and torch.equal(images, images.round()):
        return 1.0
    return largest / largest_input


def int8_unit(weights: list[Tensor]) -> Tensor:
    """The unit [C] in which the largest weight of each output channel is 127."""
    unit = torch.stack([w.detach().abs().flatten(1).amax(1) for w in weights]).amax(0) / LARGEST
    return torch.where(unit > 0, unit, 1.0)


def in_units(weight: Tensor, unit: Tensor) -> Tensor:
    """Weights [C, ...] as integers, in multiples of unit [C]."""
    return torch.round(weight.detach() / unit.view(-1, *[1] * (weight.ndim - 1)))


def _integers(
    synapses: Mapping[str, nn.Conv2d], unit: Tensor, wide: set[str], inputs: Mapping[str, Tensor]
) -> dict[str, nn.Module]:
    """The synapses of one layer in multiples of unit [C]: integers, or with fraction bits if they are `wide`.

    The first gets the bias by which the mean current of the same `inputs` stays what it was.
    """
    weights, lacking = {}, torch.zeros_like(unit)
    for name, conv in synapses.items():
        weight = (conv.weight / unit.view(-1, 1, 1, 1)).flatten(1)
        weights[name] = torch.round(weight * _ONE) / _ONE if name in wide else rounded(weight, inputs[name])
        lacking += (weight - weights[name]) @ inputs[name].mean(0, dtype=torch.float64)
    nodes: dict[str, nn.Module] = {}
    for name, conv in synapses.items():
        bias = None if conv.bias is None else conv.bias / unit
        if not nodes:
            bias = lacking if bias is None else bias + lacking
        bias = None if bias is None else torch.round(bias * _ONE) / _ONE
        assert not isinstance(conv.padding, str)
        nodes[name] = convolution(weights[name].view_as(conv.weight), bias, conv.stride, conv.padding, conv.dilation)
    return nodes


def _neurons(lif: LIF, unit: Tensor) -> LIF:
    # half a step above the integer threshold, so that no rounding elsewhere can turn "equal" into "above"
    v_th = (torch.floor(lif.v_th / unit * _ONE) + 0.5) / _ONE
    initial = torch.round(lif.initial / unit * _ONE) / _ONE
    at_rest = not initial.any()
    return LIF(_decay(lif.decay), v_th, FRACTION_BITS, reset=lif.reset, initial=0.0 if at_rest else initial)


def _decay(decay: float | Tensor) -> float | Tensor:
    """In fixed point; what leaks goes on leaking."""
    exact = torch.as_tensor(decay, dtype=torch.float64)
    fixed = torch.where(exact == 1, 1.0, torch.round(exact * _ONE).clamp(max=_ONE - 1) / _ONE)
    return fixed if isinstance(decay, Tensor) else fixed.item()


def _steps(lif: LIF, timesteps: int) -> Tensor:
    """How many times the largest current a potential can be; a number, or one per channel."""
    decay = torch.as_tensor(_decay(lif.decay), dtype=torch.float64)
    return torch.where(decay == 1, max(STEPS, timesteps), 1 / (1 - decay))


def _largest_sums(conv: nn.Module, largest: int) -> Tensor:
    """The largest current [C] that the convolution can cause, by inputs of at most `largest`."""
    assert isinstance(conv, nn.Conv2d)
    sums = conv.weight.abs().sum((1, 2, 3)) * largest
    return sums if conv.bias is None else sums + conv.bias.abs()
