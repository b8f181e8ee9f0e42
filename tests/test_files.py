import json
import os
from pathlib import Path

import pytest

from rheobase.files import atomic_write, finite_or_null, open_plain, parse_json, read_plain, strict_json, write_json


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_write(path) as part:
        part.write_text("half")
        assert not path.exists()
        written = part.stat().st_ino
    assert path.stat().st_ino == written  # renamed, not copied: nobody sees a half
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "half"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("wrong"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_one(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with atomic_write(path) as part:
            part.write_text("half")
            raise error

    with pytest.raises(type(error)) as found:
        fail()
    if isinstance(error, OSError):
        assert (found.value.filename, found.value.strerror) == (str(path), "No space left on device")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


def test_two_who_write_the_same_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_write(path) as first, atomic_write(path) as second:
        second.write_text("second")
        first.write_text("first")
    assert path.read_text() == "first"


def test_a_link_is_replaced_and_a_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    for target in ("file", "absent", "."):
        link = tmp_path / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / target)
        with atomic_write(link) as part:
            part.write_text("new")
        assert not link.is_symlink()
        assert link.read_text() == "new"
    assert (tmp_path / "file").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
    with pytest.raises(ValueError, match="is not a plain file and cannot be replaced"), atomic_write(tmp_path):
        pass


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_plain(tmp_path / "link") == b"content"
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(ValueError, match=f"^{path} is not a plain file$"):
            open_plain(path)
    with pytest.raises(ValueError, match=f"^{tmp_path} is a folder, not a file$"):
        open_plain(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "absent")


@pytest.mark.parametrize("text", ["[" * 200_000, "[NaN]", "-Infinity", "[1, ", b"\xff\xfe\xfd"])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_json_is_strict(tmp_path: Path) -> None:
    content = {"name": "a", "values": [1, 2.5, None], "nested": {"flag": True}}
    write_json(tmp_path / "file.json", content)
    assert json.loads((tmp_path / "file.json").read_text()) == content
    with pytest.raises(ValueError, match=r"file\.json\['values'\]\[1\] is inf, which JSON cannot hold"):
        write_json(tmp_path / "file.json", {"values": [1, float("inf")]})
    assert json.loads((tmp_path / "file.json").read_text()) == content


def test_what_is_not_finite_becomes_null() -> None:
    found = finite_or_null({"a": [float("nan"), 1.5], "b": {"c": float("-inf")}, "d": (2, "nan")})
    assert strict_json(found, "x") == '{"a": [null, 1.5], "b": {"c": null}, "d": [2, "nan"]}'
