"""Augmentation of event sequences: shifts in time, and what images have, over all steps alike."""

import torch

from rheobase.data import load
from rheobase.data.augment import COLUMNS, crop_flip, shift_in_time
from rheobase.data.feed import Feed, generator
from rheobase.recipes import get


def sequences() -> torch.Tensor:
    return torch.arange(5 * 3 * 2 * 4 * 6).view(5, 3, 2, 4, 6) + 1


def test_shifts_in_time_follow_each_row() -> None:
    x = sequences()
    moved = shift_in_time(x, torch.tensor([[0.0], [0.5], [0.99]]), steps=2)
    assert torch.equal(moved[2:, 0], x[:3, 0])
    assert not moved[:2, 0].any()
    assert torch.equal(moved[:, 1], x[:, 1])
    assert torch.equal(moved[:3, 2], x[2:, 2])
    assert not moved[3:, 2].any()


def test_all_steps_move_alike() -> None:
    x, u = sequences(), torch.tensor([[0.0, 0.9, 0.1], [0.4, 0.2, 0.9], [0.5, 0.5, 0.2]])
    together = crop_flip(x, u, padding=1, flip=True)
    assert torch.equal(together, torch.stack([crop_flip(step, u, padding=1, flip=True) for step in x]))


def test_jitter_is_part_of_the_feed() -> None:
    data, cpu = load("digits-dvs"), torch.device("cpu")
    plain, jittered = (
        next(Feed(data, get("digits_dvs").changed(["padding=0", *extra]), cpu, torch.float32).training(0))[0]
        for extra in ([], ["time_jitter=2"])
    )
    assert plain.shape == jittered.shape == (5, 64, 2, 16, 16)
    same = [torch.equal(plain[:, n], jittered[:, n]) for n in range(64)]
    assert 0 < sum(same) < 40  # about one in five stays


def test_jitter_and_crop_have_random_numbers_of_their_own() -> None:
    data, cpu = load("digits-dvs"), torch.device("cpu")
    settings = get("digits_dvs").changed(["padding=2", "time_jitter=2", "batch_size=9"])
    found, *_ = next(Feed(data, settings, cpu, torch.float32).training(0))
    random, n = generator(settings.seed, 0), len(data.train)
    order, u = torch.randperm(n, generator=random)[:9], torch.rand(n, COLUMNS, generator=random)[:9]
    moved = shift_in_time(data.train.read(order).movedim(1, 0), u[:, 8:9], steps=2)
    assert torch.equal(found, crop_flip(moved, u[:, :3], padding=2, flip=settings.flip).float())


def test_the_paper_has_none() -> None:
    for name in ("dvsgesture_resnet17", "dvscifar10_resnet19"):
        recipe = get(name)
        assert (recipe.flip, recipe.padding, recipe.time_jitter, recipe.cutout) == (False, 0, 0, 0)
