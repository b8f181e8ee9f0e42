"""A deployed network as one safetensors file. The header holds the wiring as JSON. Loading a file runs no code."""

import json
from math import inf
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from rheobase.deploy.convolution import convolution
from rheobase.deploy.network import Network
from rheobase.deploy.nodes import LIF, Scale, linear
from rheobase.deploy.pairs import LARGEST_INPUT, pair, whole
from rheobase.files import atomic_write, first_line, parse_json

SUFFIX = ".safetensors"
FORMAT = "rheobase network 1"
_OPTIONS = {
    "Conv2d": ("stride", "padding", "dilation", "groups"),
    "Linear": (),
    "Scale": (),
    "AvgPool2d": ("kernel_size", "stride", "padding", "divisor_override"),
    "AdaptiveAvgPool2d": (),
    "Flatten": (),
    "LIF": ("decay", "fraction_bits"),
}
_LATER: dict[str, dict[str, Any]] = {
    "LIF": {"reset": "hard", "initial": 0.0}
}  # options that a file omits if they have these values


def save(network: Network, path: str | Path) -> None:
    """Write `network` to the file `path`."""
    nodes = [
        {
            "name": name,
            "kind": (kind := next(k for k in _OPTIONS if k in {c.__name__ for c in type(node).__mro__})),
            "inputs": network.inputs[name],
            "options": _options(kind, node),
        }
        for name, node in network.nodes.items()
    ]
    header = {
        "format": FORMAT,
        "nodes": json.dumps(nodes),
        "units": json.dumps([network.input_unit, network.logit_unit, network.input_largest]),
        "info": json.dumps(network.info),
    }
    tensors = {name: t.detach().cpu().contiguous() for name, t in network.nodes.state_dict().items()}
    with atomic_write(Path(path)) as part:
        part.write_bytes(safetensors.torch.save(tensors, header))


def write(network: Network, path: str | Path, input_shape: tuple[int, ...]) -> None:
    """Write `network` to the file `path`. The file does not store the shape of images."""
    save(network, path)


