"""Tar archives whose headers say what is not so."""

import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from rheobase.data.archives import members, read


def archive(path: Path, *entries: tarfile.TarInfo) -> Path:
    """A file 'a' of five bytes, and headers behind it, to the last byte."""
    first = tarfile.TarInfo("a")
    first.size = 5
    with open(path, "wb") as file:
        file.write(first.tobuf() + b"hello".ljust(512, b"\0"))
        for entry in entries:
            file.write(entry.tobuf())
    return path


def test_a_link_has_no_content_whatever_size_it_states(tmp_path: Path) -> None:
    """Some writers state the size of the file that a hard link leads to."""
    link = tarfile.TarInfo("b")
    link.type, link.linkname, link.size = tarfile.LNKTYPE, "a", 10**6
    found = list(members(archive(tmp_path / "a.tar", link)))
    assert [(one.name, read(one)) for one in found] == [("a", b"hello")]


def test_a_file_cut_short(tmp_path: Path) -> None:
    large = tarfile.TarInfo("b" * 70)
    large.size = 10**6
    path = archive(tmp_path / "a.tar", large)
    with pytest.raises(ValueError, match=rf"a\.tar: not a complete tar archive \('{'b' * 60}' is cut short\); get"):
        list(members(path))
    with tarfile.open(tmp_path / "outer.tar", "w") as tar:
        entry = tarfile.TarInfo("inner.tar")
        entry.size = path.stat().st_size
        tar.addfile(entry, BytesIO(path.read_bytes()))
        tar.addfile(large, BytesIO(bytes(10**6)))
    (inner, _) = members(tmp_path / "outer.tar")
    with pytest.raises(ValueError, match="is cut short"):  # there are bytes behind, of another file
        list(members(tmp_path / "outer.tar", inner))


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar")
    content = bytearray(path.read_bytes())
    content[0:2] = b"\xff\xfe"
    content[148:156] = b" " * 8
    content[148:156] = f"{sum(content[:512]):06o}\0 ".encode()
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"a\.tar: not a complete tar archive \('\\udcff\\udcfe' is not a name in UTF-8\); get"
    ):
        list(members(path))
