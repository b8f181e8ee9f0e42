"""Read NIR files with NumPy and h5py alone, without trusting them.

A NIR file is an HDF5 file with nodes, which hold arrays, and edges between them. A node sums the outputs that its edges
bring. Links, storage in other files, foreign compression and sizes too large for the file are refused before any memory
is spent on them.
"""

import zlib
from dataclasses import dataclass
from math import prod
from os import SEEK_END
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheobase import limits
from rheobase.deploy.pairs import pair, whole
from rheobase.extras import need
from rheobase.files import first_line, open_plain

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
MOST_TEXTS = 2**14  # in one array; the edges are the longest array of texts
ADDRESSES = (8, 8)  # bytes of an address and of a size; the default of HDF5
REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])  # to a text elsewhere in the file
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
    h5py = need("h5py", "reading NIR files")
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with h5py.File(path, "r") as file:
            size = path.stat().st_size
            reader = _Reader(limits.allowed(size))
            root = reader.group(file, "node")
            if reader.text(root, "type") != "NIRGraph":
                raise ValueError("its root is not a NIRGraph")
            raw = {name: reader.node(root["nodes"], name) for name in reader.names(root, "nodes")}
            edges = [tuple(edge) for edge in reader.strings(root, "edges").reshape(-1, 2).tolist()]
            graph = Graph(_ordered(raw, edges), _checked(reader.metadata(root)))
            limits.check(VALUE * sum(prod(node.shape) for node in graph.nodes.values()), size, "its layers")
            return graph
    except ValueError as error:
        raise ValueError(f"{path}: not a NIR file that can be run: {first_line(error)}") from error
    except Exception as error:  # damaged files make HDF5 raise many kinds of errors
        told = f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(f"{path}: damaged, or not a NIR file: {told}") from error