def load(path: str | Path) -> Network:
    """Return the network in the file `path`. A ValueError says what is wrong with a damaged file."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with safetensors.safe_open(path, "pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ValueError(f"its format is {header.get('format')!r}; expected {FORMAT!r}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        return _network(header, tensors)
    except KeyError as error:
        raise ValueError(f"{path}: not a file of a deployed network, or damaged: it has no {error}") from error
    except Exception as error:  # damaged files make safetensors and torch raise many kinds of errors
        raise ValueError(f"{path}: not a file of a deployed network, or damaged: {first_line(error)}") from error


def _network(header: dict[str, str], tensors: dict[str, Tensor]) -> Network:
    nodes, inputs = {}, {}
    for node in parse_json(header["nodes"]):
        name = node["name"]
        own = {key: tensors.get(f"{name}.{key}") for key in ("weight", "bias", "v_th", "decay", "initial")}
        if f"{name}.unit" in tensors:  # earlier versions wrote 8-bit weights, and one unit per output channel
            own["weight"] = _multiples(own["weight"], tensors[f"{name}.unit"])
        for key, tensor in own.items():
            if tensor is not None and not (tensor.is_floating_point() and bool(tensor.isfinite().all())):
                raise ValueError(f"{name}.{key} must hold finite floating-point numbers only")
        nodes[name] = _node(node["kind"], node["options"], **own)
        inputs[name] = node["inputs"]
    input_unit, logit_unit, *more = parse_json(header["units"])
    (largest,) = more or [LARGEST_INPUT]
    for unit in (logit_unit, *([] if input_unit is None else [input_unit])):
        if type(unit) not in (int, float) or not 0 < unit < inf:
            raise ValueError(f"its units are {input_unit} and {logit_unit}; expected numbers above 0")
    info = parse_json(header["info"])
    if not isinstance(info, dict):
        raise ValueError("its info about the training is not a JSON object")
    largest = whole(largest, 1, 2**52, "the largest input")
    return Network(
        nodes,
        inputs,
        input_unit=None if input_unit is None else float(input_unit),
        input_largest=largest,
        logit_unit=float(logit_unit),
        info=info,
    ).eval()


def _multiples(weight: Tensor | None, unit: Tensor) -> Tensor:
    fits = weight is not None and weight.dtype == torch.int8 and weight.ndim > 0 and unit.shape == weight.shape[:1]
    if weight is None or not fits or not unit.is_floating_point():
        raise ValueError("the units of a layer do not fit its weights")
    return weight * unit.view(-1, *[1] * (weight.ndim - 1))


def _options(kind: str, node: nn.Module) -> dict[str, Any]:
    """Return the options of a node. An option that is stored as a tensor is null here."""
    later = _LATER.get(kind, {})
    found = {key: getattr(node, key) for key in (*_OPTIONS[kind], *later)}
    found = {key: None if isinstance(value, Tensor) else value for key, value in found.items()}
    return {key: value for key, value in found.items() if key not in later or value != later[key]}


def _node(
    kind: str, options: dict[str, Any], weight: Tensor | None, bias: Tensor | None, **of_neurons: Tensor | None
) -> nn.Module:
    options = _LATER.get(kind, {}) | options
    if kind not in _OPTIONS or set(options) != {*_OPTIONS[kind], *_LATER.get(kind, {})}:
        raise ValueError(f"it has a layer '{kind}' with the options {sorted(options)}, which is unknown")
    dimensions = {"Conv2d": 4, "Linear": 2, "Scale": 1}.get(kind)
    if dimensions is not None and (weight is None or weight.ndim != dimensions or 0 in weight.shape):
        raise ValueError(f"a layer '{kind}' has no weights of {dimensions} dimensions")
    if bias is not None and (weight is None or bias.shape != weight.shape[:1]):
        raise ValueError(f"a layer '{kind}' has a bias that does not fit its weights")
    if kind == "Conv2d" and weight is not None:
        stride, dilation, padding = pair(options["stride"], 1), pair(options["dilation"], 1), pair(options["padding"])
        groups = whole(options["groups"], 1, len(weight), "groups")
        if len(weight) % groups:
            raise ValueError(f"a layer '{kind}' has {len(weight)} channels in {groups} groups")
        return convolution(weight, bias, stride, padding, dilation, groups)
    if kind == "Linear" and weight is not None:
        return linear(weight, bias)
    if kind == "Scale" and weight is not None:
        return Scale(weight, bias)
    if kind == "LIF":
        return _lif(options, **of_neurons)
    if kind == "AvgPool2d":
        kernel, stride, padding = pair(options["kernel_size"], 1), pair(options["stride"], 1), pair(options["padding"])
        if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
            raise ValueError(f"a layer '{kind}' has a padding of {padding}, more than half of its kernel {kernel}")
        divisor = options["divisor_override"]
        divisor = None if divisor is None else whole(divisor, 1, 2**20, "divisor_override")
        return nn.AvgPool2d(kernel, stride, padding, divisor_override=divisor)
    return nn.Flatten() if kind == "Flatten" else nn.AdaptiveAvgPool2d(1)


def _lif(options: dict[str, Any], v_th: Tensor | None, decay: Tensor | None, initial: Tensor | None) -> LIF:
    """Return the neurons. Their decay and initial potential are numbers in the options, or tensors."""
    given: dict[str, Any] = {"decay": decay, "initial": initial}
    for name, tensor in given.items():
        if (tensor is None) == (options[name] is None):
            raise ValueError(f"a layer 'LIF' needs its {name} either as a number or as a tensor")
        given[name] = float(options[name]) if tensor is None else tensor
    if not bool(torch.as_tensor(given["initial"]).isfinite().all()):
        raise ValueError("a layer 'LIF' has an initial potential that is not finite")
    decays = torch.as_tensor(given["decay"])
    if v_th is None or v_th.ndim != 1 or not bool(((decays >= 0) & (decays <= 1)).all()):
        raise ValueError("a layer 'LIF' has no thresholds, or a decay outside 0 to 1")
    bits = options["fraction_bits"]
    bits = None if bits is None else whole(bits, 0, 52, "fraction_bits")
    return LIF(given["decay"], v_th, bits, reset=options["reset"], initial=given["initial"])
