import os
from pathlib import Path

import pytest


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
