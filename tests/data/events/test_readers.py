"""Every format is read back as it was written; damage is an error that names file and byte, or is counted."""

import io
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from rheobase.data.events import Events, decode, read
from tests.data import recordings
from tests.data.recordings import recording, same, unchecked

Writer = Callable[[Events], bytes]
FORMATS: dict[str, tuple[Writer, Events]] = {
    "a.aedat": (recordings.aedat_2, recording(1, 41)),
    "b.aedat": (recordings.aedat_3, recording(2, 43)),
    "c.bin": (recordings.nmnist, recording(3, 47, 34, 34)),
    "d.npz": (recordings.npz, recording(4, 53, 31, 17)),
}
MUTATIONS = 10_000


@pytest.mark.parametrize(
    ("chip", "size"), [("Davis640", (640, 480)), ("DAVIS240C", (240, 180)), ("", (346, 260)), ("Davis208", (208, 192))]
)
def test_aedat_2_of_other_sensors(chip: str, size: tuple[int, int]) -> None:
    events = recording(3, 500, *size)
    given = size if chip in ("", "Davis208") else None
    content = recordings.aedat_2_davis(events, chip and f"eu.seebetter.ini.chips.davis.{chip}")
    assert same(decode(content, "a.aedat", size=given), events)
    named = recordings.aedat_2_davis(events, "eu.seebetter.ini.chips.davis.Davis346B")
    assert decode(named, "a.aedat", size=(9, 9), on_error="skip").width == 346  # what the file says is right


def test_a_given_sensor_leaves_a_dvs128_as_it_is() -> None:
    events = recording(4, 100)
    assert same(decode(recordings.aedat_2(events), "a.aedat", size=(346, 260)), events)


