"""A damaged or hostile file gives a clear error, executes nothing and does not eat memory."""

from pathlib import Path

import numpy as np
import pytest

from rheobase.deploy import nirfile
from rheobase.deploy.formats import nir as rheobase_nir
from tests.deploy.nirfiles import assert_refused, replace, written

h5py = pytest.importorskip("h5py", reason="the extra rheobase[nir] is not installed")
pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path)


def test_order_and_shapes(path):
    nodes = nirfile.read(path).nodes
    names = list(nodes)
    assert names[0] == "input"
    assert names[-1] == "output"
    assert all(names.index(source) < names.index(name) for name, node in nodes.items() for source in node.sources)
    assert nodes["body_1_soma"].shape == (6, 4, 4)


def test_other_files_are_refused(tmp_path):
    assert_refused(tmp_path / "missing.nir", "no such file")
    (tmp_path / "text.nir").write_text("hello")
    assert_refused(tmp_path / "text.nir", "not a NIR file")
    with h5py.File(tmp_path / "other.nir", "w") as file:
        file["something"] = 1
    assert_refused(tmp_path / "other.nir", "'//?node' is missing")


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9, 0.99])
def test_a_cut_file_is_refused(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert_refused(path, "net.nir: ")


def test_flipped_bytes_never_do_more_than_raise(path):
    content = path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(content)
        for position in random.integers(0, len(content), 20):
            damaged[position] = random.integers(256)
        path.write_bytes(bytes(damaged))
        try:
            nirfile.read(path)
        except ValueError:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("stem/type", "Lambda", "a Lambda; expected one of"),
        ("stem/weight", np.full((4, 2, 3, 3), np.nan), "not finite"),
        ("stem/weight", np.zeros((4, 3, 3, 3)), "does not fit its input"),
        ("stem/weight", np.zeros((4, 2)), "expected 4 dimensions"),
        ("stem/weight", "text", "does not hold numbers"),
        ("stem/bias", np.zeros(3), "does not fit its input"),
        ("stem/stride", np.array([0, 0]), "whole numbers from 1 to"),
        ("stem/padding", np.array([1000, 1000]), "larger than the kernel"),
        ("stem/padding", np.array([-5, -5]), "whole numbers from 0 to"),
        ("stem/groups", 2, "not supported"),
        ("input/shape", np.array([2, 10**6, 10**6]), "tau has the shape"),
        ("input/shape", np.array([2, -7, 7]), "is empty"),
        ("soma/tau", np.zeros((4, 7, 7)), "tau is not positive"),
        ("soma/r", np.ones((4, 7, 6)), "r has the shape"),
        ("head_pool/kernel_size", np.array([0, 0]), "whole numbers from 1 to"),
    ],
)
def test_wrong_contents_are_named(path, name, data, words):
    replace(path, f"node/nodes/{name}", data=data)
    assert_refused(path, words)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("body_3_soma3", "stem"), "inputs|wait for each other"),
        (("body_3_soma3", "soma"), "wait for each other"),
        (("stem", "nowhere"), "not both nodes"),
        (("soma", "stem"), "inputs|wait for each other"),
    ],
)
def test_wrong_edges_are_named(path, extra, words):
    with h5py.File(path, "a") as file:
        edges = [tuple(e) for e in file["node/edges"].asstr()[()]]
        del file["node/edges"]
        file["node/edges"] = np.array([*edges, extra], dtype=h5py.string_dtype())
    assert_refused(path, words)


def test_a_node_that_leads_nowhere_is_refused(path):
    with h5py.File(path, "a") as file:
        file.copy("node/nodes/head_decode", "node/nodes/zzz")
        edges = [tuple(edge) for edge in file["node/edges"][()].tolist()]
        (before,) = [a for a, b in edges if b == b"head_decode"]
        del file["node/edges"]
        file["node/edges"] = np.array([*edges, (before, b"zzz")], dtype=h5py.string_dtype())
    assert_refused(path, "node 'zzz' does not lead to the output")


def test_layers_that_would_take_too_much_memory_are_refused(path):
    with h5py.File(path, "a") as file:
        nodes = file["node/nodes"]
        for name in list(nodes):
            if name not in ("input", "output", "head_pool"):
                del nodes[name]
        del nodes["input/shape"], file["node/edges"]
        nodes["input/shape"] = np.array([2, 10**5, 10**5])
        file["node/edges"] = np.array([("input", "head_pool"), ("head_pool", "output")], dtype=h5py.string_dtype())
    assert_refused(path, "its layers would take .* MiB of memory")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("dt", "soon", "dt is soon; expected a number above 0"),
        ("dt", 0.0, "dt is 0.0"),
        ("dt", -1.0, "dt is -1.0"),
        ("fraction_bits", 1.5, "fraction_bits: expected a whole number from 0 to 52"),
        ("fraction_bits", 400.0, "fraction_bits: expected a whole number from 0 to 52"),
        ("input_unit", 0.0, "input_unit is 0.0"),
        ("input_largest", "x", "input_largest: expected a whole number"),
    ],
)
def test_metadata_are_numbers(path, name, value, words):
    with h5py.File(path, "a") as file:
        if name in file["node/metadata"]:
            del file["node/metadata"][name]
        file["node/metadata"][name] = value
    assert_refused(path, words)


@pytest.mark.parametrize("text", ["[]", "[" * 200_000, "{"])
def test_a_record_in_metadata_that_is_none(path, text):
    with h5py.File(path, "a") as file:
        del file["node/metadata/info"]
        file["node/metadata/info"] = text
    with pytest.raises(ValueError, match=r"^.*net\.nir: "):
        rheobase_nir.load(path)
