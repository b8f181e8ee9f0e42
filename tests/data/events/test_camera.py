"""The simulated camera: deterministic, and an event per threshold of log intensity."""

import numpy as np
import pytest

from rheobase.data import load
from rheobase.data.events import camera, simulate
from rheobase.data.eventset import EventDataset
from tests.data.recordings import same


def images(number: int = 3) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (number, 9, 13), np.uint8)


def test_the_same_seed_gives_the_same_events() -> None:
    first, again, other = (simulate(images(), seed=seed) for seed in (1, 1, 2))
    assert all(map(same, first, again))
    assert not any(map(same, first, other))


def test_recordings_are_in_order_and_inside() -> None:
    for events in simulate(images(), seed=0, duration=30_000):
        assert len(events) > 100
        assert (np.diff(events.t) >= 0).all()
        assert events.t[0] >= 0
        assert events.t[-1] < 30_000
        assert events.x.max() == 12
        assert events.y.max() == 8


def test_a_grey_image_gives_only_noise() -> None:
    grey = np.full((2, 9, 13), 80, np.uint8)
    assert sum(map(len, simulate(grey, seed=0, noise_rate=0))) == 0
    events = simulate(grey, seed=0, noise_rate=200.0)
    assert sum(map(len, events)) == pytest.approx(200 * 0.1 * grey.size, rel=0.1)


def test_events_sum_to_the_change_of_log_intensity() -> None:
    """A camera that returns to its start sees every pixel as before: polarities balance within one threshold."""
    for events in simulate(images(), seed=0, noise_rate=0, mismatch=0, steps=30):
        balance = np.zeros((9, 13), int)
        np.add.at(balance, (events.y, events.x), 2 * events.p.astype(int) - 1)
        assert np.abs(balance).max() <= 1


def test_an_edge_that_comes_and_goes() -> None:
    """A bright right half moves left over a pixel, then back: brighter first, then darker."""
    image = np.zeros((1, 5, 12), np.uint8)
    image[:, :, 6:] = 255
    (events,) = simulate(image, seed=0, noise_rate=0, mismatch=0, amplitude=2.0)
    at_edge = events.x == 5
    polarity = events.p[at_edge & (events.y == 2)]
    assert polarity[0] == 1
    assert polarity[-1] == 0
    assert (np.diff(polarity.astype(int)) <= 0).all()
    assert not (events.x < 4).any()


def test_digits_are_said_to_be_simulated() -> None:
    found = load("digits-dvs")
    assert isinstance(found, EventDataset)
    assert found.info.simulated
    assert found.train.shape == (5, 2, 16, 16)
    assert (len(found.train), len(found.test)) == (1438, 359)


@pytest.mark.parametrize(("shape", "threshold"), [((0, 9, 13), 0.25), ((9, 13), 0.25), ((3, 9, 13), 0.0)])
def test_impossible_recordings(shape: tuple[int, ...], threshold: float) -> None:
    with pytest.raises(ValueError, match="expected images"):
        simulate(np.zeros(shape, np.uint8), seed=0, threshold=threshold)


def test_crossings_of_a_step_are_spread_evenly() -> None:
    crossings = np.zeros((1, 2, 3), np.int64)
    crossings[0, 1, 2], crossings[0, 0, 1] = 2, -1
    image_t_x_y_p = [[0, 150, 1, 0, 0], [0, 125, 2, 1, 1], [0, 175, 2, 1, 1]]
    assert camera._fired(crossings, 100, 200).tolist() == image_t_x_y_p
