from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from rheobase import data
from rheobase.data.augment import COLUMNS, crop_flip, cutout
from rheobase.data.dataset import Dataset, Split, channel_moments, prefetch
from rheobase.data.feed import Feed, first_images, generator
from rheobase.data.policy import trivial_augment
from rheobase.recipes import Recipe

CPU = torch.device("cpu")


def test_digits_are_all_there_and_every_fifth_is_held_out() -> None:
    digits = data.load("digits")
    assert (len(digits.train), len(digits.test)) == (1438, 359)
    assert digits.train.images.shape[1:] == (1, 8, 8)
    assert digits.train.images.dtype == torch.uint8
    assert (int(digits.train.images.min()), int(digits.train.images.max())) == (0, 255)
    assert digits.train.labels[:8].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert digits.test.labels[:2].tolist() == [4, 9]
    assert digits.train.labels.bincount().min() > 100


def test_unknown_data_set_names_the_known() -> None:
    with pytest.raises(ValueError, match=r"unknown dataset 'svhn'; choose one of cifar10, .*digits"):
        data.load("svhn")


def test_channel_moments_are_those_of_numpy() -> None:
    images = torch.randint(0, 256, (5, 3, 7, 4), generator=generator(1)).to(torch.uint8)
    mean, std = channel_moments(images)
    values = images.double()
    torch.testing.assert_close(torch.tensor(mean), values.mean((0, 2, 3)).float())
    torch.testing.assert_close(torch.tensor(std), values.std((0, 2, 3), correction=0).float())


