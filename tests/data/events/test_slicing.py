"""Slices equal a count of one event after the other, with numba, where it is installed, and without."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rheobase.data.events import Events, count_into, counting, slices, slicing
from tests.data.recordings import recording, recordings


@pytest.fixture(scope="module", params=["NumPy", "numba"], autouse=True)
def counter(request: pytest.FixtureRequest) -> Iterator[None]:
    module = counting
    if request.param == "numba":
        module = pytest.importorskip("rheobase.data.events.compiled", reason="needs numba: install rheobase[events]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slicing, "_counter", lambda: module)
        yield


def counted(events: Events, window: int, timesteps: int, size: tuple[int, int], start: int) -> np.ndarray:
    frames = np.zeros((timesteps, 2, size[1], size[0]), int)
    k = (events.t - start) // window
    inside = (k >= 0) & (k < timesteps)
    x, y = events.x.astype(int) * size[0] // events.width, events.y.astype(int) * size[1] // events.height
    np.add.at(frames, tuple(index[inside] for index in (k, events.p, y, x)), 1)
    return frames


@settings(max_examples=100, deadline=None)
@given(
    recordings(128, 96, 5000),
    st.integers(1, 900),
    st.integers(1, 7),
    st.sampled_from([(32, 24), (42, 31), (128, 96), (1, 1), (127, 5)]),
    st.integers(0, 1500),
    st.sampled_from([1, 200, 300]),
)
def test_every_event_is_counted_once(
    events: Events, window: int, timesteps: int, size: tuple[int, int], offset: int, copies: int
) -> None:
    events = Events(*(np.repeat(getattr(events, name), copies) for name in "txyp"), events.width, events.height)
    found = slices(events, window=window, timesteps=timesteps, size=size, offset=offset)
    assert np.array_equal(found, counted(events, window, timesteps, size, int(events.t[0]) + offset))
    assert found.dtype == np.min_scalar_type(int(found.max()))


@settings(max_examples=100, deadline=None)
@given(
    recordings(128, 96, 5000),
    st.integers(1, 900),
    st.integers(1, 7),
    st.sampled_from([(32, 24), (128, 96), (1, 1), (127, 5)]),
    st.integers(0, 1500),
    st.sampled_from([1, 100, 255, 256, 300]),
)
def test_counts_in_bytes_stop_at_255_and_say_what_they_leave_out(
    events: Events, window: int, timesteps: int, size: tuple[int, int], start: int, copies: int
) -> None:
    events = Events(*(np.repeat(getattr(events, name), copies) for name in "txyp"), events.width, events.height)
    exact = counted(events, window, timesteps, size, start)
    frames = np.full(exact.shape, 7, np.uint8)
    left_out = count_into(frames, events, window=window, start=start)
    assert np.array_equal(frames, np.minimum(exact, 255))
    assert left_out == (exact - frames).sum()


def test_start_and_offset_add_up() -> None:
    events = recording(1, 501, 128, 96)
    found = slices(events, window=9000, timesteps=8, size=(42, 31), start=1000, offset=2000)
    assert np.array_equal(found, counted(events, 9000, 8, (42, 31), 3000))


def test_sensors_beyond_16_bits() -> None:
    events = recording(2, 300, 1280, 720)
    assert np.array_equal(
        slices(events, window=50_000, timesteps=2, size=(640, 360), start=0),
        counted(events, 50_000, 2, (640, 360), 0),
    )


def test_positions_times_cells_beyond_16_bits() -> None:
    events = Events(np.arange(4), np.array([0, 300, 500, 639], np.uint16), np.array([479, 7, 230, 0], np.uint16),
                    np.array([1, 0, 1, 0], np.uint8), 640, 480)  # fmt: skip
    found = slices(events, window=4, timesteps=1, size=(200, 150))
    assert np.array_equal(found, counted(events, 4, 1, (200, 150), 0))


def test_neighbouring_cells_of_two_windows_with_many_events() -> None:
    many = 32818  # twice this is a little more than 16 bits
    last = np.repeat(np.array([363, 0], np.uint16), many)
    t, p = np.repeat([0, 1], many), np.repeat(np.array([1, 0], np.uint8), many)
    found = slices(Events(t, last, last, p, 364, 364), window=1, timesteps=2)
    assert (found[0, 1, 363, 363], found[1, 0, 0, 0], found.sum(dtype=int)) == (many, many, 2 * many)


def test_counts_beyond_16_bits() -> None:
    number = 70_000
    events = Events(
        np.zeros(number, int), *(np.ones(number, np.uint16) for _ in range(2)), np.ones(number, np.uint8), 2, 3
    )
    frames = slices(events, window=9, timesteps=2)
    assert frames[0, 1, 1, 1] == frames.sum() == number
    assert slices(events, window=9, timesteps=2, binary=True).dtype == np.uint8


@pytest.mark.parametrize(("hot", "kind"), [(0, np.uint8), (90, np.uint8), (254, np.uint8), (700, np.uint16)])
def test_sparse_frames_have_small_counts_that_never_overflow(hot: int, kind: type) -> None:
    """Most windows are empty, one has many events, of which `hot` are at one pixel."""
    spread = recording(5, 400, 128, 96, until=1000)
    columns = {name: getattr(spread, name).copy() for name in "txyp"}
    for name, value in (("x", 77), ("y", 55), ("p", 1)):
        columns[name] = np.concatenate([np.full(hot, value, columns[name].dtype), columns[name]])
    columns["t"] = np.concatenate([np.zeros(hot, np.int64), columns["t"]])
    events = Events(*columns.values(), 128, 96)
    frames = slices(events, window=1000, timesteps=7, start=0)
    assert frames.dtype == kind
    assert np.array_equal(frames, counted(events, 1000, 7, (128, 96), 0))


def test_windows_without_events_are_zero_and_binary_is_at_most_one() -> None:
    events = Events(
        np.array([10, 10, 11, 95]), np.uint16([1, 1, 1, 2]), np.uint16([0] * 4), np.uint8([1, 1, 1, 0]), 3, 2
    )
    frames = slices(events, window=20, timesteps=6, start=0)
    assert frames.sum((1, 2, 3)).tolist() == [3, 0, 0, 0, 1, 0]
    assert frames[0, 1, 0, 1] == 3
    assert slices(events, window=20, timesteps=6, start=0, binary=True).sum((1, 2, 3)).tolist() == [1, 0, 0, 0, 1, 0]


def test_an_empty_recording_is_zero() -> None:
    assert slices(recording(3, 0), window=5, timesteps=3, size=(2, 4)).shape == (3, 2, 4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": -1, "timesteps": 3}, "got a window of -1 and 3"),
        ({"window": 5, "timesteps": 0}, "got a window of 5 and 0"),
        ({"window": 5, "timesteps": 3, "size": (129, 4)}, "129 x 4 do not fit a sensor of 128 x 128"),
    ],
)
def test_impossible_slices(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        slices(recording(4, 9), **options)


@pytest.mark.parametrize(("name", "value"), [("x", 128), ("y", 99), ("p", 2)])
def test_events_outside_the_sensor(name: str, value: int) -> None:
    events = recording(4, 9, 128, 99)
    columns = {column: getattr(events, column).copy() for column in "txyp"}
    columns[name][5] = value
    with pytest.raises(ValueError, match=rf"up to {value}.* outside a sensor of 128 x 99"):
        Events(**columns, width=128, height=99)


def test_windows_beyond_64_bits() -> None:
    events = Events(np.array([2**63 - 9]), np.zeros(1, np.uint16), np.zeros(1, np.uint16), np.zeros(1, np.uint8), 3, 2)
    assert slices(events, window=4, timesteps=2).sum() == 1
    with pytest.raises(ValueError, match="a time above 64 bits; give another start"):
        slices(events, window=5, timesteps=2)


def test_times_that_fall() -> None:
    x, p = np.zeros(3, np.uint16), np.zeros(3, np.uint8)
    with pytest.raises(ValueError, match="expected them in order of time"):
        Events(np.array([1, 3, 2]), x, x, p, 9, 9)


def test_columns_of_the_wrong_type_or_length() -> None:
    t, x, p = np.arange(3), np.zeros(3, np.uint16), np.zeros(3, np.uint8)
    with pytest.raises(ValueError, match=r"expected y to be an array of 3 uint16 numbers, got int64\[3\]"):
        Events(t, x, t, p, 9, 9)
    with pytest.raises(ValueError, match=r"expected p to be an array of 3 uint8 numbers, got uint8\[2\]"):
        Events(t, x, x, p[:2], 9, 9)
    with pytest.raises(ValueError, match=r"expected x to be an array of 3 uint16 numbers, got list"):
        Events(t, [0, 1, 2], x, p, 9, 9)


@settings(max_examples=60, deadline=None)
@given(recordings(128, 96, 5000), st.integers(1, 9), st.integers(0, 300))
def test_equal_slices_hold_all_that_follows_the_offset(events: Events, timesteps: int, offset: int) -> None:
    start = int(events.t[0]) + offset
    kept = events.between(start, int(events.t[-1]) + 1)
    by_time = slices(events, timesteps=timesteps, offset=offset).sum((1, 2, 3))
    span = max(0, int(events.t[-1]) + 1 - start)
    edges = [start + span * i // timesteps for i in range(timesteps + 1)]
    assert by_time.tolist() == [len(events.between(a, b)) for a, b in pairwise(edges)]
    by_count = slices(events, timesteps=timesteps, by="count", offset=offset).sum((1, 2, 3)).tolist()
    assert sum(by_time) == sum(by_count) == len(kept)
    assert max(by_count) - min(by_count) <= 1


def test_slices_of_so_many_events() -> None:
    events = recording(3, 20, 8, 6)
    found = slices(events, timesteps=4, by="count", window=6)
    assert found.sum((1, 2, 3)).tolist() == [6, 6, 6, 2]
    third = Events(*(getattr(events, name)[12:18] for name in "txyp"), 8, 6)
    assert np.array_equal(found[2], slices(third, timesteps=1)[0])
    assert slices(events, timesteps=2, by="count", window=2**62).sum((1, 2, 3)).tolist() == [20, 0]


def test_equal_slices_of_late_times() -> None:
    events = recording(4, 30, 8, 6)
    late = Events(events.t + 2**62, events.x, events.y, events.p, 8, 6)
    assert np.array_equal(slices(late, timesteps=7), slices(events, timesteps=7))


def test_slices_that_cannot_be() -> None:
    events = recording(3, 20, 8, 6)
    with pytest.raises(ValueError, match="expected slices by time or by count, got 'size'"):
        slices(events, timesteps=2, by="size")  # type: ignore[arg-type]


@pytest.mark.parametrize(("width", "height"), [(9, 4), (4, 9), (9, 9)])
def test_a_sensor_lies_in_the_middle_of_a_square(width: int, height: int) -> None:
    events = recording(5, 50, width, height)
    square = events.squared()
    assert (square.width, square.height) == (9, 9)
    frame = slices(square, timesteps=1)[0]
    left, top = (9 - width) // 2, (9 - height) // 2
    inside = frame[:, top : top + height, left : left + width]
    assert np.array_equal(inside, slices(events, timesteps=1)[0])
    assert frame.sum() == 50
