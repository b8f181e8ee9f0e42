"""Files with a decoder of one's own: by threads, and by processes that load the same plugin."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rheobase import plugins
from rheobase.data import load, workers
from rheobase.data.augment import COLUMNS
from rheobase.data.decoding import Request
from rheobase.data.files import Files

PLUGIN = """
import torch
from pathlib import Path
from rheobase.data import Dataset
from rheobase.data.files import Files
from rheobase.plugins import dataset

def shade(request):
    content = Path(request.path).read_bytes()
    if content == b"bad":
        return content
    return content * (3 * request.size**2)

@dataset
def shades(path, *, size=4):
    paths = sorted(path.iterdir())
    files = Files(paths, torch.arange(len(paths)) % 2, size, decode=shade)
    return Dataset.of("shades", files, files, "ab", mean=(0, 0, 0), std=(1, 1, 1))
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    for shelf in plugins.SHELVES:
        monkeypatch.setattr(shelf, "parts", dict(shelf.parts))
        monkeypatch.setattr(shelf, "origins", dict(shelf.origins))
    monkeypatch.setattr(plugins, "_loaded", {})
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "shades").mkdir()
    for i in range(11):
        (tmp_path / "shades" / f"{i:02d}").write_bytes(bytes([9 * i]))
    plugins.load(str(tmp_path / "plugin.py"))
    return load("shades", tmp_path / "shades", size=5).train


@pytest.mark.parametrize("cores", [1, 2])
def test_a_decoder_of_a_plugin(files: Files, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LEAST_CORES", 2)
    monkeypatch.setattr(workers, "LEAST_FILES", 1)
    monkeypatch.setattr(workers, "cores", lambda: cores)
    pool = workers.choose(len(files), files.decode)
    assert isinstance(pool, workers.Processes if cores == 2 else workers.Threads)
    pixels = files.read(torch.tensor([3, 10, 0]))
    assert pixels.shape == (3, 3, 5, 5)
    assert pixels.flatten(1).unique(dim=1).flatten().tolist() == [27, 90, 0]


def test_a_random_part_has_numbers_that_no_other_augmentation_uses(files: Files) -> None:
    def noted(request: Request) -> bytes:
        parts.append(request.part)
        return bytes(3 * request.size**2)

    parts: list[list[float] | None] = []
    u = torch.arange(2.0 * COLUMNS).view(2, COLUMNS) / 32
    replace(files, decode=noted, workers=workers.Threads(noted)).read(torch.tensor([7, 1]), u)
    assert sorted(p for p in parts if p) == [[float(row[i]) for i in (0, 1, 8, 9)] for row in u]


def test_functions_that_other_processes_cannot_find_are_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LEAST_CORES", 1)
    monkeypatch.setattr(workers, "LEAST_FILES", 1)
    assert isinstance(workers.choose(1000, lambda request: b""), workers.Threads)

    def of_a_script(request: Request) -> bytes:
        return b""

    of_a_script.__module__, of_a_script.__qualname__ = "__main__", "of_a_script"
    monkeypatch.setattr(sys.modules["__main__"], "of_a_script", of_a_script, raising=False)
    assert isinstance(workers.choose(1000, of_a_script), workers.Threads)


@pytest.mark.parametrize("pool", [workers.threads, lambda decode: workers.processes(2, decode)])
def test_pixels_of_the_wrong_number_are_damage(files: Files, pool: object) -> None:
    files.paths[4].write_bytes(b"bad")
    files = replace(files, workers=pool(files.decode))
    with pytest.warns(
        UserWarning, match=r"its decoder returned 3 bytes, expected 5 x 5 x 3; the next image of its class"
    ):
        pixels = files.read(torch.arange(11))
    assert pixels[:, 0, 0, 0].tolist() == [0, 9, 18, 27, 54, 45, 54, 63, 72, 81, 90]


def test_the_fingerprint_is_of_files_and_labels(files: Files) -> None:
    before = files.fingerprint()
    assert before != replace(files, labels=files.labels.flip(0).roll(1)).fingerprint()
    assert before == replace(files, size=6).fingerprint()
    files.paths[2].write_bytes(b"x")
    assert before != files.fingerprint()


def test_nothing_more_is_imported_for_our_own_decoder() -> None:
    assert workers._serving(7, workers.decode) == "serve(7)"
