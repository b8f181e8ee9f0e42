"""The search for tiles, in Triton's interpreter: every candidate must compute what the tiles in use compute."""

from math import inf, isnan, nan

import pytest
import torch

from benchmarks.contenders import Setting


@pytest.mark.slow
@pytest.mark.parametrize("step", ["statistics", "forward", "backward_sums", "backward_inputs"])
def test_every_tile_gives_the_same_results(step: str, triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import tiles

    few = [2] if step in ("statistics", "backward_sums") else [None, 2] if step == "backward_inputs" else [None]
    monkeypatch.setattr(tiles, "LIMITS", {step: few})
    monkeypatch.setattr(tiles, "LARGEST", 1)
    calls = tiles.largest(Setting(timesteps=3, batch=2, device=triton_device, network="resnet8", image_size=8))
    assert [times for times, _ in calls] == [1, 1]
    used = tiles.TILES[step]
    found = list(tiles.tried(calls, step, lambda call: 2.0))
    assert found[0][0] == used == tiles.TILES[step]
    assert len({tile for tile, _, _ in found}) == len(found) > 6
    assert all(time == 4.0 and different < 1e-4 for _, time, different in found)


@pytest.mark.parametrize(("value", "expected"), [(4.0, 0.0), (6.0, 0.5), (nan, nan), (inf, inf)])
def test_the_largest_difference_is_told(value: float, expected: float, triton_device: str) -> None:
    from benchmarks.tiles import difference

    same, nothing = torch.ones(3), torch.empty(0)
    got = difference([(same, nothing), [same, torch.tensor([value])]], [(same, nothing), [same, torch.tensor([4.0])]])
    assert isnan(got) if isnan(expected) else got == expected
