"""NIR files (neuroir.org): write a deployed network node by node, and read one.

The neuron u[t] = decay * u[t-1] * (1 - s[t-1]) + x[t] is NIR's LIF, integrated by forward Euler with this dt:

    form        tau               r                v_threshold           v_leak, v_reset
    canonical   dt / (1 - decay)  1 / (1 - decay)  v_th                  0
    portable    dt / (1 - decay)  1                (1 - decay) * v_th    0

Without a leak (decay 1), the neuron is NIR's IF, in both forms with r = 1 / dt and v_threshold = v_th. The canonical
form keeps the layers as they are. The portable form is for importers that ignore r or support few layers: it consists
of convolutions and neurons. A node that sums several outputs has several incoming edges. Shapes do not include batch
and time.

NIR's neurons reset to a value and start at 0, so a NIR file cannot express a soft reset or an initial potential. The
simulator and `to_graph` support both.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rheobase.deploy import nirfile
from rheobase.deploy.convolution import convolution
from rheobase.deploy.lower import Shape, as_scale, diagonal, lower, node_shapes
from rheobase.deploy.network import INPUT, OUTPUT, Network
from rheobase.deploy.nodes import LIF, Scale, linear
from rheobase.deploy.pairs import FRACTION_BITS, LARGEST_INPUT
from rheobase.extras import need
from rheobase.files import atomic_write, parse_json

SUFFIX = ".nir"
DT = 1e-4  # snnTorch assumes this value
FORMS = ("canonical", "portable")


def to_nir(network: Network, input_shape: Shape, form: str = "canonical") -> Any:
    """Return `network` as a NIRGraph for images [C, H, W] of this shape."""
    nir = _package()
    if OUTPUT in network.nodes:
        raise ValueError(f"cannot express '{OUTPUT}' in NIR: this is the name of the graph's output")
    graph = to_graph(network, input_shape, form)
    nodes: dict[str, Any] = {}
    for name, node in graph.nodes.items():
        shape_in = graph.nodes[node.sources[0]].shape if node.sources else ()
        values = dict(node.values)
        for key, what in (("v_lowered", "a soft reset"), ("v_initial", "an initial potential")):
            if key in values:
                raise ValueError(
                    f"cannot express '{name}' in NIR, whose neurons cannot have {what}; export to onnx or native, "
                    "which can express it"
                )
        if node.kind == "Input":
            nodes[name] = nir.Input({"input": np.array(node.shape)})
        elif node.kind == "Output":
            nodes[name] = nir.Output({"output": np.array(node.shape)})
        elif node.kind == "Flatten":
            nodes[name] = nir.Flatten({"input": np.array(shape_in)}, 0, -1)
        elif node.kind == "Conv2d":
            if len(set(shape_in[1:])) > 1 or len(set(values["weight"].shape[2:])) > 1:
                kernel = list(values["weight"].shape[2:])
                raise ValueError(
                    f"cannot express '{name}' in NIR: expected square images and kernels, got {list(shape_in)} and "
                    f"{kernel}"
                )
            if network.integer and _fits_int8(values["weight"]):
                values["weight"] = values["weight"].astype(np.int8)
            window = {key: tuple(values.pop(key).tolist()) for key in ("stride", "padding")}
            nodes[name] = nir.Conv2d(shape_in[1:], dilation=(1, 1), groups=1, **window, **values)
        else:
            nodes[name] = getattr(nir, node.kind)(**values)
    edges = [(source, name) for name, node in graph.nodes.items() for source in node.sources]
    return nir.NIRGraph(nodes, edges, metadata=dict(graph.metadata))


def to_graph(network: Network, input_shape: Shape, form: str = "canonical") -> nirfile.Graph:
    """Return `network` as the simulator runs it: the nodes of a NIR file, with two values that NIR does not have.

    These are `v_lowered`, by which a spike lowers the potential in a soft reset, and `v_initial`, the first potential.
    """
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
            raise ValueError(f"a quantised network has its own units; write it in the canonical form, not '{form}'")
        bits = {node.fraction_bits for node in network.nodes.values() if isinstance(node, LIF)}
        metadata |= {
            "fraction_bits": next(iter(bits), FRACTION_BITS),
            "input_unit": network.input_unit,
            "input_largest": network.input_largest,
        }
        metadata["logit_unit"] = network.logit_unit
    if form == "portable":
        network = lower(network, input_shape)
    shapes = node_shapes(network, input_shape)
    nodes = {INPUT: nirfile.Node("Input", (), input_shape, {})}
    for name, node in network.nodes.items():
        try:
            kind, values = _values(node, shapes[network.inputs[name][0]], shapes[name], form)
        except ValueError as error:
            raise ValueError(f"cannot express '{name}' in NIR: {error}") from error
        nodes[name] = nirfile.Node(kind, network.inputs[name], shapes[name], values)
    nodes[OUTPUT] = nirfile.Node("Output", (name,), shapes[name], {})
    return nirfile.Graph(nodes, metadata)


def write(network: Network, path: str | Path, input_shape: Shape, form: str = "canonical") -> None:
    """Write `network` as a NIR file."""
    content = io.BytesIO()  # if HDF5 cannot write to a disk, it prints tracebacks or even crashes
    _package().write(content, to_nir(network, input_shape, form))
    with atomic_write(Path(path)) as part:
        part.write_bytes(content.getbuffer())


def load(path: str | Path) -> Network:
    """Return the network in a NIR file of either form. Files of other tools work if their neurons are like ours."""
    return from_graph(nirfile.read(path), str(path))


def from_graph(graph: nirfile.Graph, origin: str) -> Network:
    """Return the network of a NIR graph that was read from the file `origin`."""
    if "dt" not in graph.metadata:
        raise ValueError(f"{origin}: its metadata do not state dt, so the timestep of its neurons is unknown")
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
        largest = int(metadata.get("input_largest", LARGEST_INPUT))
        info = parse_json(metadata.get("info", "{}"))
        if not isinstance(info, dict):
            raise ValueError("its info about the training is not a JSON object")
        return Network(nodes, inputs, input_largest=largest, info=info, **units).eval()
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{origin}: {error}") from error


def _values(node: nn.Module, shape_in: Shape, shape: Shape, form: str) -> tuple[str, nirfile.Values]:
    """Return the kind and the arrays of a NIR node."""
    if isinstance(node, Scale):
        if len(shape) != 3:
            raise ValueError("it scales a layer without height and width")
        node = diagonal(node)
    if isinstance(node, nn.Conv2d | nn.Linear):
        weight = _numpy(node.weight)
        bias = np.zeros(len(weight), weight.dtype) if node.bias is None else _numpy(node.bias)
        if isinstance(node, nn.Linear):
            return "Affine", {"weight": weight, "bias": bias}
        if node.groups != 1 or set(node.dilation) != {1}:
            raise ValueError("a convolution cannot have groups or dilation")
        window = {"stride": np.array(node.stride), "padding": np.array(node.padding)}
        return "Conv2d", {"weight": weight, "bias": bias, **window}
    if isinstance(node, nn.AvgPool2d):
        if node.divisor_override not in (None, 1):
            raise ValueError(f"a pool cannot divide by {node.divisor_override}")
        names = ("kernel_size", "stride", "padding")
        pool = {key: np.broadcast_to(getattr(node, key), 2).copy() for key in names}
        return "SumPool2d" if node.divisor_override == 1 else "AvgPool2d", pool
    if isinstance(node, nn.AdaptiveAvgPool2d):
        size = np.array(shape_in[1:])
        return "AvgPool2d", {"kernel_size": size, "stride": size, "padding": np.zeros(2, dtype=int)}
    if isinstance(node, nn.Flatten):
        return "Flatten", {}
    assert isinstance(node, LIF)
    return _neurons(node, shape, form)


def _neurons(lif: LIF, shape: Shape, form: str) -> tuple[str, nirfile.Values]:
    def full(value: float | Tensor) -> np.ndarray:
        array = _numpy(value).astype(np.float64) if isinstance(value, Tensor) else np.array([value])
        return array.reshape(-1, *[1] * (len(shape) - 1)) * np.ones(shape)

    leak, v_th, initial = 1 - full(lif.decay), full(lif.v_th), full(lif.initial)
    values = {"v_reset": 0 * v_th}
    if not leak.any():
        kind, scale = "IF", np.ones(shape)
        values |= {"r": full(1 / DT)}
    elif leak.all():
        kind, scale = "LIF", np.ones(shape) if form == "canonical" else leak
        values |= {"tau": DT / leak, "r": scale / leak, "v_leak": 0 * v_th}
    else:
        raise ValueError("either all neurons of a layer leak, or none (decay 1)")
    values["v_threshold"] = scale * v_th
    if lif.reset == "soft":
        one = 1.0 if lif.fraction_bits is None else 2.0**lif.fraction_bits
        values["v_lowered"] = scale * (v_th if lif.fraction_bits is None else np.floor(v_th * one) / one)
    if initial.any():
        values["v_initial"] = scale * initial
    return kind, values


def _from_node(node: nirfile.Node, graph: nirfile.Graph) -> nn.Module:
    values = node.values
    if node.kind == "Conv2d":
        stride, padding = (tuple(values[key].tolist()) for key in ("stride", "padding"))
        conv = convolution(_tensor(values["weight"]), _tensor(values["bias"]), stride, padding)
        return as_scale(conv) or conv
    if node.kind == "Affine":
        return linear(_tensor(values["weight"]), _tensor(values["bias"]))
    if node.kind in ("AvgPool2d", "SumPool2d"):
        kernel, stride, padding = (tuple(values[key].tolist()) for key in ("kernel_size", "stride", "padding"))
        return nn.AvgPool2d(kernel, stride, padding, divisor_override=1 if node.kind == "SumPool2d" else None)
    if node.kind == "Flatten":
        return nn.Flatten()
    return _lif(node, graph)


def _lif(node: nirfile.Node, graph: nirfile.Graph) -> LIF:
    values, dt = node.values, float(graph.metadata["dt"])
    leaks = node.kind == "LIF"
    gain = dt / values["tau"] if leaks else np.zeros(node.shape)
    scale = (gain if leaks else dt) * values["r"]  # factor of the current; ours is 1
    at_rest = not (leaks and values["v_leak"].any()) and not values["v_reset"].any()
    if not at_rest or not ((scale > 1e-30) & (scale < 1e30)).all():
        raise ValueError("expected neurons with r > 0, and v_leak and v_reset of 0")
    v_th, decay = (array.reshape(len(scale), -1) for array in (values["v_threshold"] / scale, 1 - gain))
    if np.ptp(v_th, axis=1).max() > 1e-9 * v_th.max() or np.ptp(decay, axis=1).max() > 1e-12 or decay.min() < 0:
        raise ValueError("expected one threshold and one tau per channel, and tau of at least dt")
    bits = graph.metadata.get("fraction_bits")
    decays = decay[:, 0]
    if bits is not None:  # recover the exact numbers from the rounded tau and r
        one = 2 ** int(bits)
        decays, v_th = np.rint(decays * one) / one, values["v_threshold"].reshape(v_th.shape)
    one_for_all = np.ptp(decays) <= 1e-12
    return LIF(
        float(decays[0]) if one_for_all else torch.from_numpy(decays.copy()),
        torch.from_numpy(v_th[:, 0].copy()),
        None if bits is None else int(bits),
    )


def _fits_int8(weight: np.ndarray) -> bool:
    """Return whether weights fit into 8 bits. Those of identity shortcuts are wider."""
    return np.array_equal(weight, np.rint(weight).clip(-128, 127))


def _numpy(p: Tensor) -> np.ndarray:
    p = p.detach().cpu()
    return (p.float() if p.dtype in (torch.bfloat16, torch.float16) else p).numpy()


def _tensor(values: np.ndarray) -> Tensor:
    exact = values if values.dtype.kind == "f" else values.astype(np.float64)
    return torch.from_numpy(np.ascontiguousarray(exact))


def _package() -> Any:
    return need("nir", "NIR export")
