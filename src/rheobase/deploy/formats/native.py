"""A deployed network in one safetensors file: tensors, and the wiring as JSON in its header. Loading runs no code."""

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from rheobase.deploy.convolution import convolution
from rheobase.deploy.network import LARGEST_INPUT, LIF, Network, Scale, linear
from rheobase.deploy.pairs import pair
from rheobase.deploy.quantize import in_units, int8_unit
from rheobase.files import atomic_write

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
}  # options that are left out where they have these values


def save(network: Network, path: str | Path, *, int8: bool = False) -> None:
    """Write `network` into the file `path`; with `int8`, synapses as 8-bit weights and a unit per output channel."""
    if int8 and network.integer:
        raise ValueError("this network is quantised already: its weights are integers; save it as it is")
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
    for name, node in network.nodes.items() if int8 else ():
        if isinstance(node, nn.Conv2d | nn.Linear):
            unit = int8_unit([node.weight])
            tensors[f"{name}.unit"] = unit.cpu()
            tensors[f"{name}.weight"] = in_units(node.weight, unit).to("cpu", torch.int8).contiguous()
    with atomic_write(Path(path)) as part:
        part.write_bytes(safetensors.torch.save(tensors, header))


def write(network: Network, path: str | Path, input_shape: tuple[int, ...]) -> None:
    """Write `network` into the file `path`; it keeps no shape of images."""
    save(network, path)


def load(path: str | Path) -> Network:
    """The network in the file `path`; a ValueError says what is wrong with a damaged one."""
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with safetensors.safe_open(path, "pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ValueError(f"its format is {header.get('format')!r}, expected {FORMAT!r}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        nodes, inputs = {}, {}
        for node in json.loads(header["nodes"]):
            name = node["name"]
            own = {key: tensors.get(f"{name}.{key}") for key in ("weight", "bias", "v_th", "decay", "initial")}
            if f"{name}.unit" in tensors:
                own["weight"] = _multiples(own["weight"], tensors[f"{name}.unit"])
            nodes[name] = _node(node["kind"], node["options"], **own)
            inputs[name] = node["inputs"]
        input_unit, logit_unit, *more = json.loads(header["units"])
        (largest,) = more or [LARGEST_INPUT]
        info = json.loads(header["info"])
        return Network(
            nodes, inputs, input_unit=input_unit, input_largest=largest, logit_unit=logit_unit, info=info
        ).eval()
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not a file of a deployed network, or damaged: {error}") from error


def _multiples(weight: Tensor | None, unit: Tensor) -> Tensor:
    if weight is None or weight.dtype != torch.int8 or weight.ndim == 0 or unit.shape != weight.shape[:1]:
        raise ValueError("a layer has units that do not fit its weights")
    return weight * unit.view(-1, *[1] * (weight.ndim - 1))


def _options(kind: str, node: nn.Module) -> dict[str, Any]:
    """What is not in tensors; null is said of what is, though it may be a number."""
    later = _LATER.get(kind, {})
    found = {key: getattr(node, key) for key in (*_OPTIONS[kind], *later)}
    found = {key: None if isinstance(value, Tensor) else value for key, value in found.items()}
    return {key: value for key, value in found.items() if key not in later or value != later[key]}


def _node(
    kind: str, options: dict[str, Any], weight: Tensor | None, bias: Tensor | None, **of_neurons: Tensor | None
) -> nn.Module:
    options = _LATER.get(kind, {}) | options
    if kind not in _OPTIONS or set(options) != {*_OPTIONS[kind], *_LATER.get(kind, {})}:
        raise ValueError(f"it has a layer '{kind}' with the options {sorted(options)}")
    dimensions = {"Conv2d": 4, "Linear": 2, "Scale": 1}.get(kind)
    if dimensions is not None and (weight is None or weight.ndim != dimensions or 0 in weight.shape):
        raise ValueError(f"a layer '{kind}' has no weights of {dimensions} dimensions")
    if bias is not None and (weight is None or bias.shape != weight.shape[:1]):
        raise ValueError(f"a layer '{kind}' has a bias that does not fit its weights")
    if kind == "Conv2d" and weight is not None:
        stride, dilation, padding = pair(options["stride"], 1), pair(options["dilation"], 1), pair(options["padding"])
        return convolution(weight, bias, stride, padding, dilation, int(options["groups"]))
    if kind == "Linear" and weight is not None:
        return linear(weight, bias)
    if kind == "Scale" and weight is not None:
        return Scale(weight, bias)
    if kind == "LIF":
        return _lif(options, **of_neurons)
    if kind == "AvgPool2d":
        kernel, stride, padding = pair(options["kernel_size"], 1), pair(options["stride"], 1), pair(options["padding"])
        return nn.AvgPool2d(kernel, stride, padding, divisor_override=options["divisor_override"])
    return nn.Flatten() if kind == "Flatten" else nn.AdaptiveAvgPool2d(1)


def _lif(options: dict[str, Any], v_th: Tensor | None, decay: Tensor | None, initial: Tensor | None) -> LIF:
    """Decay and initial potential are numbers among the options, or tensors."""
    given: dict[str, Any] = {"decay": decay, "initial": initial}
    for name, tensor in given.items():
        if (tensor is None) == (options[name] is None):
            raise ValueError(f"a layer 'LIF' has no {name}, or two")
        given[name] = float(options[name]) if tensor is None else tensor
    decays = torch.as_tensor(given["decay"])
    if v_th is None or v_th.ndim != 1 or not bool(((decays >= 0) & (decays <= 1)).all()):
        raise ValueError("a layer 'LIF' has no thresholds, or a decay outside 0 to 1")
    return LIF(given["decay"], v_th, options["fraction_bits"], reset=options["reset"], initial=given["initial"])
