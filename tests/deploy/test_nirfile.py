"""A damaged or hostile file gives a clear error, executes nothing and does not eat memory."""

import resource
import zlib

import numpy as np
import pytest

from rheobase.deploy import nirfile
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import nir as rheobase_nir
from tests.deploy.networks import tiny

h5py = pytest.importorskip("h5py", reason="the extra rheobase[nir] is not installed")
pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")


@pytest.fixture
def path(tmp_path):
    rheobase_nir.write(fold(tiny()), tmp_path / "net.nir", (2, 7, 7))
    return tmp_path / "net.nir"


def replace(path, name, **dataset):
    with h5py.File(path, "a") as file:
        del file[name]
        if dataset:
            file.create_dataset(name, **dataset)


def assert_refused(path, words):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=words):
        nirfile.read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # KiB


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


def test_links_are_refused(path, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["weight"] = np.zeros((4, 2, 3, 3))
    name = "node/nodes/stem/weight"
    replace(path, name)
    with h5py.File(path, "a") as file:
        file[name] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "weight")
    assert_refused(path, "weight. is a link")
    replace(path, name)
    with h5py.File(path, "a") as file:
        file[name] = h5py.SoftLink("/node")
    assert_refused(path, "weight. is a link")


def test_storage_in_another_file_is_refused(path, tmp_path):
    (tmp_path / "secret.bin").write_bytes(b"\0" * 4 * 2 * 9 * 8)
    storage = [(str(tmp_path / "secret.bin"), 0, h5py.h5f.UNLIMITED)]
    replace(path, "node/nodes/stem/weight", shape=(4, 2, 3, 3), dtype="f8", external=storage)
    assert_refused(path, "stored in another file")
    layout = h5py.VirtualLayout((4, 2, 3, 3), "f8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "weight", (4, 2, 3, 3))
    with h5py.File(path, "a") as file:
        del file["node/nodes/stem/weight"]
        file.create_virtual_dataset("node/nodes/stem/weight", layout)
    assert_refused(path, "stored in another file")


def test_claimed_sizes_are_not_believed(path):
    replace(path, "node/nodes/stem/weight", shape=(2**20, 2**10, 3, 3), dtype="f8", chunks=(1, 2, 3, 3))
    assert_refused(path, "too many for a file of this size")


def test_a_compressed_bomb_is_not_unpacked(path):
    replace(path, "node/nodes/stem/weight", shape=(4, 2, 3, 3), dtype="f8", chunks=(4, 2, 3, 3), compression="gzip")
    packer = zlib.compressobj(level=1)
    bomb = b"".join(packer.compress(bytes(2**20)) for _ in range(2**9)) + packer.flush()
    with h5py.File(path, "a") as file:
        file["node/nodes/stem/weight"].id.write_direct_chunk((0, 0, 0, 0), bomb)
    assert_refused(path, "chunk of the wrong size")


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


def test_texts_that_stand_for_many_are_not_read(path):
    """Compressed, few bytes could be thousands of references to one long text."""
    texts = np.array([["x" * 100] * 2] * 30, dtype=h5py.string_dtype())
    replace(path, "node/edges", data=texts, compression="gzip", chunks=(30, 2))
    assert_refused(path, "'/node/edges' has 60 texts, or stores them in chunks")
    replace(path, "node/edges", shape=(2**13 + 1, 2), dtype=h5py.string_dtype())
    assert_refused(path, "'/node/edges' has 16386 texts")


def test_one_long_text_again_and_again_is_not_read(path, monkeypatch):
    """Plain storage of 16 bytes each; here all of them point to one text, as a file by hand would."""
    monkeypatch.setenv("RHEOBASE_FILE_MEMORY", "1")
    replace(path, "node/edges", data=np.array([["x" * 1000] * 2] * 2000, dtype=h5py.string_dtype()))
    monkeypatch.setattr("rheobase.limits.MULTIPLE", 1)
    assert_refused(path, "'/node/edges' claims 4000 bytes, too many")


@pytest.mark.parametrize("name", ["node/edges", "node/type"])
def test_the_length_that_a_text_claims_is_not_believed(path, name):
    with h5py.File(path) as file:
        place = file[name].id.get_offset()
    content = bytearray(path.read_bytes())
    content[place : place + 4] = (2**31 - 5).to_bytes(4, "little")
    path.write_bytes(content)
    assert_refused(path, f"'/{name}' claims a text of 2147483643 bytes, more than the file has")


def test_texts_inside_of_headers_are_refused(path):
    """Their place is not known, so their lengths cannot be looked up."""
    with h5py.File(path, "a") as file:
        del file["node/type"]
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_layout(h5py.h5d.COMPACT)
        kind = h5py.h5t.py_create(h5py.string_dtype(), logical=True)
        data = h5py.h5d.create(file["node"].id, b"type", kind, h5py.h5s.create(h5py.h5s.SCALAR), layout)
        h5py.Dataset(data)[()] = "NIRGraph"
    assert_refused(path, "'/node/type' stores its texts in an unsupported way")


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
