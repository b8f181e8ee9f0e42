"""NumPy's files that lie about their sizes, or are none."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rheobase.data.arrays import from_npz, read_npy
from rheobase.data.info import DataInfo
from rheobase.data.pictures import read

INFO = DataInfo(name="digits", classes=("a",), channels=1, size=4, mean=(2.0,), std=(4.0,))


def npy(shape: str = "(1, 4, 4)", kind: str = "<f4", body: bytes = bytes(64), version: int = 1) -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 * min(version, 2), "little") + header + body


def test_arrays_come_back(tmp_path: Path) -> None:
    for values in (np.arange(24.0).reshape(2, 3, 4), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(True)):
        np.save(tmp_path / "a.npy", values)
        found = read_npy(tmp_path / "a.npy")
        assert found.dtype == values.dtype
        assert np.array_equal(found, values)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"hello", npy()[:9], npy(body=b""), npy(body=bytes(65)), npy("(-1,)"), npy("(True, 4, 4)"), npy("(1.5,)"),
        npy("16"), npy("(0, 99999999999999999999)"), npy("(1048576, 1048576, 1048576)"), npy(kind="|O"),
        npy(kind="|V0"), npy(kind="<U4"), npy(kind="<c8"), npy(kind="x"), npy(kind="<M8[s]"), npy("(" * 5000),
        npy(version=9), npy(kind="<i4,<f8"), npy("('a',)"), npy(kind="<f16"),
    ],
    ids=range(22),
)  # fmt: skip
def test_a_file_that_is_no_array_of_numbers(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npy: not a NumPy array: ") as found:
        read_npy(tmp_path / "a.npy")
    assert "\n" not in str(found.value)


def npz(**arrays: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def test_an_archive_may_not_unpack_to_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    small = npy("(2097152,)", "|u1", bytes(2**21))
    content = npz(a=small, b=small)
    assert len(content) < 10_000
    assert len(from_npz(content, "c.npz", "ab")["b"]) == 2**21
    monkeypatch.setenv("RHEOBASE_FILE_MEMORY", "100")
    assert from_npz(content, "c.npz", "a").keys() == {"a"}
    with pytest.raises(
        ValueError, match=r"^c\.npz: not a complete \.npz file of arrays \(b \[2097152\] would take 164 MiB"
    ):
        from_npz(content, "c.npz", "ab")


@pytest.mark.parametrize("body", [bytes(63), bytes(65)])
def test_sizes_in_an_archive_are_exact(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a complete \.npz file"):
        from_npz(npz(a=npy(body=body)), "c.npz", "a")


def test_the_checksum_in_an_archive_counts() -> None:
    content = bytearray(npz(a=npy(body=np.random.default_rng(0).bytes(64))))
    content[-200] ^= 1
    with pytest.raises(ValueError, match=r"not a complete \.npz file"):
        from_npz(bytes(content), "c.npz", "a")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_an_image_with_a_value_that_is_not_finite(value: float, tmp_path: Path) -> None:
    image = np.zeros((1, 4, 4))
    image[0, 2, 3] = value
    np.save(tmp_path / "a.npy", image)
    with pytest.raises(ValueError, match=r"a\.npy: a value at \[0, 2, 3\] is not a finite number$"):
        read(tmp_path / "a.npy", INFO)