@settings(max_examples=60, deadline=None)
@given(recordings.recordings(128, 128, 2**32 - 1))
def test_aedat_2_round_trip(events: Events) -> None:
    assert same(decode(recordings.aedat_2(events, special_at=len(events) // 2), "a.aedat"), events)


@settings(max_examples=60, deadline=None)
@given(recordings.recordings(128, 128, 2**40))
def test_aedat_3_round_trip_beyond_the_overflow_of_the_clock(events: Events) -> None:
    assert same(decode(recordings.aedat_3(events), "b.aedat"), events)


@settings(max_examples=60, deadline=None)
@given(recordings.recordings(34, 34, 2**23 - 1))
def test_nmnist_round_trip(events: Events) -> None:
    assert same(decode(recordings.nmnist(events), "c.bin"), events)


@settings(max_examples=30, deadline=None)
@given(recordings.recordings(1280, 720, 2**50))
def test_npz_round_trip(events: Events) -> None:
    assert same(decode(recordings.npz(events), "d.npz"), events)


def test_addresses_by_hand() -> None:
    header = b"#!AER-DAT2.0\r\n"
    one = decode(header + bytes([0, 0, 5 << 0, 3 << 1 | 1, 0, 0, 1, 2]), "a.aedat")
    assert (one.t[0], one.x[0], one.y[0], one.p[0]) == (258, 3, 5, 1)
    one = decode(bytes([7, 9, 0x80 | 1, 0, 2]), "c.bin")
    assert (one.t[0], one.x[0], one.y[0], one.p[0]) == (65538, 7, 9, 1)


def test_overflow_of_the_nmnist_clock() -> None:
    events = decode(bytes([1, 2, 0, 0, 9, 0, 240, 0, 0, 0, 3, 4, 0, 0, 5]), "c.bin")
    assert events.t.tolist() == [9, 2**13 + 5]
    assert events.x.tolist() == [1, 3]


def test_invalid_events_of_aedat_3_are_no_events() -> None:
    events = recording(5, 3)
    content = bytearray(recordings.aedat_3(events))
    content[-16] &= 0xFE  # the valid bit of the second
    assert decode(bytes(content), "b.aedat").t.tolist() == [events.t[0], events.t[2]]


@pytest.mark.parametrize("name", FORMATS)
def test_truncated(name: str, tmp_path: Path) -> None:
    write, events = FORMATS[name]
    path = tmp_path / name
    path.write_bytes(write(events)[:-3])
    with pytest.raises(ValueError, match=name):
        read(path)
    if name != "d.npz":
        kept = read(path, on_error="skip")
        assert kept.t.tolist() == events.t[:-1].tolist()
        assert kept.skipped == {"truncated": 1}


def test_offsets_in_errors() -> None:
    events = recording(6, 5, 34, 34)
    t, y = events.t.copy(), events.y.copy()
    t[3] = t[2] - 1
    backwards = unchecked(events, t=t, y=y)
    with pytest.raises(ValueError, match=r"c\.bin: time running backwards, from \d+ to \d+ us, at byte 15;"):
        decode(recordings.nmnist(backwards), "c.bin")
    y[1] = 35
    outside = unchecked(events, t=t, y=y)
    with pytest.raises(ValueError, match=r"outside the sensor of 34 x 34, at byte 5;"):
        decode(recordings.nmnist(outside), "c.bin")
    kept = decode(recordings.nmnist(outside), "c.bin", on_error="skip")
    assert kept.skipped == {"outside": 1, "backwards": 1}
    assert kept.t.tolist() == t[[0, 2, 4]].tolist()


def test_offset_in_a_packet() -> None:
    events = recording(7, 23, until=2**31 - 1)
    content = bytearray(recordings.aedat_3(events, per_packet=10))
    last = len(content) - 4  # the time of the last event
    content[last:] = bytes(4)
    with pytest.raises(ValueError, match=f"backwards, from {events.t[-2]} to 0 us, at byte {last - 4};"):
        decode(bytes(content), "b.aedat")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.aedat", b"#!AER-DAT2.0\r\n", "no events at byte 14"),
        ("a.aedat", b"#!AER-DAT2.0", "unterminated header line at byte 0"),
        ("a.aedat", b"#!AER-DAT2.0\n\xff\xff\x00\x00\x00\x00\x00\x00", "outside the sensor of 128 x 128, at byte 13"),
        ("b.aedat", b"#!AER-DAT3.1\r\n", "#!END-HEADER at byte 0"),
        ("b.aedat", b"#!AER-DAT3.1\r\n#!END-HEADER\r\n", "no events at byte 28"),
        ("b.aedat", b"#!AER-DAT3.1\r\n#!END-HEADER\r\n" + b"\xff" * 28, "invalid packet header at byte 28"),
        ("c.bin", b"", "no events at byte 0"),
        ("d.npz", b"PK", "not a complete .npz"),
        ("e.aedat", b"#!AER-DAT1.0\r\n", "unknown format at byte 0"),
    ],
)
def test_what_is_no_recording(name: str, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        decode(content, name)
    assert str(error.value).startswith(name)


@pytest.mark.parametrize("wrong", [2**32 - 1, 0])
def test_one_wrong_time_costs_one_event(wrong: int) -> None:
    events = recording(9, 67)
    t = events.t.copy()
    t[40] = wrong
    with pytest.raises(ValueError, match=f"running backwards, from {max(wrong, t[39])} to {min(wrong, t[41])} us,"):
        decode(recordings.aedat_2(unchecked(events, t=t)), "a.aedat")
    kept = decode(recordings.aedat_2(unchecked(events, t=t)), "a.aedat", on_error="skip")
    assert kept.t.tolist() == np.delete(events.t, 40).tolist()
    assert kept.skipped == {"backwards": 1}


def test_the_clock_of_aedat_2_starts_again() -> None:
    events = recording(9, 67)
    late = replace(events, t=events.t + 2**32 - int(events.t[40]))
    assert decode(recordings.aedat_2(unchecked(late, t=late.t % 2**32)), "a.aedat").t.tolist() == late.t.tolist()


def test_a_file_of_nothing_is_skipped_where_asked() -> None:
    assert decode(b"", "a.aedat", on_error="skip").skipped == {"empty": 1}
    with pytest.raises(ValueError, match="unknown format"):
        decode(b"#!AER-DAT1.0\r\n", "a.aedat", on_error="skip")


def test_npz_without_a_size() -> None:
    file = recordings.npz(recording(8, 3))
    assert len(decode(file, "d.npz", size=(128, 128))) == 3
    bare = io.BytesIO()
    np.savez(bare, t=[1], x=[2], y=[3], p=[1])
    with pytest.raises(ValueError, match="the sensor size is missing"):
        decode(bare.getvalue(), "d.npz")
    bare = io.BytesIO()
    np.savez(bare, t=[1.5], x=[2], y=[3], p=[1], width=4, height=5)
    with pytest.raises(ValueError, match="whole numbers"):
        decode(bare.getvalue(), "d.npz")


def test_bad_events_in_arrays() -> None:
    file = io.BytesIO()
    np.savez(file, t=[5, -1, 7, 6, 9, 9], x=[0, 0, 1, 1, 8, 2], y=[0] * 6, p=[1, 1, 0, 0, 1, 2], width=4, height=5)
    with pytest.raises(ValueError, match=r"d\.npz: a time below 0, .* at event 1;"):
        decode(file.getvalue(), "d.npz")
    kept = decode(file.getvalue(), "d.npz", on_error="skip")
    assert kept.t.tolist() == [5, 7]
    assert kept.skipped == {"impossible": 2, "outside": 1, "backwards": 1}
    file = io.BytesIO()
    np.savez(file, t=[5, 4], x=[0, 0], y=[1, 2], p=[1, 1], width=4, height=5)
    with pytest.raises(ValueError, match="running backwards, from 5 to 4 us, at event 1;"):
        decode(file.getvalue(), "d.npz")


def test_darker_may_be_minus_one_and_pixels_below_0_are_outside() -> None:
    file = io.BytesIO()
    np.savez(file, t=[1, 2, 3], x=[0, 1, -1], y=[0, 1, 2], p=[-1, 1, -1], width=4, height=5)
    with pytest.raises(ValueError, match=r"pixel \(-1, 2\), one of 1 outside the sensor of 4 x 5, at event 2"):
        decode(file.getvalue(), "d.npz")
    kept = decode(file.getvalue(), "d.npz", on_error="skip")
    assert (kept.p.tolist(), kept.skipped) == ([0, 1], {"outside": 1})


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("name", FORMATS)
def test_mutations_are_errors_or_recordings(name: str, on_error: str) -> None:
    write, events = FORMATS[name]
    original, chance = write(events), random.Random(name)
    messages = []
    for _ in range(MUTATIONS // 2):
        content = mutated(original, chance)
        try:
            assert_recording(decode(content, name, on_error=on_error), len(content))  # type: ignore[arg-type]
        except ValueError as error:
            messages.append(str(error))
    assert messages or on_error == "skip"
    assert all(m.startswith(f"{name}: ") and "\n" not in m for m in messages)


@pytest.mark.parametrize("name", FORMATS)
def test_mutations_on_disk(name: str, tmp_path: Path) -> None:
    write, events = FORMATS[name]
    original, path, chance = write(events), tmp_path / name, random.Random(0)
    messages = []
    for _ in range(MUTATIONS // 20):
        path.write_bytes(mutated(original, chance))
        try:
            assert_recording(read(path), path.stat().st_size)
        except ValueError as error:
            messages.append(str(error))
    assert messages
    assert all(str(path) in m for m in messages)


def mutated(content: bytes, chance: random.Random) -> bytes:
    """With up to three bits flipped, ranges cut or bytes inserted."""
    damaged = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(damaged)) if damaged else 0
        match chance.randrange(4):
            case 0 if damaged:
                damaged[at] ^= 1 << chance.randrange(8)
            case 1:
                del damaged[at : at + chance.randint(1, 40)]
            case 2:
                damaged[at:at] = chance.randbytes(chance.randint(1, 12))
            case _:
                del damaged[at:]
    return bytes(damaged)


def assert_recording(events: Events, file_size: int) -> None:
    assert len(events) == len(events.x) == len(events.y) == len(events.p) <= 1040 * file_size
    assert (np.diff(events.t) >= 0).all()
    if len(events):
        assert events.t[0] >= 0
        assert events.x.max() < events.width
        assert events.y.max() < events.height
        assert events.p.max() <= 1
