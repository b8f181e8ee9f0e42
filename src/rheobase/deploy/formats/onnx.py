"""ONNX files: write one timestep of a deployed network node by node, with the state as inputs and outputs.

    inputs:  input [N, C, H, W] and the potential `<layer>_v` of every layer of neurons
    outputs: logits [N, K] and the potentials `<layer>_v_next`

Potentials start at 0, except in the layers that the property `initial` lists (JSON, one number per channel).

One file works for any number of timesteps, and for streams. ONNX Runtime has no double-precision convolution on CPUs,
so convolutions of a float64 network are written as slices and a matrix product. Float32 uses the operator.
"""

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rheobase import limits
from rheobase.deploy.lower import Shape, node_shapes
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale
from rheobase.extras import need
from rheobase.files import atomic_write, first_line, parse_json, read_plain
from rheobase.functional import check_sequence

SUFFIX = ".onnx"
OPSET = 18
IR_VERSION = 10  # readable by every ONNX Runtime since 1.18
LOGITS = "logits"
LARGEST_SIZE, LARGEST_PADDING = 2**20, 2**10
VALUE = 8  # most bytes of memory per value
_WINDOW = (1, LARGEST_PADDING)
# Every operator that `write` uses, with its attributes and their smallest and largest values.
OPERATORS: dict[str, dict[str, tuple[int, int]]] = {
    "Cast": {"to": (1, 11)},
    "Concat": {"axis": (1, 1)},
    "Conv": {"strides": _WINDOW, "dilations": _WINDOW, "pads": (0, LARGEST_PADDING), "group": (1, LARGEST_SIZE)},
    "Flatten": {"axis": (1, 1)},
    "ReduceMean": {"keepdims": (0, 1)},
    "ReduceSum": {"keepdims": (0, 1)},
    **{name: {} for name in ("Add", "Clip", "Div", "Floor", "Greater", "MatMul", "Mul", "Pad")},
    **{name: {} for name in ("Reshape", "Round", "Slice", "Sub", "Where")},
}
# The inputs of operators that are sizes, by position, with their bounds.
PLACES = {
    "Pad": {1: (0, LARGEST_PADDING)},
    "ReduceMean": {1: (1, 4)},
    "ReduceSum": {1: (1, 4)},
    "Reshape": {1: (-1, LARGEST_SIZE)},
    "Slice": {1: (0, LARGEST_SIZE), 2: (0, LARGEST_SIZE), 3: (1, 4), 4: (1, LARGEST_PADDING)},
}


def write(network: Network, path: str | Path, input_shape: Shape) -> None:
    """Write `network` for images [C, H, W] of this shape as an ONNX file, in the precision of its parameters."""
    model = to_onnx(network, input_shape)
    with atomic_write(Path(path)) as part:
        part.write_bytes(model.SerializeToString())


def to_onnx(network: Network, input_shape: Shape) -> Any:
    """Return one timestep of `network` as an ONNX model."""
    onnx = _package("onnx")
    graph = _Graph(next(network.parameters()).dtype)
    shapes = node_shapes(network, input_shape)
    names = {INPUT: graph.rounded(INPUT, network.input_unit, network.input_largest)}
    for name, node in network.nodes.items():
        x = graph.sum([names[source] for source in network.inputs[name]])
        if isinstance(node, LIF):
            names[name] = graph.neurons(name, node, x, shapes[name])
        else:
            names[name] = graph.layer(name, node, x, shapes[name])
    flat = graph.add("Flatten", names[name], axis=1)
    graph.add("Mul", flat, graph.constant(network.logit_unit), output=LOGITS)
    helper, kind = onnx.helper, graph.kind
    inputs = [helper.make_tensor_value_info(INPUT, kind, ["N", *input_shape])]
    outputs = [helper.make_tensor_value_info(LOGITS, kind, ["N", int(np.prod(shapes[name]))])]
    for layer, shape in ((n, shapes[n]) for n, node in network.nodes.items() if isinstance(node, LIF)):
        inputs.append(helper.make_tensor_value_info(f"{layer}_v", kind, ["N", *shape]))
        outputs.append(helper.make_tensor_value_info(f"{layer}_v_next", kind, ["N", *shape]))
    made = helper.make_graph(graph.nodes, "rheobase", inputs, outputs, graph.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="rheobase")
    model.ir_version = IR_VERSION
    stated = {"info": network.info, "integer": network.integer, "initial": _initial(network)}
    helper.set_model_props(model, {key: json.dumps(value) for key, value in stated.items()})
    onnx.checker.check_model(model)
    return model


