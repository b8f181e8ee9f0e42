"""A data set and its record, made from images of one's own."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from rheobase.data import Dataset, Split
from rheobase.data.dataset import channel_moments
from rheobase.data.files import Files


def images(n: int, *shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, *shape), generator=random).to(torch.uint8)


def split(n: int, *shape: int, classes: int = 3, seed: int = 0) -> Split:
    return Split(images(n, *shape, seed=seed), torch.arange(n) % classes)


def test_the_record_follows_from_the_images() -> None:
    train, test = split(7, 2, 5, 5), split(4, 2, 5, 5, seed=1)
    info = Dataset.of("mine", train, test, ["a", "b", "c"]).info
    assert (info.name, info.classes, info.shape, info.timesteps) == ("mine", ("a", "b", "c"), (2, 5, 5), 0)
    assert (info.images, info.test_images, info.simulated) == (7, 4, False)
    assert (info.mean, info.std) == channel_moments(train.images)


def test_sequences_enter_a_network_as_they_are() -> None:
    info = Dataset.of("mine", split(7, 6, 2, 5, 5), split(4, 6, 2, 5, 5), "abc").info
    assert (info.timesteps, info.shape, info.mean, info.std) == (6, (2, 5, 5), (0.0, 0.0), (1.0, 1.0))


def test_what_is_given_counts() -> None:
    options = {"mean": [1, 2.0], "std": [3.0, 4], "simulated": True, "fingerprint": "known"}
    info = Dataset.of("mine", split(7, 2, 5, 5), split(4, 2, 5, 5), "abc", **options).info
    assert (info.mean, info.std, info.simulated, info.fingerprint) == ((1.0, 2.0), (3.0, 4.0), True, "known")


def test_the_fingerprint_is_of_pixels_labels_and_the_split() -> None:
    def fingerprint(train: Split, test: Split) -> str:
        return Dataset.of("mine", train, test, "abcd").info.fingerprint

    train, test = split(7, 2, 5, 5), split(4, 2, 5, 5, seed=1)
    changed = train.images.clone()
    changed[3, 1, 2, 4] ^= 1
    found = [
        fingerprint(train, test),
        fingerprint(Split(changed, train.labels), test),
        fingerprint(Split(train.images, train.labels.flip(0)), test),
        fingerprint(test, train),
    ]
    assert len({*found}) == 4
    assert found[0] == fingerprint(split(7, 2, 5, 5), split(4, 2, 5, 5, seed=1))
    channels_last = train.images.to(memory_format=torch.channels_last)
    assert found[0] == fingerprint(Split(channels_last, train.labels.int()), test)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(3, 2, 5, 5), torch.arange(3), r"expected square uint8 images .*, got float32 \[3, 2, 5, 5\]"),
        (images(3, 2, 5, 6), torch.arange(3), r"expected square .* got uint8 \[3, 2, 5, 6\]"),
        (images(3, 5, 5), torch.arange(3), r"expected square .* got uint8 \[3, 5, 5\]"),
        (images(3, 2, 5, 5).numpy(), torch.arange(3), "expected square .* got 'ndarray'"),
        (images(3, 2, 5, 5), torch.arange(4), r"expected whole numbers \[3\] as labels, .* got int64 \[4\]"),
        (images(3, 2, 5, 5), torch.zeros(3), r"expected whole numbers \[3\] as labels, .* got float32 \[3\]"),
        (images(3, 2, 5, 5), [0, 1, 2], r"expected whole numbers \[3\] as labels, .* got 'list'"),
    ],
)
def test_images_and_labels_that_cannot_be_used(x: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Split(x, y)


def test_labels_of_any_whole_numbers_become_those_of_a_loss() -> None:
    assert Split(images(3, 2, 5, 5), torch.arange(3, dtype=torch.uint8)).labels.dtype == torch.int64


def test_data_sets_that_cannot_be() -> None:
    good, other = split(7, 2, 5, 5), split(4, 2, 6, 6)
    for test, classes, options, message in (
        (other, "abc", {}, r"training images have the shape \[2, 5, 5\], test images \[2, 6, 6\]"),
        (good, "ab", {}, "labels from 0 to 2 do not fit 2 classes"),
        (Split(good.images, good.labels - 1), "abc", {}, "test images: labels from -1 to 1 do not fit"),
        (Split(good.images[:0], good.labels[:0]), "abc", {}, "test images: there are none"),
        (good, "abb", {}, "several classes have the name 'b'; give each its own"),
        (good, "abc", {"mean": (0.0, 0.0)}, "give both mean and std"),
        (good, "abc", {"mean": (0.0,), "std": (1.0,)}, "one mean and deviation per channel"),
        (good, "abc", {"mean": (0.0, 0.0), "std": (1.0, 0.0)}, "deviations above 0"),
        (good, [1, 2, 3], {}, "names must be text"),
        (good, 3, {}, "expected the names of the classes, got 3; give one for each"),
    ):
        with pytest.raises(ValueError, match=f"dataset 'mine'.*{message}"):
            Dataset.of("mine", good, test, classes, **options)


def test_files_have_labels_of_whole_numbers_too() -> None:
    files = Files([Path("a.png")], torch.zeros(1), 5)
    with pytest.raises(ValueError, match=r"expected whole numbers as labels, got float32 \[1\]"):
        Dataset.of("mine", files, files, "abc", mean=(0, 0, 0), std=(1, 1, 1), fingerprint="")


def test_images_in_files_need_a_mean() -> None:
    files = Files([Path("a.png")], torch.tensor([2]), 5)
    with pytest.raises(ValueError, match="its images are not in memory; give their mean and std"):
        Dataset.of("mine", files, files, "abc")
