import os
from pathlib import Path

import pytest

from tests.data.images import SHADES, write


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("RHEOBASE_CACHE", str(folder))
    return folder


@pytest.fixture
def shared_events() -> Path:
    """Real recordings, in a folder named by RHEOBASE_EVENTS."""
    folder = os.environ.get("RHEOBASE_EVENTS")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs real recordings; name their folder in RHEOBASE_EVENTS")
    return Path(folder)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of pictures per class, and notes beside them."""
    for name, shade in SHADES.items():
        for i in range(10):
            write(tmp_path / "set" / name / f"{i:02d}.{'png' if i % 2 else 'bmp'}", shade + i)
        (tmp_path / "set" / name / "notes.txt").touch()
    return tmp_path / "set"
