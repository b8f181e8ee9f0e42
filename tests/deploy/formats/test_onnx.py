import numpy as np
import pytest
import torch
from torch import nn

from rheobase.deploy.folding import fold
from rheobase.deploy.formats import onnx as rheobase_onnx
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF
from rheobase.deploy.quantize import quantize
from tests.deploy.networks import SMALL, images, tiny, trained_like

onnx = pytest.importorskip("onnx", reason="the extra rheobase[onnx] is not installed")
pytest.importorskip("onnxruntime", reason="the extra rheobase[onnx] is not installed")


def exported(network, folder, shape):
    rheobase_onnx.write(network, folder / "net.onnx", shape)
    return rheobase_onnx.Session(folder / "net.onnx")


@pytest.mark.parametrize("global_pool", [False, True])
def test_logits_of_onnxruntime_are_equal_in_float64(tmp_path, global_pool):
    model = tiny(global_pool=global_pool)
    session = exported(fold(model), tmp_path, (2, 7, 7))
    x = images(3, 2, 7)
    torch.testing.assert_close(session(x, 4), model(x, 4), rtol=0, atol=1e-9)
    sequence = torch.stack([images(3, 2, 7, seed) for seed in range(4)])
    torch.testing.assert_close(session(sequence), model(sequence), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "options", "size", "timesteps"), SMALL[:2], ids=["resnet8", "plain20"])
def test_networks_of_the_package(tmp_path, name, options, size, timesteps):
    model = trained_like(name, size, **options)
    channels = options["in_channels"]
    x = images(2, channels, size)
    session = exported(fold(model), tmp_path, (channels, size, size))
    torch.testing.assert_close(session(x, timesteps), model(x, timesteps), rtol=0, atol=1e-9)


def test_float32_uses_the_convolution_operator(tmp_path):
    network = fold(tiny()).float()
    session = exported(network, tmp_path, (2, 7, 7))
    operators = {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
    assert "Conv" in operators
    assert "MatMul" in operators  # linear layers
    x = images(3, 2, 7).float()
    torch.testing.assert_close(session(x, 1), network(x, 1), rtol=0, atol=1e-4)


def test_a_network_without_convolutions(tmp_path):
    synapses = {"in": nn.Linear(2 * 7 * 7, 5), "out": nn.Linear(5, 3)}
    nodes = {"flatten": nn.Flatten(), "in": synapses["in"], "a": LIF(0.25, torch.ones(5)), "out": synapses["out"]}
    network = Network(nodes, {"flatten": [INPUT], "in": ["flatten"], "a": ["in"], "out": ["a"]}).requires_grad_(False)
    x = images(4, 2, 7).float()
    torch.testing.assert_close(exported(network, tmp_path, (2, 7, 7))(x, 3), network(x, 3), rtol=0, atol=1e-5)


def test_a_quantised_network_is_exact(tmp_path):
    network = quantize(fold(tiny(decay=0.3)), images(6, 2, 7, seed=5), 4)
    x = images(3, 2, 7)
    torch.testing.assert_close(exported(network, tmp_path, (2, 7, 7))(x, 4), network(x, 4), rtol=0, atol=1e-12)


def test_the_file_streams(tmp_path):
    network = fold(tiny())
    session = exported(network, tmp_path, (2, 7, 7))
    x, state = images(3, 2, 7), None
    values = {name: np.zeros((3, *start.shape)) for name, start in session.start.items()}
    for _ in range(3):
        logits, state = network.step(x, state)
        theirs, *after = session.session.run(None, {"input": x.numpy(), **values})
        values = dict(zip(values, after, strict=True))
        np.testing.assert_allclose(theirs, logits.numpy(), atol=1e-9)
        for name, v in state.items():
            np.testing.assert_allclose(values[f"{name}_v"], v.numpy(), atol=1e-9)


def test_info_travels(tmp_path):
    network = fold(tiny())
    network.info["classes"] = ["a", "b"]
    assert exported(network, tmp_path, (2, 7, 7)).info == {"classes": ["a", "b"]}


def test_half_precision_is_refused():
    with pytest.raises(ValueError, match="float32 or float64"):
        rheobase_onnx.to_onnx(fold(tiny()).bfloat16(), (2, 7, 7))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_damaged_files_are_refused(tmp_path, share):
    path = tmp_path / "net.onnx"
    rheobase_onnx.write(fold(tiny()), path, (2, 7, 7))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="damaged"):
        rheobase_onnx.Session(path)


