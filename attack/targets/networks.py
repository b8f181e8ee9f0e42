"""Deployed networks: safetensors, ONNX and NIR files, and checkpoints of other code. Networks that open are run."""

import io
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from struct import pack, unpack_from
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from attack.mutations import ODD, changed, damaged
from attack.targets import Target
from rheobase import recipes
from rheobase.data import expected
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import native, nir, onnx
from rheobase.deploy.importers import read_state
from rheobase.deploy.network import Network
from rheobase.deploy.nirfile import read as read_graph
from rheobase.deploy.quantize import quantize
from rheobase.deploy.simulate import simulate
from rheobase.models import build
from rheobase.tasks.open import input_dtype, open_as_it_is

SIDE = 8
LONGEST = 16  # timesteps; a file may ask for thousands, which would take long


def network() -> Network:
    """Return a small network with every kind of layer, which states what it was trained on."""
    torch.manual_seed(0)
    model = build("resnet8", num_classes=10, in_channels=1, image_size=SIDE).eval().requires_grad_(False)
    found = fold(model)
    recipe, data = recipes.get("demo"), expected("digits")
    found.info.update(json.loads(json.dumps({"recipe": asdict(recipe), "data": data.as_dict()})))
    return found


def quantised() -> Network:
    """Return the same network in integers."""
    return quantize(network().double(), torch.rand(4, 1, SIDE, SIDE, dtype=torch.float64), 2)


def _written(module: Any, made: Network, name: str) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        module.write(made, path, (1, SIDE, SIDE))
        return {name: same_header(path.read_bytes()) if module is native else path.read_bytes()}


@torch.no_grad()
def run(folder: Path) -> None:
    """Open the network in the folder and show it an image, as `predict` does."""
    (path,) = folder.iterdir()
    found, stated = open_as_it_is(path)
    x = torch.rand(1, *stated.data.shape).to(input_dtype(found))
    if stated.data.timesteps:
        x = x.expand(min(stated.data.timesteps, LONGEST), *x.shape)
    found(x, min(stated.recipe.timesteps, LONGEST) if x.ndim == 4 else None)
    if path.suffix == nir.SUFFIX:
        simulate(read_graph(path), x.numpy().reshape(-1, *stated.data.shape)[0], 1)


def same_header(content: bytes) -> bytes:
    """Return a safetensors file with a sorted header, so that it is the same whenever it is written."""
    (length,) = unpack_from("<Q", content)
    text = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True).encode()
    return pack("<Q", len(text)) + text + content[8 + length :]


def safetensors_file(content: bytes, random: Random) -> bytes:
    """Change the header, or the JSON of the wiring in it. Its length is correct."""
    (length,) = unpack_from("<Q", content)
    header, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
    about = header.get("__metadata__", {})
    texts = [key for key, text in about.items() if text[:1] in "[{"]
    if texts and random.random() < 0.8:
        key = random.choice(texts)
        about[key] = json.dumps(changed(json.loads(about[key]), random))
    else:
        header = changed(header, random)
    text = json.dumps(header).encode()
    return pack("<Q", len(text)) + text + rest


def onnx_file(content: bytes, random: Random) -> bytes:
    """Change the value of some field, or repeat a node or tensor."""
    import onnx as package

    model = package.load_from_string(content)
    for _ in range(random.choice((1, 1, 2))):
        with suppress(IndexError, ValueError):  # an earlier change may have cleared it
            _change_model(package, model, random)
    return model.SerializeToString()


def _change_model(package: Any, model: Any, random: Random) -> None:
    what, graph = random.random(), model.graph
    if what < 0.1:
        _double(package, graph, random)
    elif what < 0.2:
        part = random.choice((graph.node, graph.initializer, graph.input, graph.output))
        part.append(random.choice(part))
    elif what < 0.3:
        node = random.choice(graph.node)
        values = [name for other in graph.node for name in (*other.input, *other.output)]
        node.input[random.randrange(len(node.input))] = random.choice(values)
    elif what < 0.4:
        entry = random.choice(model.metadata_props)
        entry.value = json.dumps(changed(json.loads(entry.value), random)) if random.random() < 0.8 else "x"
    else:
        _change_field(model, random)


def _double(package: Any, graph: Any, random: Random) -> None:
    """Concatenate a value with itself, often enough to fill any memory."""
    name = random.choice(graph.node).output[0]
    for i in range(random.choice((3, 24, 40))):
        graph.node.append(package.helper.make_node("Concat", [name, name], [f"double{i}"], axis=1))
        name = f"double{i}"
    graph.node.append(package.helper.make_node("Add", [name, name], ["doubled"]))


