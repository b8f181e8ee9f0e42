"""Both official layouts, written here in small."""

import hashlib
import os
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rheobase import data
from rheobase.data.sets import cifar

COUNTS = {"cifar10": (2, 3), "cifar100": (5, 4)}  # images per training and per test file
Folder = Callable[[str, str], Path]


def write(folder: Path, layout: cifar.Layout, name: str, first: bool) -> None:
    """Files with made-up labels and pixels; the same ones for both layouts of a data set."""
    folder.mkdir(parents=True, exist_ok=True)
    count = COUNTS[name][0 if first else 1]
    classes = 10 if name == "cifar10" else 100
    for i, file in enumerate(layout.train if first else layout.test):
        rng = np.random.default_rng([classes, first, i])
        labels = rng.integers(0, classes, count, dtype=np.uint8)
        pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        if isinstance(layout.label, int):
            coarse = np.zeros((count, layout.label - 1), np.uint8)
            (folder / file).write_bytes(np.concatenate([coarse, labels[:, None], pixels], 1).tobytes())
        else:
            content = {"data": pixels, layout.label: labels.tolist(), "filenames": ["a.png"] * count}
            (folder / file).write_bytes(pickle.dumps(content, protocol=4))
    names = [f"class{i}" for i in range(classes)]
    if layout.names_key:
        (folder / layout.names).write_bytes(pickle.dumps({layout.names_key: names}, protocol=2))
    else:
        (folder / layout.names).write_text("\n".join(names) + "\n\n")


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all four official folders, and their checksums in place of the real ones."""
    for name, layouts in cifar.LAYOUTS.items():
        changed = []
        for layout in layouts:
            folder = tmp_path / layout.folder
            write(folder, layout, name, True)
            write(folder, layout, name, False)
            archive = tmp_path / layout.archive
            with tarfile.open(archive, "w:gz") as tar:
                tar.add(folder, layout.folder)
            changed.append(
                replace(
                    layout,
                    train={file: md5(folder / file) for file in layout.train},
                    test={file: md5(folder / file) for file in layout.test},
                    archive_md5=md5(archive),
                    names_md5=md5(folder / layout.names),
                )
            )
        monkeypatch.setitem(cifar.LAYOUTS, name, tuple(changed))
    monkeypatch.setattr(cifar, "SITE", tmp_path.as_uri())
    return tmp_path


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_both_layouts_hold_the_same(small: Path, name: str) -> None:
    binary, python = (data.load(name, small / layout.folder) for layout in cifar.LAYOUTS[name])
    for split in ("train", "test"):
        assert torch.equal(getattr(binary, split).images, getattr(python, split).images)
        assert torch.equal(getattr(binary, split).labels, getattr(python, split).labels)
    files, (train, test) = len(cifar.LAYOUTS[name][0].train), COUNTS[name]
    assert (len(binary.train), len(binary.test)) == (files * train, test)
    assert binary.train.images.shape[1:] == (3, 32, 32)
    assert binary.info.classes == python.info.classes
    assert binary.info.classes[-1] == f"class{len(binary.info.classes) - 1}"
    assert binary.info == python.info


def test_pixels_are_planes_and_the_fine_label_counts(small: Path) -> None:
    found = data.load("cifar100", small)
    record = (small / "cifar-100-binary" / "test.bin").read_bytes()
    assert found.test.labels[0] == record[1]
    assert found.test.images[0, 1, 0, 3] == record[2 + 1024 + 3]


def test_fingerprints_follow_from_the_checksums(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = data.load("cifar10", small).info.fingerprint
    assert before != data.load("cifar100", small).info.fingerprint
    binary, python = cifar.LAYOUTS["cifar10"]
    changed = replace(binary, test={"test_batch.bin": "another"})
    monkeypatch.setitem(cifar.LAYOUTS, "cifar10", (changed, python))
    assert before != data.load("cifar10", small / python.folder).info.fingerprint


def test_absent_files_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no cifar10 in .*: expected cifar-10-batches-bin .* unpack http.*--download"):
        data.load("cifar10", tmp_path)


def test_a_damaged_and_a_missing_file(small: Path) -> None:
    file = small / "cifar-10-batches-bin" / "data_batch_3.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"data_batch_3\.bin is not the official file"):
        data.load("cifar10", small)
    file.unlink()
    with pytest.raises(ValueError, match=r"cannot read .*data_batch_3\.bin: No such file"):
        data.load("cifar10", small)


def test_download_unpacks_the_archive(small: Path) -> None:
    found = data.load("cifar10", small / "new", download=True)
    assert torch.equal(found.train.images, data.load("cifar10", small).train.images)
    assert not list((small / "new").glob("*.tar.gz*"))


def test_an_archive_that_is_there_is_unpacked_and_kept(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "SITE", "file:///nowhere")
    mine = small / "mine" / "cifar-10-binary.tar.gz"
    mine.parent.mkdir()
    mine.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"tar\.gz is not the official archive: its checksum differs; remove it and"):
        data.load("cifar10", mine.parent, download=True)
    assert mine.read_bytes() == b"something else"
    mine.write_bytes((small / mine.name).read_bytes())
    found = data.load("cifar10", mine.parent, download=True)
    assert torch.equal(found.train.images, data.load("cifar10", small).train.images)
    assert mine.is_file()


def test_a_download_that_fails_or_differs(small: Path) -> None:
    archive = small / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"is not the official archive: its checksum differs"):
        data.load("cifar10", small / "new", download=True)
    archive.unlink()
    with pytest.raises(OSError, match=r"could not download file:.*get the file another way"):
        data.load("cifar10", small / "new", download=True)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_pickle_of_names_that_is_not_the_official_one_is_not_opened(small: Path, name: str) -> None:
    layout = cifar.LAYOUTS[name][1]
    (small / layout.folder / layout.names).write_bytes(b"\x80\x03B\xff\xff\xff\xff..")  # asks for 4 GiB
    with pytest.raises(ValueError, match=f"{layout.names} is not the official file"):
        data.load(name, small / layout.folder)


def test_names_that_are_no_text(small: Path) -> None:
    (small / "cifar-10-batches-bin" / "batches.meta.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"batches\.meta\.txt is not a text"):
        data.load("cifar10", small)


def test_another_number_of_names(small: Path) -> None:
    path = small / "cifar-10-batches-bin" / "batches.meta.txt"
    path.write_text(path.read_text() + "frogs\n")
    with pytest.raises(ValueError, match=r"batches\.meta\.txt has 11 names, expected 10; unpack"):
        data.load("cifar10", small)


@pytest.mark.parametrize("bytes_left", [0, 3072])
def test_files_that_hold_no_whole_images(small: Path, bytes_left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their checksums agree."""
    layout, _ = cifar.LAYOUTS["cifar10"]
    path = small / layout.folder / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:bytes_left])
    monkeypatch.setitem(cifar.LAYOUTS, "cifar10", (replace(layout, test={path.name: md5(path)}),))
    with pytest.raises(ValueError, match=rf"test_batch\.bin: {bytes_left} bytes are not whole images of 3073; unpack"):
        data.load("cifar10", small)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


@pytest.mark.parametrize("value", [Evil(), np.array([Evil()], dtype=object), {"a": [Evil()]}, print, Path("a")])
def test_a_pickle_that_could_run_code_is_refused(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"the pickle asks for .*, which no data file needs"):
        cifar.unpickle(pickle.dumps({"data": value}, protocol=4))
    assert not list(tmp_path.iterdir())


def test_a_pickle_of_python_2_is_read() -> None:
    array = (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x03\x85"
    )
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    assert cifar.unpickle(array + dtype + b"\x89U\x03\x00\x80\xfftbs.")["data"].tolist() == [0, 128, 255]


def test_the_official_files_where_they_are_at_hand() -> None:
    folder = os.environ.get("RHEOBASE_CIFAR10")
    if folder is None:
        pytest.skip("RHEOBASE_CIFAR10 does not say where the official files are")
    found = data.load("cifar10", Path(folder))
    assert (len(found.train), len(found.test)) == (50_000, 10_000)
    assert [round(m / 255, 4) for m in found.info.mean] == [0.4914, 0.4822, 0.4465]
    assert [round(s / 255, 4) for s in found.info.std] == [0.2470, 0.2435, 0.2616]
