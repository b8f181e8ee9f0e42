"""What `rheobase recording` tells, worked out by hand."""

import numpy as np
import pytest

from rheobase.data.events import Events
from rheobase.data.events.stream import sensor_of
from rheobase.data.events.summary import PARTS, summary


def test_a_recording_in_numbers() -> None:
    t = np.array([1000, 1500, 1600, 21_600, 21_700, 36_700, 101_000])
    x, y = np.array([0, 0, 5, 5, 5, 3, 1], np.uint16), np.array([0, 0, 3, 3, 3, 2, 1], np.uint16)
    p = np.array([1, 0, 1, 1, 0, 1, 1], np.uint8)
    found = summary(Events(t, x, y, p, 6, 4, {"truncated": 1}), gap=15_000)
    assert (found.events, found.width, found.height) == (7, 6, 4)
    assert found.seconds == 0.1
    assert found.rate == pytest.approx(70)
    assert found.brighter == pytest.approx(5 / 7)
    assert found.gaps == [
        pytest.approx((0.0006, 0.02)),
        pytest.approx((0.0207, 0.015)),
        pytest.approx((0.0357, 0.0643)),
    ]
    assert len(found.rates) == PARTS
    assert sum(found.rates) * 0.100001 / PARTS == pytest.approx(7)
    assert found.rates[0] == pytest.approx(3 / 0.00100001, rel=1e-3)
    assert found.picture.shape == (2, 6, 6)  # a square, the sensor one row below its top
    assert (found.picture[1, 4, 5], found.picture[0, 4, 5], found.picture[0, 1, 0]) == (2, 1, 1)
    assert found.skipped == {"truncated": 1}


def test_a_recording_of_nothing() -> None:
    nothing = np.empty(0, np.uint16)
    found = summary(Events(np.empty(0, np.int64), nothing, nothing, np.empty(0, np.uint8), 300, 200), gap=10)
    assert (found.events, found.seconds, found.rate, found.gaps, max(found.rates)) == (0, 0.0, 0.0, [], 0.0)
    assert found.picture.shape == (2, 128, 128)


def test_sensors_as_text() -> None:
    assert sensor_of("346x260") == (346, 260)
    assert sensor_of("none") is None
    for wrong in ("346", "346x", "0x5", "40000x5", "-1x5", "axb", ""):
        with pytest.raises(ValueError, match=f"such as 346x260, or none, got '{wrong}'"):
            sensor_of(wrong)
