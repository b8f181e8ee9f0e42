"""The benchmark of loaders runs at a small size, and all loaders give as many images."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("PIL.Image", reason="making images needs pillow")
from benchmarks import imagenet, loaders

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # Python 3.12 and later, about forks
def test_loaders_start_and_then_are_timed(tmp_path: Path) -> None:
    imagenet.make_files(tmp_path, 9)
    starts = loaders.loaders(tmp_path, 8, 3, CPU)
    assert [name.split(",")[0] for name in starts][:6] == ["ours"] * 2 + ["DataLoader"] * 4
    for name, start in starts.items():
        before = set(loaders._descendants())
        with ExitStack() as ending:
            batches = list(start(ending)())
        assert [(batch.shape, batch.dtype) for batch in batches] == [((3, 3, 8, 8), torch.uint8)] * 3, name
        figures = loaders.loading(start, CPU, least=10)
        memory = figures.pop("memory_of_workers_mib")
        assert (memory == 0) == ("threads" in name), name
        assert figures["of_the_main_process"] <= figures["processor_ms_per_image"], name
        assert figures["seconds_to_first_batch"] > 0, name
        assert figures["images_per_second"] > 0, name
        if name.startswith("ours"):  # torch's end later, and a fork server stays
            assert set(loaders._descendants()) == before, name


def test_every_round_says_how_many_are_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_come: Callable[[ModuleType], list[int]]
) -> None:
    said, out = to_come(loaders), tmp_path / "loaders.json"
    start = loaders.loaders
    monkeypatch.setattr(loaders, "loaders", lambda *of: {"ours, threads": start(*of)["ours, threads"]})
    words = ["--files", "7", "--batch", "3", "--images", "5", "--rounds", "3", "--size", "8", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["loaders", *words])
    loaders.main()
    assert said == [2, 1, 0]
    assert list(json.loads(out.read_text())["loaders"]) == ["ours, threads"]
