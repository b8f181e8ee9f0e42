import json
from pathlib import Path

import pytest

from rheobase.files import atomic_write, finite_or_null, strict_json, write_json


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


def test_a_link_goes_on_pointing_and_a_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with atomic_write(tmp_path / "link") as part:
        part.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    with pytest.raises(ValueError, match="is not a file that could be replaced"), atomic_write(tmp_path):
        pass


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
