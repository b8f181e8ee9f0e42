import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rheobase.deploy.agreement import agreement, record
from rheobase.deploy.folding import fold
from rheobase.deploy.formats.native import load, save
from rheobase.deploy.quantize import quantize
from tests.deploy.networks import images, tiny


@pytest.fixture
def path(tmp_path):
    save(fold(tiny()), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def changed(path, change):
    """Rewrite the file with its header changed."""
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    nodes = json.loads(header["nodes"])
    change(nodes, tensors)
    save_file(tensors, path, header | {"nodes": json.dumps(nodes)})


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("global_pool", [False, True])
def test_a_saved_network_comes_back(tmp_path, global_pool, integer):
    network = fold(tiny(global_pool=global_pool))
    network.info["classes"] = ["a", "b"]
    network = quantize(network, images(6, 2, 7, seed=5), 4) if integer else network
    save(network, tmp_path / "net.safetensors")
    loaded = load(tmp_path / "net.safetensors")
    x = images(3, 2, 7)
    result = agreement(record(network, x, 4), record(loaded, x, 4))
    assert set(result.layers.values()) == {0.0}
    assert result.logits == 0
    assert loaded.info == network.info
    assert loaded.info["classes"] == ["a", "b"]


def test_8_bit_weights_of_earlier_versions_are_multiples_of_their_units(path):
    integers, units = torch.randint(-127, 128, (4, 2, 3, 3), dtype=torch.int8), torch.tensor([0.5, 1.0, 2.0, 3.0])
    changed(path, lambda _, tensors: tensors.update({"stem.weight": integers, "stem.unit": units.double()}))
    assert torch.equal(load(path).nodes["stem"].weight, integers.double() * units.double()[:, None, None, None])


def of_channels(nodes, tensors, decays):
    """Let the decay of the first neurons be a tensor."""
    nodes[1]["options"]["decay"] = None
    tensors["soma.decay"] = decays


def pool(nodes):
    """The options of a pool."""
    return next(node["options"] for node in nodes if node["kind"] == "AvgPool2d")


def test_files_of_plain_neurons_are_those_of_earlier_versions(tmp_path):
    save(fold(tiny()), tmp_path / "net.safetensors")
    with safe_open(tmp_path / "net.safetensors", "pt") as file:
        nodes = json.loads(file.metadata()["nodes"])
    assert nodes[1]["options"] == {"decay": 0.25, "fraction_bits": None}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda nodes, _: nodes[0].update(kind="Lambda"), "layer 'Lambda'"),
        (lambda nodes, _: nodes[0]["options"].update(hook="os.system"), "'hook'"),
        (lambda nodes, _: nodes[0]["options"].update(padding=[10**9, 10**9]), "whole numbers from 0 to 1023"),
        (lambda nodes, _: nodes[0]["options"].update(stride=[0, 0]), "whole numbers from 1 to 1023"),
        (lambda nodes, _: nodes[0]["options"].update(dilation=[1, 1.5]), "whole numbers from 1 to 1023"),
        (lambda nodes, _: nodes[0]["options"].update(stride=[1, 1, 1]), "whole numbers from 1 to 1023"),
        (lambda nodes, _: nodes[0]["options"].update(stride=[[1], 1]), "whole numbers from 1 to 1023"),
        (lambda nodes, _: nodes[0]["options"].update(groups=0), "groups: expected a whole number from 1 to 4"),
        (lambda nodes, _: nodes[0]["options"].update(groups=3), "4 channels in 3 groups"),
        (lambda nodes, _: nodes[0]["options"].update(groups=None), "groups: expected a whole number"),
        (lambda nodes, _: nodes[1]["options"].update(fraction_bits=-1), "fraction_bits: expected a whole number"),
        (lambda nodes, _: nodes[1]["options"].update(fraction_bits=10**400), "fraction_bits: expected a whole number"),
        (lambda nodes, _: nodes[1]["options"].update(initial=1e999), "not finite|not JSON"),
        (lambda nodes, _: nodes[1]["options"].update(decay=[0.5]), "float"),
        (lambda nodes, _: nodes[0].update(name=["stem"]), "no weights of 4 dimensions"),
        (lambda nodes, _: nodes.append(7), "not subscriptable"),
        (
            lambda _, tensors: tensors.update({"stem.weight": tensors["stem.weight"] / 0}),
            "stem.weight must hold",
        ),
        (lambda _, tensors: tensors.update({"stem.weight": tensors["stem.weight"].long()}), "stem.weight must hold"),
        (lambda _, tensors: tensors.update({"stem.weight": tensors["stem.weight"].float()}), "weights of one type"),
        (lambda nodes, _: pool(nodes).update(divisor_override=0), "divisor_override: expected a whole number"),
        (lambda nodes, _: pool(nodes).update(padding=[9, 9]), "more than half of its kernel"),
        (lambda nodes, _: nodes[1]["options"].update(decay=1e9), "decay outside"),
        (lambda nodes, _: nodes[1].update(inputs=["head_decode"]), "not an earlier node"),
        (lambda nodes, _: nodes[0].update(inputs=["input", "input"]), "it has the same input twice"),
        (lambda nodes, _: nodes[0].update(inputs=[]), "at least one input"),
        (lambda nodes, _: nodes[1]["options"].update(reset="half"), "unknown reset 'half'"),
        (lambda nodes, _: nodes[1]["options"].update(initial=None), "needs its initial either"),
        (lambda _, tensors: tensors.update({"soma.decay": torch.zeros(4)}), "needs its decay either"),
        (lambda nodes, tensors: of_channels(nodes, tensors, -torch.ones(4)), "decay outside"),
        (lambda nodes, tensors: of_channels(nodes, tensors, torch.ones(9)), "expected one decay, or 4"),
        (lambda nodes, _: nodes.clear(), "at least one node"),
        (lambda nodes, _: nodes[0].pop("name"), "'name'"),
        (lambda _, tensors: tensors.pop("stem.weight"), "no weights of 4 dimensions"),
        (lambda _, tensors: tensors.update({"stem.bias": torch.zeros(9)}), "bias that does not fit"),
        (lambda _, tensors: tensors.pop("soma.v_th"), "no thresholds"),
        (lambda _, tensors: tensors.update({"stem.unit": torch.ones(9)}), "units of a layer do not fit"),
    ],
)
def test_wrong_contents_are_named(path, change, words):
    changed(path, change)
    with pytest.raises(ValueError, match=words):
        load(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.4, 0.99])
def test_a_cut_file_is_refused(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"net\.safetensors"):
        load(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        load(tmp_path / "missing.safetensors")
    save_file({"x": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="its format is None"):
        load(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("units", "[null, 0]", "its units are"),
        ("units", "[NaN, 1.0]", "not JSON"),
        ("units", "[1e999, 1.0]", "its units are"),
        ("units", "[null, null]", "its units are"),
        ("units", "[true, 1.0]", "its units are"),
        ("units", "[0.5, 1.0, 0]", "the largest input: expected a whole number"),
        ("units", "[]", "not enough values"),
        ("info", "[]", "is not a JSON object"),
        ("info", "[" * 200_000, "nested too deeply"),
        ("nodes", "{}", "at least one node"),
    ],
)
def test_wrong_headers_are_named(path, key, text, words):
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, header | {key: text})
    with pytest.raises(ValueError, match=words) as found:
        load(path)
    assert "\n" not in str(found.value)


def test_large_whole_units_are_numbers(path):
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, header | {"units": f"[null, {10**30}]"})
    assert load(path)(images(1, 2, 7), 1).isfinite().all()
