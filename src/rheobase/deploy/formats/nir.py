"""NIR files (neuroir.org) of a deployed network, built node by node, and back.

The neuron u[t] = decay * u[t-1] * (1 - s[t-1]) + x[t] is NIR's LIF stepped by forward Euler with this dt:

    form        tau               r                v_threshold           v_leak, v_reset
    canonical   dt / (1 - decay)  1 / (1 - decay)  v_th                  0
    portable    dt / (1 - decay)  1                (1 - decay) * v_th    0

Canonical keeps the layers as they are; portable serves importers that ignore r or know few layers: it has
convolutions only. Branches that meet in a neuron are several edges into one node. Shapes carry no batch and no time.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rheobase.deploy import nirfile
from rheobase.deploy.convolution import convolution
from rheobase.deploy.lower import Shape, diagonal, lower, node_shapes
from rheobase.deploy.network import INPUT, LARGEST_INPUT, LIF, OUTPUT, Network, Scale, linear
from rheobase.extras import need
from rheobase.files import atomic_write

SUFFIX = ".nir"
DT = 1e-4  # snnTorch assumes this one
FORMS = ("canonical", "portable")


def to_nir(network: Network, input_shape: Shape, form: str = "canonical") -> Any:
    """The NIRGraph of `network` for images [C, H, W] of this shape."""
    nir = _package()
    if form not in FORMS:
        raise ValueError(f"unknown form '{form}'; choose one of {', '.join(FORMS)}")
    metadata: dict[str, Any] = {
        "dt": DT,
        "form": form,
        "info": json.dumps(network.info),
        "scheme": "forward Euler: v += dt / tau * (v_leak - v + r * i); spike if v > v_threshold, then v = v_reset",
    }
    if network.integer:
        if form != "canonical":
            raise ValueError("a quantised network counts in its own units; export it in the canonical form")
        bits = {node.fraction_bits for node in network.nodes.values() if isinstance(node, LIF)}
        metadata |= {"fraction_bits": bits.pop(), "input_unit": network.input_unit, "input_largest": LARGEST_INPUT}
        metadata["logit_unit"] = network.logit_unit
    if form == "portable":
        network = lower(network, input_shape)
    shapes = node_shapes(network, input_shape)
    if OUTPUT in network.nodes:
        raise ValueError(f"cannot express '{OUTPUT}' in NIR: the name is that of the graph's own output")
    nodes = {INPUT: nir.Input({"input": np.array(input_shape)})}
    for name, node in network.nodes.items():
        try:
            nodes[name] = _to_node(node, shapes[network.inputs[name][0]], shapes[name], form)
        except ValueError as error:
            raise ValueError(f"cannot express '{name}' in NIR: {error}") from error
        if metadata.get("fraction_bits") and isinstance(node, nn.Conv2d) and _fits_int8(node.weight):
            nodes[name].weight = nodes[name].weight.astype(np.int8)
    nodes[OUTPUT] = nir.Output({"output": np.array(shapes[name])})
    edges = [(source, name) for name, sources in network.inputs.items() for source in sources]
    return nir.NIRGraph(nodes, [*edges, (name, OUTPUT)], metadata=metadata)


def write(network: Network, path: str | Path, input_shape: Shape, form: str = "canonical") -> None:
    """Write `network` as a NIR file."""
    graph = to_nir(network, input_shape, form)
    with atomic_write(Path(path)) as part:
        _package().write(str(part), graph)


def load(path: str | Path) -> Network:
    """The network in a NIR file of either form, of other origin too as long as its neurons are ours."""
    return from_graph(nirfile.read(path), str(path))


def from_graph(graph: nirfile.Graph, origin: str) -> Network:
    if "dt" not in graph.metadata:
        raise ValueError(f"{origin}: its metadata do not state dt, so its neurons have no discrete time")
    (inlet, _), *inner, _ = graph.nodes.items()
    nodes, inputs = {}, {}
    for name, node in inner:
        try:
            nodes[name] = _from_node(node, graph)
        except ValueError as error:
            raise ValueError(f"{origin}: '{name}': {error}") from error
        inputs[name] = [INPUT if source == inlet else source for source in node.sources]
    metadata: Mapping[str, Any] = graph.metadata
    try:
        units = {key: float(metadata[key]) for key in ("input_unit", "logit_unit") if key in metadata}
        info = json.loads(metadata.get("info", "{}"))
        return Network(nodes, inputs, info=info, **units).eval()
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{origin}: {error}") from error


def _to_node(node: nn.Module, shape_in: Shape, shape: Shape, form: str) -> Any:
    nir = _package()
    if isinstance(node, Scale):
        if len(shape) != 3:
            raise ValueError("a scale of a layer without height and width")
        node = diagonal(node)
    if isinstance(node, nn.Conv2d):
        if node.groups != 1 or set(node.dilation) != {1}:
            raise ValueError("a convolution in groups, or dilated")
        if len(set(shape_in[1:])) > 1 or len(set(node.kernel_size)) > 1:
            raise ValueError(f"expected square images and kernels, got {list(shape_in)} and {list(node.kernel_size)}")
        weight = _numpy(node.weight)
        bias = np.zeros(len(weight), weight.dtype) if node.bias is None else _numpy(node.bias)
        return nir.Conv2d(shape_in[1:], weight, node.stride, node.padding, node.dilation, node.groups, bias)
    if isinstance(node, nn.Linear):
        weight = _numpy(node.weight)
        return nir.Affine(weight, np.zeros(len(weight), weight.dtype) if node.bias is None else _numpy(node.bias))
    if isinstance(node, nn.AvgPool2d):
        if node.divisor_override not in (None, 1):
            raise ValueError(f"a pooling that divides by {node.divisor_override}")
        kernel, stride, padding = (np.broadcast_to(v, 2).copy() for v in (node.kernel_size, node.stride, node.padding))
        return (nir.SumPool2d if node.divisor_override == 1 else nir.AvgPool2d)(kernel, stride, padding)
    if isinstance(node, nn.AdaptiveAvgPool2d):
        size = np.array(shape_in[1:])
        return nir.AvgPool2d(size, size, np.zeros(2, dtype=int))
    if isinstance(node, nn.Flatten):
        return nir.Flatten({"input": np.array(shape_in)}, 0, -1)
    assert isinstance(node, LIF)
    if node.decay == 1:
        raise ValueError("neurons that do not leak (decay 1) have no finite tau")
    full = np.ones(shape)
    leak = 1 - node.decay
    r, scale = (1 / leak, 1.0) if form == "canonical" else (1.0, leak)
    v_th = _numpy(node.v_th).astype(np.float64).reshape(-1, *[1] * (len(shape) - 1))
    return nir.LIF(tau=DT / leak * full, r=r * full, v_leak=0 * full, v_threshold=scale * v_th * full, v_reset=0 * full)


def _from_node(node: nirfile.Node, graph: nirfile.Graph) -> nn.Module:
    values = node.values
    if node.kind == "Conv2d":
        stride, padding = (tuple(values[key].tolist()) for key in ("stride", "padding"))
        return convolution(_tensor(values["weight"]), _tensor(values["bias"]), stride, padding)
    if node.kind == "Affine":
        return linear(_tensor(values["weight"]), _tensor(values["bias"]))
    if node.kind in ("AvgPool2d", "SumPool2d"):
        kernel, stride, padding = (tuple(values[key].tolist()) for key in ("kernel_size", "stride", "padding"))
        return nn.AvgPool2d(kernel, stride, padding, divisor_override=1 if node.kind == "SumPool2d" else None)
    if node.kind == "Flatten":
        return nn.Flatten()
    gain = float(graph.metadata["dt"]) / values["tau"]
    scale = gain * values["r"]  # the current's share of the potential: ours is 1
    if values["v_leak"].any() or values["v_reset"].any() or np.ptp(gain) > 1e-12 or not (scale > 0).all():
        raise ValueError("expected neurons with one tau, r > 0, and v_leak and v_reset of 0")
    v_th = (values["v_threshold"] / scale).reshape(len(scale), -1)
    decay = float(1 - gain.flat[0])
    if np.ptp(v_th, axis=1).max() > 1e-9 * v_th.max() or not 0 <= decay <= 1:
        raise ValueError("expected one threshold per channel, and tau of at least dt")
    bits = graph.metadata.get("fraction_bits")
    if bits is None:
        return LIF(decay, torch.from_numpy(v_th[:, 0].copy()))
    one = 2 ** int(bits)  # exact numbers behind the rounding of tau and r
    return LIF(round(decay * one) / one, torch.from_numpy(values["v_threshold"].reshape(v_th.shape)[:, 0]), int(bits))


def _fits_int8(weight: Tensor) -> bool:
    """Identity scales of a quantised network are wider."""
    return torch.equal(weight, weight.round().clamp(-128, 127))


def _numpy(p: Tensor) -> np.ndarray:
    p = p.detach().cpu()
    return (p.float() if p.dtype in (torch.bfloat16, torch.float16) else p).numpy()


def _tensor(values: np.ndarray) -> Tensor:
    exact = values if values.dtype.kind == "f" else values.astype(np.float64)
    return torch.from_numpy(np.ascontiguousarray(exact))


def _package() -> Any:
    return need("nir", "NIR export")