class _Reader:
    """Reads plain arrays and texts: at most `budget` bytes, and nothing from outside the file."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def child(self, parent: Any, name: str) -> Any:
        h5py = need("h5py", "reading NIR files")
        link = parent.get(name, getlink=True)
        if link is None:
            raise ValueError(f"'{parent.name}/{name}' is missing")
        if type(link) is not h5py.HardLink:
            raise ValueError(f"'{parent.name}/{name}' is a link")
        return parent[name]

    def group(self, parent: Any, name: str) -> Any:
        h5py = need("h5py", "reading NIR files")
        child = self.child(parent, name)
        if not isinstance(child, h5py.Group):
            raise ValueError(f"'{parent.name}/{name}' is not a group")
        return child

    def names(self, parent: Any, name: str) -> list[str]:
        return list(self.group(parent, name))

    def strings(self, parent: Any, name: str) -> NDArray[Any]:
        h5py = need("h5py", "reading NIR files")
        data = self.child(parent, name)
        if h5py.check_string_dtype(data.dtype) is None:
            raise ValueError(f"'{parent.name}/{name}' is not a text")
        self._pay(data)
        if data.chunks or data.size > MOST_TEXTS:  # a few compressed bytes could stand for many long texts
            raise ValueError(f"'{data.name}' has {data.size} texts, or stores them in chunks")
        if h5py.check_string_dtype(data.dtype).length is None:
            self._measure(data)
        found = np.empty(data.shape, dtype=object)
        for place in np.ndindex(data.shape):  # one by one: many entries may refer to the same long text
            found[place] = data.asstr()[place]
            self._spend(4 * len(found[place]), data.name)
        return found

    @staticmethod
    def _measure(data: Any) -> None:
        """Raise a ValueError if a text claims more bytes than the file has. HDF5 would allocate them unchecked."""
        start = data.id.get_offset()
        if start is None or data.file.id.get_create_plist().get_sizes() != ADDRESSES:
            raise ValueError(f"'{data.name}' stores its texts in an unsupported way")
        with open_plain(data.file.filename) as file:
            size = file.seek(0, SEEK_END)
            file.seek(start)
            content = file.read(REFERENCE.itemsize * data.size)
        if len(content) < REFERENCE.itemsize * data.size:
            raise ValueError(f"'{data.name}' is cut short")
        longest = np.frombuffer(content, REFERENCE)["length"].max(initial=0)
        if longest > size:
            raise ValueError(f"'{data.name}' claims a text of {longest} bytes, more than the file has")

    def text(self, parent: Any, name: str) -> str:
        return str(self.strings(parent, name).item())

    def metadata(self, parent: Any) -> dict[str, float | str]:
        h5py = need("h5py", "reading NIR files")
        if "metadata" not in parent:
            return {}
        group = self.group(parent, "metadata")
        found: dict[str, float | str] = {}
        for name in group:
            is_text = h5py.check_string_dtype(self.child(group, name).dtype) is not None
            found[name] = self.text(group, name) if is_text else float(self.array(group, name).item())
        return found

    def node(self, parent: Any, name: str) -> tuple[str, dict[str, NDArray[Any]]]:
        group = self.group(parent, name)
        kind = self.text(group, "type")
        if kind not in KINDS:
            raise ValueError(f"node '{name}' is a {kind}; expected one of {', '.join(KINDS)}")
        return kind, {key: self.array(group, key) for key in KINDS[kind]}

    def array(self, parent: Any, name: str) -> NDArray[Any]:
        data = self.child(parent, name)
        if data.dtype.kind not in "fiu":
            raise ValueError(f"'{parent.name}/{name}' does not hold numbers")
        self._pay(data)
        values = self._inflate(data) if data.compression == "gzip" else np.asarray(data[()])
        if not np.isfinite(values).all():
            raise ValueError(f"'{parent.name}/{name}' is not finite")
        return values

    def _pay(self, data: Any) -> None:
        if data.external or data.is_virtual:
            raise ValueError(f"'{data.name}' is stored in another file")
        if data.compression not in (None, "gzip") or data.shuffle or data.fletcher32 or data.scaleoffset is not None:
            raise ValueError(f"'{data.name}' is compressed in an unsupported way")
        self._spend(max(data.nbytes, prod(data.chunks or ()) * data.dtype.itemsize), data.name)

    def _spend(self, size: int, name: str) -> None:
        self.budget -= 2 * size  # once as stored, once as used
        if self.budget < 0:
            raise ValueError(
                f"'{name}' claims {size} bytes, too many for a file of this size; if you trust it, set "
                f"{limits.VARIABLE} to more MiB"
            )

    @staticmethod
    def _inflate(data: Any) -> NDArray[Any]:
        """Unpack gzip here, because HDF5 would let a chunk grow beyond its declared size."""
        values = np.zeros(data.shape, data.dtype)
        size = prod(data.chunks) * data.dtype.itemsize
        for index in range(data.id.get_num_chunks()):
            offset = data.id.get_chunk_info(index).chunk_offset
            skipped, packed = data.id.read_direct_chunk(offset)
            unpacked = packed if skipped else zlib.decompressobj().decompress(packed, size + 1)
            if len(unpacked) != size:
                raise ValueError(f"'{data.name}' has a chunk of the wrong size")
            chunk = np.frombuffer(unpacked, data.dtype).reshape(data.chunks)
            place = tuple(slice(o, o + c) for o, c in zip(offset, data.chunks, strict=True))
            values[place] = chunk[tuple(slice(0, n) for n in values[place].shape)]
        return values


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
    values["stride"], values["padding"] = np.array(pair(values["stride"], 1)), np.array(pair(values["padding"], 0))
    values["kernel_size"] = np.array(kernel)
    if max(values["padding"].tolist()) > max(kernel):
        raise ValueError(f"a padding of {values['padding'].tolist()} is larger than the kernel {list(kernel)}")
    return tuple(
        (n + 2 * p - k) // s + 1
        for n, k, s, p in zip(size[1:], kernel, values["stride"].tolist(), values["padding"].tolist(), strict=True)
    )
