from pathlib import Path

import pytest

from rheobase.files import replaced


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replaced(path) as part:
        part.write_text("half")
        assert not path.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "half"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("wrong"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_one(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with replaced(path) as part:
            part.write_text("half")
            raise error

    with pytest.raises(type(error)) as found:
        fail()
    if isinstance(error, OSError):
        assert str(found.value).startswith(f"cannot write {path}: No space left on device;")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"
