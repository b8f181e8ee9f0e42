"""Training images held out to choose settings on."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from rheobase import recipes, train
from rheobase.data import Dataset, load
from rheobase.data.augment import COLUMNS
from rheobase.data.files import Files
from rheobase.data.holdout import Chosen, hold_out
from rheobase.tasks.evaluate import evaluate_run
from tests.data.test_dataset import split


def own() -> Dataset:
    return Dataset.of("mine", split(40, 2, 5, 5), split(4, 2, 5, 5, seed=1), "abc")


def test_images_change_sides_and_none_is_in_both() -> None:
    whole, held = own(), hold_out(own(), 10)
    assert (len(held.train), len(held.test), held.info.images, held.info.test_images) == (30, 10, 30, 10)
    read = torch.cat([held.train.read(torch.arange(30)), held.test.read(torch.arange(10))])
    labels = torch.cat([held.train.labels, held.test.labels])
    found = sorted((x.flatten().tolist(), int(y)) for x, y in zip(read, labels, strict=True))
    assert found == sorted(
        (x.flatten().tolist(), int(y))
        for x, y in zip(whole.train.read(torch.arange(40)), whole.train.labels, strict=True)
    )


def test_the_same_ones_every_time_with_the_same_normalisation_and_a_fingerprint_of_their_own() -> None:
    whole, first, again, other = own(), hold_out(own(), 10), hold_out(own(), 10), hold_out(own(), 11)
    assert torch.equal(first.test.read(torch.arange(10)), again.test.read(torch.arange(10)))
    assert (first.info.mean, first.info.std) == (whole.info.mean, whole.info.std)
    assert len({d.info.fingerprint for d in (whole, first, again, other)}) == 3


def test_files_are_read_when_they_are_needed(tmp_path: Path) -> None:
    for i in range(6):
        Image.new("RGB", (8, 8), (40 * i, 0, 0)).save(tmp_path / f"{i}.png")
    files = Files([tmp_path / f"{i}.png" for i in range(6)], torch.arange(6) % 2, size=8)
    held = hold_out(Dataset.of("mine", files, files, "ab", mean=[0] * 3, std=[1] * 3), 2)
    reds = [
        source.to(torch.device("cpu")).read(torch.arange(len(source)))[:, 0, 0, 0] for source in (held.train, held.test)
    ]
    assert sorted(torch.cat(reds).tolist()) == [40 * i for i in range(6)]
    for source, shades in zip((held.train, held.test), reds, strict=True):
        assert source.labels.tolist() == [shade // 40 % 2 for shade in shades.tolist()]
        assert len(source.fingerprint()) == len(files.fingerprint())


def test_files_are_cropped_at_random_as_without(tmp_path: Path) -> None:
    for i in range(5):
        noise = torch.randint(0, 256, (12, 10, 3), dtype=torch.uint8)
        Image.fromarray(noise.numpy()).save(tmp_path / f"{i}.png")
    files = Files([tmp_path / f"{i}.png" for i in range(5)], torch.arange(5) % 2, size=8)
    held = hold_out(Dataset.of("mine", files, files, "ab", mean=[0] * 3, std=[1] * 3), 2)
    assert isinstance(held.train, Chosen)
    index, u = torch.tensor([2, 0]), torch.rand(2, COLUMNS)
    expected = files.read(held.train.index[index], u)
    assert torch.equal(held.train.read(index, u), expected)
    assert torch.equal(held.train.begin(index, u)(), expected)


def test_the_record_says_what_the_test_images_are() -> None:
    every_fifth = Dataset.of("mine", split(40, 2, 5, 5), split(4, 2, 5, 5, seed=1), "abc", held_out=5)
    held = hold_out(every_fifth, 10).info
    assert (held.held_out, held.holdout) == (0, 10)


@pytest.mark.parametrize("number", [40, 41])
def test_something_must_be_left(number: int) -> None:
    with pytest.raises(ValueError, match=f"holdout: expected fewer than the 40 training images, got {number}"):
        hold_out(own(), number)


def test_a_run_is_tested_on_them_then_and_later(tmp_path: Path) -> None:
    recipe = recipes.get("demo").changed(["epochs=1", "holdout=100"])
    run = train.fit(recipe, out=tmp_path / "run", device="cpu")
    found = evaluate_run(run.folder, device="cpu")
    assert (found.images, found.holdout, run.data.images) == (100, 100, len(load("digits").train) - 100)
    assert found.accuracy == run.rows()[-1]["test_accuracy"]
