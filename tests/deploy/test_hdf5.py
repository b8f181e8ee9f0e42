"""A hostile file cannot make the reader follow links, open other files or trust sizes. The files are NIR files."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.deploy.nirfiles import assert_refused, replace, written

h5py = pytest.importorskip("h5py", reason="the extra rheobase[nir] is not installed")
pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path)


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