def uniform(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


def test_a_channel_that_never_changes_is_not_divided_by_zero() -> None:
    images = torch.randint(0, 256, (7, 3, 4, 5), dtype=torch.uint8)
    images[:, 1] = 9
    assert channel_moments(images)[1][1] == 1.0


@pytest.mark.parametrize(("mean", "std"), [((0, 0), (1, 1)), ((0, 3), (1, 1)), ((0, 0), (1, 2))])
def test_normalisation_is_left_out_only_where_it_changes_nothing(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    data = small_set()
    data = replace(data, info=replace(data.info, mean=mean, std=std))
    images, labels = next(Feed(data, recipe(), CPU, torch.float32).testing())
    plain = data.test.images[labels].float()
    assert images.dtype == torch.float32
    assert torch.equal(images, (plain - torch.tensor(mean).view(2, 1, 1)) / torch.tensor(std).view(2, 1, 1))


def test_a_size_that_a_data_set_does_not_have() -> None:
    with pytest.raises(ValueError, match="dataset 'digits' has images of 8 x 8, not 32"):
        data.load("digits", size=32)


def test_crop_moves_an_image_and_brings_in_zeros() -> None:
    images = torch.arange(1.0, 25.0).view(1, 2, 3, 4).expand(3, -1, -1, -1)
    rows = uniform([0.5, 0.5, 0.9], [0.0, 0.5, 0.9], [0.5, 0.99, 0.9])  # stay; content down; content left
    stay, down, left = crop_flip(images, rows, padding=1, flip=True)
    assert torch.equal(stay, images[0])
    assert torch.equal(down[:, 1:], images[0, :, :-1])
    assert not down[:, 0].any()
    assert torch.equal(left[:, :, :-1], images[0, :, :, 1:])
    assert not left[:, :, -1].any()


def test_flip_mirrors_half_of_the_images() -> None:
    images = torch.rand(2, 3, 5, 4)
    kept, mirrored = crop_flip(images, uniform([0, 0, 0.5], [0, 0, 0.49]), padding=0, flip=True)
    assert torch.equal(kept, images[0])
    assert torch.equal(mirrored, images[1].flip(-1))


def test_a_sequence_moves_as_one() -> None:
    sequence = torch.rand(3, 2, 1, 5, 4)  # T, N
    u = torch.rand(2, 3, generator=generator(2))
    moved = crop_flip(sequence, u, padding=2, flip=True)
    for step, image in zip(moved, sequence, strict=True):
        assert torch.equal(step, crop_flip(image, u, padding=2, flip=True))


def test_every_shift_is_equally_likely() -> None:
    images = torch.zeros(5000, 1, 5, 7)
    images[:, :, 2, 3] = 1
    moved = crop_flip(images, torch.rand(5000, 3, generator=generator(3)), padding=2, flip=False)
    counts = moved.sum((0, 1))
    assert counts.sum() == 5000
    assert counts[:, 0].sum() == 0 == counts[:, -1].sum()
    assert counts[:, 1:-1].min() > 5000 / 25 * 0.7
    assert counts[:, 1:-1].max() < 5000 / 25 * 1.3


def test_cutout_removes_a_square() -> None:
    images = torch.ones(2, 3, 7, 9)
    inner, corner = cutout(images, uniform([0.5, 0.5], [0.0, 0.0]), size=4)
    assert not inner[:, 1:5, 2:6].any()
    assert inner.sum() == 3 * (63 - 16)
    assert not corner[:, :2, :2].any()
    assert corner.sum() == 3 * (63 - 4)


def small_set(n: int = 23) -> Dataset:
    images = torch.arange(n).view(n, 1, 1, 1).expand(n, 2, 3, 3).to(torch.uint8)
    split = Split(images, torch.arange(n))
    return Dataset.of("small", split, split, list(map(str, range(n))), mean=(0.0, 0.0), std=(1.0, 1.0))


def recipe(**changes: int) -> Recipe:
    settings = {"name": "small", "data": "small", "network": "resnet8", "timesteps": 2, "epochs": 3, "batch_size": 5}
    return Recipe(**(settings | changes))


def test_the_first_images_of_sorted_classes_are_of_all_classes() -> None:
    dataset = small_set(6)
    in_order = replace(dataset.test, labels=torch.tensor([0, 0, 0, 2, 2, 3]))
    mixed = replace(dataset.test, labels=torch.tensor([1, 0, 0, 2, 2, 3]))
    for test, count, expected in (
        (in_order, 4, [0, 3, 5, 1]),
        (in_order, 9, [0, 3, 5, 1, 4, 2]),
        (mixed, 4, [0, 1, 2, 3]),
        (mixed, 9, [0, 1, 2, 3, 4, 5]),
    ):
        x, labels = first_images(replace(dataset, test=test), recipe(), count, torch.float64)
        everything = torch.cat([x for x, _ in Feed(dataset, recipe(), CPU, torch.float64).testing()])
        assert labels.tolist() == test.labels[expected].tolist()
        assert torch.equal(x, everything[expected])


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own() -> None:
    feed = Feed(small_set(), recipe(), CPU, torch.float32)
    epochs = [torch.cat([labels for _, labels, _ in feed.training(e)]).tolist() for e in (0, 1)]
    assert feed.steps == 5
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(23))
    assert epochs[0] != epochs[1]
    for images, labels, _ in feed.training(0):
        assert torch.equal(images[:, 1, 2, 0], labels.float())


def test_a_last_batch_too_small_for_statistics_is_left_out() -> None:
    assert Feed(small_set(21), recipe(), CPU, torch.float32).steps == 4
    assert Feed(small_set(22), recipe(), CPU, torch.float32).steps == 5
    assert Feed(small_set(3), recipe(), CPU, torch.float32).steps == 1


def test_an_epoch_continues_in_the_middle() -> None:
    feed = Feed(small_set(), recipe(padding=1, cutout=2), CPU, torch.float32)
    whole, rest = list(feed.training(1)), list(feed.training(1, first=2))
    assert len(rest) == 3
    for (images, labels, _), (again, labels_again, _) in zip(whole[2:], rest, strict=True):
        assert torch.equal(images, again)
        assert torch.equal(labels, labels_again)


def test_batches_begin_two_ahead() -> None:
    begun = []

    def batches() -> Iterator[int]:
        for i in range(5):
            begun.append(i)
            yield i

    used = [(i, max(begun)) for i in prefetch(batches())]
    assert used == [(0, 2), (1, 3), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("first", [0, 1, 2, 4])
def test_pieces_change_nothing(first: int) -> None:
    settings = recipe(padding=1, cutout=2)
    alone, together = Feed(small_set(), settings, CPU, torch.float32), Feed(small_set(), settings, CPU, torch.float32)
    alone.piece, together.piece = 1, 3
    batches = list(zip(alone.training(1, first), together.training(1, first), strict=True))
    assert len(batches) == 5 - first
    for (images, labels, share), (again, labels_again, share_again) in batches:
        assert torch.equal(images, again)
        assert torch.equal(labels, labels_again)
        assert share == share_again


def test_alternate_flip_mirrors_every_image_in_every_other_epoch() -> None:
    n = 40
    images = torch.arange(3).expand(n, 2, 3, 3).to(torch.uint8)
    split = Split(images, torch.arange(n))
    data = Dataset.of("small", split, split, list(map(str, range(n))), mean=(0.0, 0.0), std=(1.0, 1.0))
    feed = Feed(data, recipe(flip=True, alternate_flip=True), CPU, torch.float32)
    mirrored = []
    for epoch in range(3):
        seen = [(labels, images[:, 0, 0, 0] == 2) for images, labels, _ in feed.training(epoch)]
        labels, flags = (torch.cat(parts) for parts in zip(*seen, strict=True))
        mirrored.append(flags[labels.argsort()])
    assert 10 < mirrored[0].sum() < 30
    assert torch.equal(mirrored[1], ~mirrored[0])
    assert torch.equal(mirrored[2], mirrored[0])


def test_a_seed_has_other_orders_in_all_epochs_than_the_next_seed() -> None:
    feeds = [Feed(small_set(), recipe(seed=seed), CPU, torch.float32) for seed in (0, 1)]
    orders = [[torch.cat([y for _, y, _ in feed.training(epoch)]).tolist() for epoch in (0, 1, 2)] for feed in feeds]
    assert not [order for order in orders[0] if order in orders[1]]


def test_every_augmentation_has_random_numbers_of_its_own() -> None:
    images = torch.randint(0, 256, (6, 3, 12, 12), generator=generator(5)).to(torch.uint8)
    split, mean, std = Split(images, torch.arange(6)), (60.0, 70.0, 80.0), (9.0, 8.0, 7.0)
    data = Dataset.of("small", split, split, "abcdef", mean=mean, std=std)
    settings = replace(recipe(batch_size=6, padding=2, flip=True, cutout=3, seed=8), policy="trivial")
    ((found, labels, _),) = Feed(data, settings, CPU, torch.float64).training(1)

    random = generator(8, 1)
    order, u = torch.randperm(6, generator=random), torch.rand(6, COLUMNS, generator=random)
    moved = crop_flip(images[order], u[:, :3], padding=2, flip=True).double()
    changed = trivial_augment(moved, u[:, 5:8])
    normalised = (changed - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert torch.equal(labels, order)
    assert torch.equal(found, cutout(normalised, u[:, 3:5], size=3))


def test_sequences_come_with_time_first_and_move_as_one() -> None:
    frames = torch.randint(0, 256, (9, 4, 2, 6, 6), generator=generator(4)).to(torch.uint8)  # N, T, C, H, W
    split = Split(frames, torch.arange(9))
    events = Dataset.of("events", split, split, "abcdefghi", mean=(1.0, 2.0), std=(3.0, 5.0))
    settings = recipe(batch_size=3, padding=1, timesteps=4, short_timesteps=2, short_epochs=1)
    feed = Feed(events, settings, CPU, torch.float32)
    assert next(feed.training(0))[0].shape == (2, 3, 2, 6, 6)
    images, labels, _ = next(feed.training(1))
    assert images.shape == (4, 3, 2, 6, 6)
    plain = (frames[labels].float() - torch.tensor([1.0, 2.0]).view(2, 1, 1)) / torch.tensor([3.0, 5.0]).view(2, 1, 1)
    for n in range(3):
        shifts = [
            (dy, dx)
            for dy in (-1, 0, 1)
            for dx in (-1, 0, 1)
            if torch.equal(images[:, n, :, 1:-1, 1:-1], plain[n].roll((dy, dx), (-2, -1))[..., 1:-1, 1:-1])
        ]
        assert len(shifts) == 1
    tests = list(feed.testing())
    assert tests[0][0].shape == (4, 9, 2, 6, 6)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_batches_of_one(world: int) -> None:
    settings = recipe(batch_size=7, padding=1, cutout=1)
    whole = list(Feed(small_set(), settings, CPU, torch.float32).training(0))
    parts = [list(Feed(small_set(), settings, CPU, torch.float32, r, world).training(0)) for r in range(world)]
    for (images, labels, _), *shares in zip(whole, *parts, strict=False):
        assert torch.equal(torch.cat([i for i, _, _ in shares]), images)
        assert torch.equal(torch.cat([y for _, y, _ in shares]), labels)
        assert sum(share for _, _, share in shares) == pytest.approx(1)


def test_more_processes_than_test_images() -> None:
    few = replace(small_set(), test=small_set(3).test)
    shares = [list(Feed(few, recipe(), CPU, torch.float32, rank, 4).testing()) for rank in range(4)]
    assert [[len(labels) for _, labels in share] for share in shares] == [[], [1], [1], [1]]


def test_more_processes_than_images_in_a_batch_raise() -> None:
    with pytest.raises(ValueError, match="6 processes need at least as many images in a batch"):
        Feed(small_set(), recipe(), CPU, torch.float32, 0, 6)