def rewritten(path, change):
    model = onnx.load(path)
    change(model)
    path.write_bytes(model.SerializeToString())


def other_operator(model):
    model.graph.node.append(onnx.helper.make_node("ConstantOfShape", ["size"], ["bomb"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2**40]), "size"))


def foreign_storage(model):
    tensor = max(model.graph.initializer, key=lambda t: len(t.raw_data))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")


def huge_padding(model):
    pad = next(node.input[1] for node in model.graph.node if node.op_type == "Pad")
    tensor = next(t for t in model.graph.initializer if t.name == pad)
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([0, 0, 2**30, 2**30, 0, 0, 2**30, 2**30]), pad))


def other_outputs(model):
    model.graph.output[0].name = "something"


def doubled(model):
    name = model.graph.node[0].output[0]
    for i in range(24):
        model.graph.node.append(onnx.helper.make_node("Concat", [name, name], [f"double{i}"], axis=1))
        name = f"double{i}"


def computed_size(model):
    node = next(node for node in model.graph.node if node.op_type == "Reshape")
    model.graph.node.insert(0, onnx.helper.make_node("Mul", [node.input[1], node.input[1]], ["size"]))
    node.input[1] = "size"


def slice_step(number):
    def change(model):
        name = next(node.input[4] for node in model.graph.node if node.op_type == "Slice")
        tensor = next(t for t in model.graph.initializer if t.name == name)
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([number, number]), name))

    return change


def other_attribute(model):
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("mode", "wrap"))


def lost_state(model):
    del model.graph.output[1]


def no_outputs(model):
    del model.graph.output[:]


def unknown_state(model):
    next(p for p in model.metadata_props if p.key == "initial").value = '{"nobody": [1.0]}'


def no_record(model):
    next(p for p in model.metadata_props if p.key == "info").value = "[1]"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (doubled, "its layers would take .* MiB of memory"),
        (computed_size, "a Reshape has sizes that are not constants"),
        (slice_step(0), "a size of a Slice: expected a whole number from 1 to 1024, got 0"),
        (slice_step(-(2**63)), "a size of a Slice: expected a whole number from 1"),
        (other_attribute, "has an unexpected attribute 'mode'"),
        (lost_state, "not those of a deployed network"),
        (no_outputs, "not those of a deployed network"),
        (unknown_state, "of unknown layers: nobody"),
        (no_record, "is not a JSON object"),
        (other_operator, "unknown operators: ConstantOfShape"),
        (foreign_storage, "stored in another file"),
        (huge_padding, "a size of a Pad: expected a whole number from 0 to 1024, got 1073741824"),
        (other_outputs, "not those of a deployed network"),
    ],
)
def test_hostile_files_are_refused(tmp_path, change, words):
    path = tmp_path / "net.onnx"
    rheobase_onnx.write(fold(tiny()), path, (2, 7, 7))
    rewritten(path, change)
    with pytest.raises(ValueError, match=words):
        rheobase_onnx.Session(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        rheobase_onnx.Session(tmp_path / "missing.onnx")


@pytest.mark.parametrize("attribute", ["strides", "dilations", "group"])
def test_a_convolution_by_zero_is_refused(tmp_path, attribute):
    path = tmp_path / "net.onnx"
    rheobase_onnx.write(fold(tiny()).float(), path, (2, 7, 7))

    def change(model):
        node = next(node for node in model.graph.node if node.op_type == "Conv")
        found = next(a for a in node.attribute if a.name == attribute)
        found.CopyFrom(onnx.helper.make_attribute(attribute, 0 if attribute == "group" else [0, 0]))

    rewritten(path, change)
    with pytest.raises(ValueError, match=f"{attribute} of a Conv: expected a whole number from 1"):
        rheobase_onnx.Session(path)


def test_images_of_another_shape_are_refused(tmp_path):
    session = exported(fold(tiny()), tmp_path, (2, 7, 7))
    with pytest.raises(ValueError, match=r"net\.onnx: expected images of \[2, 7, 7\], got \[2, 8, 8\]"):
        session(images(3, 2, 8), 2)