def _change_field(message: Any, random: Random) -> None:
    while True:
        described, value = random.choice(message.ListFields() or [(None, None)])
        if described is None:
            return
        repeated = hasattr(value, "append") or hasattr(value, "add")
        if described.message_type is not None and (not repeated or len(value)):
            message = random.choice(value) if repeated else value
            if random.random() < 0.05:
                message.Clear()
                return
            continue
        numbers = [n for n in ODD if type(n) is int and abs(n) < 2**63]
        new: Any = {
            "int": random.choice(numbers),
            "float": random.choice([n for n in ODD if isinstance(n, float)]),
            "str": random.choice([s for s in ODD if isinstance(s, str)]),
            "bytes": random.choice((b"", b"\0", b"\xff" * 64)),
        }
        try:
            if repeated and random.random() < 0.3:
                del value[random.randrange(len(value))]
            elif repeated:
                value[random.randrange(len(value))] = new[type(value[0]).__name__]
            else:
                setattr(message, described.name, new[type(value).__name__])
        except (ValueError, IndexError, KeyError):  # outside the range of the field
            pass
        return


def nir_file(content: bytes, random: Random) -> bytes:
    """Replace, remove, link or copy an array or text somewhere in the file."""
    import h5py

    with io.BytesIO(content) as memory:
        with h5py.File(memory, "a") as file:
            names: list[str] = []
            file.visit(names.append)
            for _ in range(random.choice((1, 1, 2))):
                with suppress(KeyError, OSError):  # an earlier change may have removed or linked it
                    _change_dataset(h5py, file, random.choice(names), random)
        return memory.getvalue()


def _change_dataset(h5py: Any, file: Any, name: str, random: Random) -> None:
    old = file[name]
    value = old[()] if isinstance(old, h5py.Dataset) else None
    what = random.random()
    if what < 0.1:
        del file[name]
    elif what < 0.15:
        del file[name]
        file[name] = random.choice((h5py.SoftLink("/node"), h5py.ExternalLink("/dev/zero", "/a")))
    elif what < 0.2:
        file.copy(name, f"{name}x")
    elif what < 0.3:
        del file[name]
        texts = np.array(["x" * random.choice((1, 1000, 50_000))] * random.choice((1, 8, 3000)), h5py.string_dtype())
        file.create_dataset(name, data=texts, **random.choice(({}, {"compression": "gzip", "chunks": True})))
    elif what < 0.4:
        shape = tuple(random.choice((1, 4, 1000, 2**20, 2**31)) for _ in range(random.randrange(1, 5)))
        del file[name]
        file.create_dataset(name, shape, random.choice(("f8", "i1", "f4")), chunks=tuple(min(n, 64) for n in shape))
    elif value is not None and getattr(value, "dtype", None) is not None and value.dtype.kind in "fiu":
        flat = np.array(value, dtype=np.float64).ravel()
        if flat.size:
            flat[random.randrange(flat.size)] = random.choice((0, -1, 1e30, -1e300, np.nan, np.inf, 2**31, 0.5, 1024))
        shapes = (value.shape, flat.shape, (flat.size, 1), flat[:-1].shape)
        shape = random.choice(shapes)
        del file[name]
        file[name] = flat[: int(np.prod(shape))].reshape(shape)
    else:
        del file[name]
        texts = ("LIF", "Conv2d", "Input", "Output", "Flatten", "", "\x1b[1m", 1.5, "[" * 100_000, "NaN")
        file[name] = random.choice(texts)


def state(folder: Path) -> None:
    """Read the weights of other code."""
    (path,) = folder.iterdir()
    read_state(path)


def _torch_file() -> dict[str, bytes]:
    file = io.BytesIO()
    torch.save({"state_dict": {"a.weight": torch.zeros(3, 4), "b.bias": torch.ones(5)}}, file)
    return {"state.pt": file.getvalue()}


TARGETS = (
    Target(
        "network file",
        lambda: _written(native, network(), "net.safetensors"),
        run,
        {".safetensors": safetensors_file},
    ),
    Target(
        "quantised network file",
        lambda: _written(native, quantised(), "net.safetensors"),
        run,
        {".safetensors": safetensors_file},
    ),
    Target(
        "ONNX", lambda: _written(onnx, network(), "net.onnx"), run, {".onnx": onnx_file}, needs=("onnx", "onnxruntime")
    ),
    Target("NIR", lambda: _written(nir, network(), "net.nir"), run, {".nir": nir_file}, needs=("h5py", "nir")),
    Target("checkpoint of others", _torch_file, state, {".pt": damaged}),
)