def _initial(network: Network) -> dict[str, list[float]]:
    """Return the initial potentials of all channels, for the layers in which one is not 0."""
    layers = {name: node for name, node in network.nodes.items() if isinstance(node, LIF)}
    found = {name: (torch.zeros_like(lif.v_th) + lif.initial).tolist() for name, lif in layers.items()}
    return {f"{name}_v": values for name, values in found.items() if any(values)}


def load(path: str | Path) -> "Session":
    """Return the network in an ONNX file, ready to be called. It does not show its spikes."""
    return Session(path)


class Session:
    """An ONNX file in ONNX Runtime, called like the network: images or a sequence -> logits [T, N, K]."""

    def __init__(self, path: str | Path) -> None:
        ort = _package("onnxruntime")
        if not Path(path).is_file():
            raise ValueError(f"{path}: no such file")
        self.path = Path(path)
        try:
            content = read_plain(path)
            _check_is_ours(_package("onnx").load_from_string(content), len(content))
            self.session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
            stated = self.session.get_modelmeta().custom_metadata_map
            self.info, self.integer = parse_json(stated.get("info", "{}")), stated.get("integer") == "true"
            if not isinstance(self.info, dict):
                raise ValueError("its info about the training is not a JSON object")
            first, *states = self.session.get_inputs()
            self.input_shape, self.classes = tuple(first.shape[1:]), int(self.session.get_outputs()[0].shape[1])
            self.dtype = np.float64 if first.type == "tensor(double)" else np.float32
            initial = parse_json(stated.get("initial", "{}"))
            self.start = {s.name: self._start(s.shape[1:], initial.pop(s.name, 0.0)) for s in states}
            if initial:
                raise ValueError(f"it states initial potentials of unknown layers: {', '.join(initial)}")
        except Exception as error:  # ONNX Runtime raises many kinds of errors
            what = f"not an ONNX file of a deployed network, or damaged: {first_line(error)}"
            raise ValueError(f"{path}: {what}") from error

    def outputs_of(self, shape: Shape) -> int:
        """Return the number of logits for an image [C, H, W]. Raise a ValueError if the file is for other shapes."""
        if shape != self.input_shape:
            raise ValueError(f"{self.path}: expected images of {list(self.input_shape)}, got {list(shape)}")
        return self.classes

    def _start(self, shape: list[int], values: Any) -> np.ndarray:
        """Return the initial potentials of a layer, given as one number or one per channel."""
        column = np.asarray(values, self.dtype).reshape(-1, *[1] * (len(shape) - 1))
        return np.broadcast_to(column, shape)

    def __call__(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        timesteps = check_sequence(x, timesteps)
        self.outputs_of(tuple(x.shape[-3:]))
        steps = x.numpy().astype(self.dtype)
        sequence = np.broadcast_to(steps, (timesteps, *steps.shape)) if x.ndim == 4 else steps
        images = sequence.shape[1]
        state = {name: np.broadcast_to(v, (images, *v.shape)).copy() for name, v in self.start.items()}
        logits = []
        for x_t in sequence:
            y, *after = self._run({INPUT: np.ascontiguousarray(x_t), **state})
            state = dict(zip(self.start, after, strict=True))
            logits.append(y)
        return torch.from_numpy(np.stack(logits))

    def _run(self, inputs: dict[str, np.ndarray]) -> Any:
        try:
            return self.session.run(None, inputs)
        except Exception as error:
            raise ValueError(f"{self.path}: ONNX Runtime cannot run it: {first_line(error)}") from error


def _check_is_ours(model: Any, size: int) -> None:
    """Raise a ValueError for operators, storage or sizes that `write` does not use. Files are not trusted."""
    graph = model.graph
    if not graph.input or not graph.output or [graph.input[0].name, graph.output[0].name] != [INPUT, LOGITS]:
        raise ValueError("its inputs and outputs are not those of a deployed network")
    if [f"{value.name}_next" for value in graph.input[1:]] != [value.name for value in graph.output[1:]]:
        raise ValueError("its inputs and outputs are not those of a deployed network")
    foreign = {node.op_type for node in graph.node} - OPERATORS.keys()
    if foreign or model.functions or any(node.domain for node in graph.node):
        raise ValueError(f"it uses unknown operators: {', '.join(sorted(foreign))}")
    if graph.sparse_initializer:
        raise ValueError("it has sparse tensors")
    for tensor in graph.initializer:
        if tensor.data_location or tensor.external_data:
            raise ValueError(f"'{tensor.name}' is stored in another file")
    _check_numbers(graph)
    limits.check(VALUE * _values(model), size, "its layers")


def _check_numbers(graph: Any) -> None:
    """Raise a ValueError unless all sizes are constants within bounds. Dividing by a stride of 0 ends the process."""
    onnx = _package("onnx")
    constants = {tensor.name: tensor for tensor in graph.initializer}
    if any(value.name in constants for value in graph.input):
        raise ValueError("an input is a constant")
    for node in graph.node:
        for attribute in node.attribute:
            bounds = OPERATORS[node.op_type].get(attribute.name)
            numbers = [*attribute.ints, *([attribute.i] if attribute.type == attribute.INT else [])]
            kinds = (attribute.INT, attribute.INTS)
            if bounds is None or attribute.type not in kinds or attribute.ref_attr_name:
                raise ValueError(f"a {node.op_type} has an unexpected attribute '{attribute.name}'")
            _check_bounds(f"{attribute.name} of a {node.op_type}", numbers, *bounds)
        for place, bounds in PLACES.get(node.op_type, {}).items():
            name = node.input[place] if place < len(node.input) else ""
            if name not in constants or constants[name].data_type != onnx.TensorProto.INT64:
                raise ValueError(f"a {node.op_type} has sizes that are not constants")
            numbers = onnx.numpy_helper.to_array(constants[name]).ravel().tolist()
            _check_bounds(f"a size of a {node.op_type}", numbers, *bounds)


def _check_bounds(what: str, numbers: list[int], least: int, largest: int) -> None:
    for number in numbers:
        if not least <= number <= largest:
            raise ValueError(f"{what}: expected a whole number from {least} to {largest}, got {number}")


def _values(model: Any) -> int:
    """Return the number of values of all nodes for one image, worked out without running them."""
    onnx = _package("onnx")
    one = onnx.ModelProto()
    one.CopyFrom(model)
    for value in (*one.graph.input, *one.graph.output):
        dimensions = value.type.tensor_type.shape.dim
        if not dimensions:
            raise ValueError(f"'{value.name}' has no shape")
        dimensions[0].dim_value = 1
    del one.graph.value_info[:]  # a file may state it wrongly
    inferred = onnx.shape_inference.infer_shapes(one, check_type=True, strict_mode=True, data_prop=True).graph
    shapes = {
        value.name: [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        for value in (*inferred.input, *inferred.output, *inferred.value_info)
    }
    names = [value.name for value in inferred.input] + [name for node in inferred.node for name in node.output]
    for name in names:
        if name not in shapes or not all(n > 0 for n in shapes[name]):
            raise ValueError(f"the shape of '{name}' is unknown")
    return sum(prod(shapes[name]) for name in names)


class _Graph:
    """ONNX nodes and constants under construction."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.onnx = _package("onnx")
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"ONNX export writes float32 or float64, got {dtype}; convert the network first")
        self.dtype = np.float64 if dtype == torch.float64 else np.float32
        self.kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"value_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        name = f"constant_{len(self.constants)}"
        array = np.asarray(value, dtype or self.dtype)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def rounded(self, x: str, unit: float | None, largest: int) -> str:
        if unit is None:
            return x
        scaled = self.add("Round", self.add("Div", x, self.constant(unit)))
        return self.add("Clip", scaled, self.constant(-largest), self.constant(largest))

    def sum(self, sources: list[str]) -> str:
        total = sources[0]
        for source in sources[1:]:
            total = self.add("Add", total, source)
        return total

    def neurons(self, name: str, lif: LIF, current: str, shape: Shape) -> str:
        decay, v_th = (_column(value, shape) for value in (lif.decay, lif.v_th))
        decayed = self.add("Mul", f"{name}_v", self.constant(decay))
        if lif.fraction_bits is not None:
            one = self.constant(2.0**lif.fraction_bits)
            decayed = self.add("Div", self.add("Floor", self.add("Mul", decayed, one)), one)
        u = self.add("Add", decayed, current)
        fired = self.add("Greater", u, self.constant(v_th))
        if lif.reset == "soft":
            bits = lif.fraction_bits
            lost = v_th if bits is None else np.floor(v_th * 2.0**bits) / 2.0**bits
            after = self.add("Sub", u, self.constant(lost))
        else:
            after = self.constant(0)
        self.add("Where", fired, after, u, output=f"{name}_v_next")
        return self.add("Cast", fired, to=self.kind, output=name)

    def layer(self, name: str, node: nn.Module, x: str, shape: Shape) -> str:
        if isinstance(node, nn.Conv2d):
            return self.convolution(name, node, x, shape)
        if isinstance(node, nn.Linear):
            y = self.add("MatMul", x, self.constant(node.weight.numpy(force=True).T))
            return y if node.bias is None else self.add("Add", y, self.constant(node.bias.numpy(force=True)))
        if isinstance(node, Scale):
            y = self.add("Mul", x, self.constant(_column(node.weight, shape)))
            return y if node.bias is None else self.add("Add", y, self.constant(_column(node.bias, shape)))
        if isinstance(node, nn.Flatten):
            return self.add("Flatten", x, axis=1)
        if isinstance(node, nn.AdaptiveAvgPool2d):
            return self.add("ReduceMean", x, self.constant([2, 3], np.int64), keepdims=1)
        assert isinstance(node, nn.AvgPool2d)
        return self.pool(node, x, shape)

    def convolution(self, name: str, conv: nn.Conv2d, x: str, shape: Shape) -> str:
        weight = conv.weight.numpy(force=True)
        bias = np.zeros(len(weight)) if conv.bias is None else conv.bias.numpy(force=True)
        if self.dtype == np.float32:
            inputs = [x, self.constant(weight), self.constant(bias)]
            pads = [*conv.padding, *conv.padding]
            options: dict[str, Any] = {
                "strides": conv.stride,
                "pads": pads,
                "dilations": conv.dilation,
                "group": conv.groups,
            }
            return self.add("Conv", *inputs, **options)
        if conv.groups != 1 or set(conv.dilation) != {1}:
            raise ValueError(f"cannot express '{name}' in float64 ONNX: a convolution cannot have groups or dilation")
        columns = self.windows(x, conv.kernel_size, conv.stride, conv.padding, shape)  # [N, kh*kw*C, H*W]
        matrix = weight.transpose(0, 2, 3, 1).reshape(len(weight), -1)
        y = self.add("Add", self.add("MatMul", self.constant(matrix), columns), self.constant(bias[:, None]))
        return self.add("Reshape", y, self.constant([0, *shape], np.int64))

    def pool(self, pool: nn.AvgPool2d, x: str, shape: Shape) -> str:
        kernel, stride, padding = (np.broadcast_to(v, 2) for v in (pool.kernel_size, pool.stride, pool.padding))
        columns = self.windows(x, kernel, stride, padding, shape)
        split = self.add("Reshape", columns, self.constant([0, kernel.prod(), *shape], np.int64))
        total = self.add("ReduceSum", split, self.constant([1], np.int64), keepdims=0)
        return self.add("Div", total, self.constant(pool.divisor_override or kernel.prod()))

    def windows(self, x: str, kernel: Any, stride: Any, padding: Any, shape: Shape) -> str:
        """Return the input at every position of a sliding window: [N, kh * kw * C, H * W]."""
        pads = [0, 0, *padding, 0, 0, *padding]
        padded = self.add("Pad", x, self.constant(pads, np.int64))
        seen = []
        for ky in range(kernel[0]):
            for kx in range(kernel[1]):
                ends = [ky + (shape[1] - 1) * stride[0] + 1, kx + (shape[2] - 1) * stride[1] + 1]
                places = ([ky, kx], ends, [2, 3], stride)
                part = self.add("Slice", padded, *(self.constant(list(p), np.int64) for p in places))
                seen.append(part)
        joined = self.add("Concat", *seen, axis=1)
        return self.add("Reshape", joined, self.constant([0, -1, shape[1] * shape[2]], np.int64))


def _column(value: float | Tensor, shape: Shape) -> np.ndarray:
    """Return a number, or one per channel, in a shape that broadcasts with [N, *shape]."""
    return np.asarray(value.numpy(force=True) if isinstance(value, Tensor) else [value]).reshape(
        -1, *[1] * (len(shape) - 1)
    )


def _package(name: str) -> Any:
    return need(name, "an ONNX file")
