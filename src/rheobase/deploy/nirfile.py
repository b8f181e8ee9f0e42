"""Read NIR files with NumPy and h5py alone, without trusting them.

A NIR file is an HDF5 file with nodes, which hold arrays, and edges between them. A node sums the outputs that its edges
bring. Everything in the file is checked before it is used: storage in `hdf5`, nodes and edges here.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheobase import limits
from rheobase.deploy import hdf5
from rheobase.deploy.pairs import pair, positions, whole
from rheobase.files import first_line

Shape = tuple[int, ...]
Values = dict[str, NDArray[Any]]

KINDS = {
    "Conv2d": ("weight", "bias", "stride", "padding", "dilation", "groups"),
    "Affine": ("weight", "bias"),
    "AvgPool2d": ("kernel_size", "stride", "padding"),
    "SumPool2d": ("kernel_size", "stride", "padding"),
    "Flatten": ("start_dim", "end_dim"),
    "LIF": ("tau", "r", "v_leak", "v_threshold", "v_reset"),
    "IF": ("r", "v_threshold", "v_reset"),
    "Input": ("shape",),
    "Output": ("shape",),
}
NEURONS = ("LIF", "IF")
VALUE = 8  # bytes of memory per value of a layer's output


@dataclass(frozen=True)
class Node:
    """A node: its kind, the nodes whose outputs it sums, the shape of its own output, and its arrays."""

    kind: str
    sources: tuple[str, ...]
    shape: Shape
    values: Values


@dataclass(frozen=True)
class Graph:
    """The contents of a NIR file."""

    nodes: dict[str, Node]  # in order of execution: the first is the input, the last one the output
    metadata: dict[str, float | str]


def read(path: str | Path) -> Graph:
    """Read a NIR file. A ValueError says what is wrong with a damaged or hostile file."""
    h5py = hdf5.package()
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with h5py.File(path, "r") as file:
            size = path.stat().st_size
            reader = hdf5.Reader(limits.allowed(size))
            root = reader.group(file, "node")
            if reader.text(root, "type") != "NIRGraph":
                raise ValueError("its root is not a NIRGraph")
            raw = {name: _node(reader, root["nodes"], name) for name in reader.names(root, "nodes")}
            edges = [tuple(edge) for edge in reader.strings(root, "edges").reshape(-1, 2).tolist()]
            graph = Graph(_ordered(raw, edges), _checked(_metadata(reader, root)))
            limits.check(VALUE * sum(prod(node.shape) for node in graph.nodes.values()), size, "its layers")
            return graph
    except ValueError as error:
        raise ValueError(f"{path}: not a NIR file that can be run: {first_line(error)}") from error
    except Exception as error:  # damaged files make HDF5 raise many kinds of errors
        told = f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(f"{path}: damaged, or not a NIR file: {told}") from error


def _node(reader: hdf5.Reader, parent: Any, name: str) -> tuple[str, Values]:
    group = reader.group(parent, name)
    kind = reader.text(group, "type")
    if kind not in KINDS:
        raise ValueError(f"node '{name}' is a {kind}; expected one of {', '.join(KINDS)}")
    return kind, {key: reader.array(group, key) for key in KINDS[kind]}


def _metadata(reader: hdf5.Reader, parent: Any) -> dict[str, float | str]:
    if "metadata" not in parent:
        return {}
    group = reader.group(parent, "metadata")
    return {
        name: reader.text(group, name) if reader.is_text(group, name) else float(reader.array(group, name).item())
        for name in group
    }


def _checked(metadata: dict[str, float | str]) -> dict[str, float | str]:
    """Return the metadata. Raise a ValueError if an entry that we use is not a number in its range."""
    for name in ("dt", "input_unit", "logit_unit"):
        value = metadata.get(name, 1.0)
        if not isinstance(value, float) or not 1e-30 < value < 1e30:
            raise ValueError(f"{name} is {str(value)[:60]}; expected a number above 0")
    for name, least in (("fraction_bits", 0), ("input_largest", 1)):
        if name in metadata:
            whole(metadata[name], least, 2**52 if least else 52, name)
    return metadata


def _ordered(raw: dict[str, tuple[str, Values]], edges: list[tuple[str, ...]]) -> dict[str, Node]:
    """Return the nodes in order of execution, with checked shapes."""
    sources: dict[str, list[str]] = {name: [] for name in raw}
    for a, b in edges:
        if a not in raw or b not in raw:
            raise ValueError(f"there is an edge from '{a}' to '{b}', which are not both nodes")
        sources[b].append(a)
    leading_on = {a for a, _ in edges}
    for name, (kind, _) in raw.items():
        if kind != "Output" and name not in leading_on:
            raise ValueError(f"node '{name}' does not lead to the output")
    kinds = [kind for kind, _ in raw.values()]
    if kinds.count("Input") != 1 or kinds.count("Output") != 1:
        raise ValueError(f"expected one Input and one Output, got {kinds.count('Input')} and {kinds.count('Output')}")
    nodes: dict[str, Node] = {}
    waiting = sorted(raw, key=lambda name: (raw[name][0] != "Input", raw[name][0] == "Output"))
    while waiting:
        ready = [name for name in waiting if all(source in nodes for source in sources[name])]
        if not ready:
            raise ValueError(f"the nodes {', '.join(sorted(waiting))} wait for each other")
        for name in ready:
            kind, values = raw[name]
            if (kind == "Input") != (not sources[name]) or (len(sources[name]) > 1 and kind == "Output"):
                raise ValueError(f"node '{name}' ({kind}) has {len(sources[name])} inputs")
            shapes = [nodes[source].shape for source in sources[name]]
            try:
                shape = _output_shape(kind, values, shapes)
            except (ValueError, IndexError, TypeError, OverflowError) as error:
                raise ValueError(f"node '{name}' ({kind}): {error}") from error
            nodes[name] = Node(kind, tuple(sources[name]), shape, values)
        waiting = [name for name in waiting if name not in nodes]
    return nodes


def _output_shape(kind: str, values: Values, shapes: list[Shape]) -> Shape:
    """Return the shape of a node's output. Raise a ValueError if its arrays do not fit each other or its inputs."""
    if any(other != shapes[0] for other in shapes):
        raise ValueError(f"its inputs differ in shape: {', '.join(str(list(other)) for other in shapes)}")
    if kind == "Input":
        shape = tuple(int(n) for n in values["shape"].ravel())
    elif kind == "Affine":
        weight = _expect(values["weight"], 2)
        _expect(values["bias"], 1)
        if shapes[0] != weight.shape[1:] or values["bias"].shape != weight.shape[:1]:
            raise ValueError(f"weight {list(weight.shape)} does not fit its input {list(shapes[0])} or its bias")
        shape = weight.shape[:1]
    elif kind == "Conv2d":
        weight = _expect(values["weight"], 4)
        if len(shapes[0]) != 3 or shapes[0][0] != weight.shape[1] or values["bias"].shape != weight.shape[:1]:
            raise ValueError(f"weight {list(weight.shape)} does not fit its input {list(shapes[0])} or its bias")
        if set(values["dilation"].ravel().tolist()) != {1} or values["groups"].item() != 1:
            raise ValueError("dilation and groups are not supported")
        shape = (weight.shape[0], *_slide(values, weight.shape[2:], shapes[0]))
    elif kind in ("AvgPool2d", "SumPool2d"):
        shape = (shapes[0][0], *_slide(values, pair(values["kernel_size"], 1), shapes[0]))
    elif kind == "Flatten":
        if (values["start_dim"].item(), values["end_dim"].item()) not in ((0, -1), (0, len(shapes[0]) - 1)):
            raise ValueError("expected to flatten all dimensions")
        shape = (prod(shapes[0]),)
    elif kind in NEURONS:
        shape = shapes[0]
        for key in KINDS[kind]:
            if values[key].shape != shape:
                raise ValueError(f"{key} has the shape {list(values[key].shape)}, but its input has {list(shape)}")
        if kind == "LIF" and not (values["tau"] > 0).all():
            raise ValueError("tau is not positive")
    else:
        shape = shapes[0]
    if not shape or min(shape) < 1:
        raise ValueError(f"an output of the shape {list(shape)} is empty")
    return shape


def _expect(values: NDArray[Any], ndim: int) -> NDArray[Any]:
    if values.ndim != ndim or 0 in values.shape:
        raise ValueError(f"expected {ndim} dimensions, got {list(values.shape)}")
    return values


def _slide(values: Values, kernel: Shape, size: Shape) -> Shape:
    """Return height and width after sliding a window. Store stride, padding and kernel size as pairs."""
    stride, padding = pair(values["stride"], 1), pair(values["padding"])
    values |= {"stride": np.array(stride), "padding": np.array(padding), "kernel_size": np.array(kernel)}
    if max(padding) > max(kernel):
        raise ValueError(f"a padding of {list(padding)} is larger than the kernel {list(kernel)}")
    return positions(size[1:], kernel, stride, padding)
