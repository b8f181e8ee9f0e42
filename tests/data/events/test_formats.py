"""AEDAT 4, DAT, RAW and CSV: the same events from every file, by hand and by faery; what is wrong is one sentence."""

import random
import sys
from dataclasses import replace
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rheobase.data.events import Events, csv, decode, read
from rheobase.data.events.ferry import ferried
from rheobase.data.events.stream import Problems
from tests.data import recordings
from tests.data.events.test_readers import Writer, assert_recording, mutated
from tests.data.recordings import recording, same, unchecked

BY_FAERY: dict[str, tuple[Writer, Events]] = {
    "a.aedat4": (recordings.aedat_4, recording(1, 41, 346, 260)),
    "b.dat": (recordings.dat, recording(2, 43, 304, 240)),
    "c.raw": (recordings.evt_2, recording(3, 47, 640, 480)),
    "d.raw": (recordings.evt_3, recording(4, 53, 1280, 720)),
}
FORMATS = BY_FAERY | {"e.csv": (recordings.csv, recording(5, 59, 31, 17))}
MUTATIONS = 600


@pytest.fixture(params=FORMATS)
def made(request: pytest.FixtureRequest) -> tuple[str, Writer, Events]:
    """Name, writer and events of every format that can be read here."""
    if request.param in BY_FAERY:
        pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    return request.param, *FORMATS[request.param]


def test_bytes_by_hand_hold_the_events(made: tuple[str, Writer, Events]) -> None:
    name, write, events = made
    assert same(decode(write(events), name), events)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.aedat4", {}),
        ("a.aedat4", {"compression": ("zstd", 3)}),
        ("a.aedat4", {"compression": None}),
        ("b.dat", {}),
        ("b.dat", {"version": "dat1"}),
        ("c.raw", {"version": "evt2"}),
        ("d.raw", {"version": "evt3"}),
        ("d.raw", {"version": "evt3", "zero_t0": False}),
        ("e.csv", {}),
        ("e.csv", {"csv_header": True, "csv_separator": b","}),
    ],
)
def test_files_by_faery_hold_the_events(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    events = recording(6, 30_011, 304, 240, until=9_000_000)
    assert same(read(recordings.by_faery(events, tmp_path / name, **options)), events)


@settings(max_examples=25, deadline=None)
@given(recordings.recordings(1280, 720, 2**50))
def test_csv_round_trip(events: Events) -> None:
    assert same(decode(recordings.csv(events), "e.csv"), events)


@pytest.mark.parametrize(
    ("name", "write", "bits"),
    [("b.dat", recordings.dat, 32), ("c.raw", recordings.evt_2, 34), ("d.raw", recordings.evt_3, 24)],
)
def test_the_clock_starts_again(name: str, write: Writer, bits: int) -> None:
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    events = recording(7, 61, 304, 240)
    late = replace(events, t=events.t + 2**bits - int(events.t[30]))
    assert same(decode(write(late), name), late)


def test_a_time_of_aedat_4_has_64_bits() -> None:
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    events = recording(7, 61, 304, 240)
    late = replace(events, t=events.t + 1_700_000_000_000_000)  # since 1970, as DV counts
    assert same(decode(recordings.aedat_4(late), "a.aedat4"), late)


def test_vectors_of_evt_3_by_hand() -> None:
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    words = [0x8001, 0x6002, 0x0005, 0x3800 | 7, 0x4000 | 0b100000000001, 0x5000 | 0b10000010]
    found = decode(b"% evt 3.0\n% geometry 40x6\n" + np.array(words, "<u2").tobytes(), "d.raw")
    assert found.t.tolist() == [4098] * 4
    assert found.x.tolist() == [7, 18, 20, 26]
    assert found.y.tolist() == [5] * 4
    assert found.p.tolist() == [1] * 4


def test_only_one_bit_of_dat_is_the_polarity() -> None:
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    events = recording(12, 9, 304, 240)
    content = bytearray(recordings.dat(events))
    for i in range(9):
        content[-1 - 8 * i] |= 0xE0
    assert same(decode(bytes(content), "b.dat"), events)


def test_events_outside_the_sensor_are_counted(made: tuple[str, Writer, Events]) -> None:
    name, write, events = made
    x, y = events.x.copy(), events.y.copy()
    x[[5, 9]], y[20] = events.width, events.height + 1
    content = write(unchecked(events, x=x, y=y, width=events.width, height=events.height))
    first = rf"pixel \({events.width}, {y[5]}\), one of 3 outside the sensor of {events.width} x {events.height}, at "
    with pytest.raises(ValueError, match=rf"^{name}: an event at {first}(event 5|line 7);"):
        decode(content, name)
    kept = decode(content, name, on_error="skip")
    assert kept.skipped == {"outside": 3}
    assert kept.t.tolist() == np.delete(events.t, [5, 9, 20]).tolist()


def test_truncated_files(made: tuple[str, Writer, Events]) -> None:
    name, write, events = made
    content = write(events)[:-8] if name == "a.aedat4" else write(events)[:-1]
    if name == "e.csv":
        content = content[:-2]  # the last polarity and its comma
    with pytest.raises(ValueError, match=rf"^{name}: .*(cut short|bytes of a word|instead of four)"):
        decode(content, name)
    kept = decode(content, name, on_error="skip")
    assert sum(kept.skipped.values()) == 1
    assert kept.t.tolist() == events.t[: len(kept)].tolist()
    assert len(kept) == (len(events) - len(events) % 19 if name == "a.aedat4" else len(events) - 1)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_mutations_are_errors_or_recordings(made: tuple[str, Writer, Events], on_error: str) -> None:
    name, write, events = made
    original, chance = write(events), random.Random(name)
    messages = []
    for _ in range(MUTATIONS):
        content = mutated(original, chance)
        try:
            assert_recording(decode(content, name, on_error=on_error), len(content))  # type: ignore[arg-type]
        except ValueError as error:
            messages.append(str(error))
    assert messages
    assert all(m.startswith(f"{name}: ") and "\n" not in m for m in messages)


@pytest.mark.parametrize("options", [{}, {"compression": ("zstd", 3)}])
def test_mutations_of_compressed_packets(options: dict[str, Any], tmp_path: Path) -> None:
    events = recording(8, 500, 346, 260)
    original = recordings.by_faery(events, tmp_path / "a.aedat4", **options).read_bytes()
    chance, start = random.Random(0), 18 + unpack_from("<I", original, 14)[0]
    damaged = 0
    for _ in range(MUTATIONS):
        found = decode(original[:start] + mutated(original[start:], chance), "a.aedat4", on_error="skip")
        assert_recording(found, 300 * len(original))
        damaged += bool(found.skipped)
    assert damaged


def test_a_panic_of_rust_is_one_sentence() -> None:
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    parts = [b"% evt 2.1\n", bytes(64)]
    with pytest.raises(
        ValueError, match=r"^f\.raw: a packet that faery cannot read \(not yet implemented: .*at event 0;"
    ):
        ferried("evt", parts, Problems("f.raw", "raise"), (4, 5))
    kept = ferried("evt", parts, Problems("f.raw", "skip"), (4, 5))
    assert kept.skipped == {"packet": 1, "empty": 1}


@pytest.mark.parametrize("name", BY_FAERY)
def test_without_faery(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faery", None)
    write, events = FORMATS[name]
    with pytest.raises(ValueError, match=rf"reading {name} needs the package faery; install rheobase\[events\]"):
        decode(write(events), name)


def header_of_aedat_4(*numbers: int, text: bytes = b"") -> bytes:
    table = pack("<I4s5H2xiiqI", *numbers[:1], b"IOHE", *numbers[1:]) + pack("<I", len(text)) + text
    return b"#!AER-DAT4.0\r\n" + pack("<I", len(table)) + table


GOOD = (20, 10, 20, 4, 8, 16, 12, 0, -1, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#!AER-DAT4.0\r\n", ""),
        (b"#!AER-DAT4.0\r\n" + pack("<I", 2**32 - 1) + bytes(9), ""),
        (header_of_aedat_4(2**31, *GOOD[1:]), "points outside itself"),
        (header_of_aedat_4(20, 10, 20, 4, 8, 16, -(2**31), 0, -1, 4), "points outside itself"),
        (header_of_aedat_4(20, 10, 20, 60_000, *GOOD[4:]), "points outside itself"),
        (header_of_aedat_4(*GOOD[:9], 2**31), "points outside itself"),
        (header_of_aedat_4(*GOOD[:7], 77, *GOOD[8:]), "compression 77"),
        (header_of_aedat_4(*GOOD, text=b"<dv>"), "no element found"),
        (header_of_aedat_4(*GOOD, text=b"<dv/>"), "no event track"),
        (header_of_aedat_4(*GOOD, text=recordings.DESCRIPTION.format(0, 5).encode()), "a sensor of 0 x 5"),
        (header_of_aedat_4(*GOOD, text=recordings.DESCRIPTION.format(8, "five").encode()), "invalid literal"),
    ],
)
def test_headers_of_aedat_4_are_not_believed(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^a\.aedat4: no AEDAT 4 header at byte 14 \(.*{message}") as e:
        decode(content, "a.aedat4")
    assert "\n" not in str(e.value)


def test_a_packet_cannot_ask_for_memory() -> None:
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    whole = recordings.aedat_4(recording(9, 19, 8, 9))
    asks = header_of_aedat_4(*GOOD, text=recordings.DESCRIPTION.format(8, 9).encode()) + pack("<iI", 3, 2**32 - 1)
    with pytest.raises(ValueError, match=r"a packet of 4294967295 bytes cut short at byte \d+;"):
        decode(asks, "a.aedat4")
    assert decode(asks, "a.aedat4", on_error="skip").skipped == {"truncated": 1, "empty": 1}
    assert len(decode(whole, "a.aedat4")) == 19


def test_what_comes_before_a_damaged_packet_is_kept() -> None:
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    events = recording(14, 57, 346, 260)
    content = recordings.aedat_4(events)
    damaged = b"EVTX".join(content.rsplit(b"EVTS", 1))
    with pytest.raises(ValueError, match=r"a packet that faery cannot read \(bad packet prefix .*\) at event 38;"):
        decode(damaged, "a.aedat4")
    kept = decode(damaged, "a.aedat4", on_error="skip")
    assert kept.t.tolist() == events.t[:38].tolist()
    assert kept.skipped == {"packet": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"% evt 2.1\n% geometry 4x5\n" + bytes(8), "EVT 2.1 is not supported; convert it to EVT 3.0"),
        (b"% format EVT9;width=4;height=5\n" + bytes(8), "EVT 9 is not supported"),
        (b"% evt 3.0\n" + bytes(8), r"the sensor size is missing; .*--set sensor=346x260"),
        (b"% evt 3.0\n% geometry 0x5\n" + bytes(8), "expected a sensor of 1 to 32767 pixels"),
        (b"% evt 3.0\n% geometry 4x5\n% t0 soon\n" + bytes(8), "got t0 soon"),
        (b"% Version 2\n% Width 4\n% Height 5\n\x0e\x08" + bytes(8), "no events of DAT 1 or 2 at byte 33"),
        (b"% Version 2\n% Width 4\n% Height 5\n", "no events of DAT 1 or 2"),
        (b"% Version 3\n% Width 4\n% Height 5\n\x0c\x08" + bytes(8), "no events of DAT 1 or 2"),
        (b"% Version 2", "an unterminated header line at byte 0"),
    ],
)
def test_headers_of_prophesee(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"^f.raw: .*{message}"):
        decode(content, "f.raw")


def test_a_sensor_can_be_given_but_not_changed() -> None:
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    body = recordings.evt_3(recording(4, 53, 40, 30)).partition(b"% end\n")[2]
    assert decode(b"% evt 3.0\n" + body, "d.raw", size=(50, 60)).width == 50
    assert decode(b"% evt 3.0\n% geometry 41x42\n" + body, "d.raw", size=(50, 60)).width == 41


@pytest.mark.parametrize("name", ["e.csv", "f.npz"])
def test_what_a_file_states_of_its_sensor_counts(name: str) -> None:
    events = recording(13, 9, 31, 17)
    content = recordings.csv(events) if name == "e.csv" else recordings.npz(events)
    assert same(decode(content, name, size=(50, 60)), events)


def test_data_may_begin_like_a_header() -> None:
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    words = np.array([0x0025, 0x200A, 0x0A03, 0x2001], "<u2").tobytes()  # y = 37: the sign of percent
    for end in (b"% end\n", b""):
        found = decode(b"% evt 3.0\n% geometry 40x600\n" + end + words, "d.raw")
        assert found.y.tolist() == [37, 515]


def lines(*texts: str, ending: str = "\n") -> bytes:
    return ending.join(texts).encode()


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n", "\r\n\r\n"])
def test_lines_of_csv_end_in_many_ways(ending: str, last: str) -> None:
    content = lines("5,1,2,0", "1234567890123,3,0,1", ending=ending) + last.encode()
    found = decode(content, "e.csv", size=(4, 5))
    assert found.t.tolist() == [5, 1234567890123]
    assert (found.x.tolist(), found.y.tolist(), found.p.tolist()) == ([1, 3], [2, 0], [0, 1])


def test_columns_of_csv_by_name() -> None:
    for heading in ("x@7,y@9,polarity,timestamp", "\ufeffX@7, Y@9, p, t"):
        found = decode(lines(heading, "6,8,1,40"), "e.csv")
        assert (found.t[0], found.x[0], found.y[0], found.p[0]) == (40, 6, 8, 1)
        assert (found.width, found.height) == (7, 9)


def test_csv_is_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    events = recording(10, 300, 31, 17, until=10**12)
    monkeypatch.setattr(csv, "PIECE", 64)
    assert same(decode(recordings.csv(events), "e.csv"), events)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("1,2,3,1", "2,2,3"), "'2,2,3' instead of four whole numbers at line 2;"),
        (("1,2,3,1", "2,2,3,1,5"), "'2,2,3,1,5' instead of four whole numbers at line 2;"),
        (("1,2,3,1", "", "2,2,3,1"), "'' instead of four whole numbers at line 2;"),
        (("1,2,3,1", "2.5,2,3,1"), "'2.5,2,3,1' instead of four whole numbers at line 2;"),
        (("1,2,3,1", "2,2,3,-1"), "'2,2,3,-1' instead of four whole numbers at line 2;"),
        (("1,2,3,1", "2,,3,1"), "'2,,3,1' instead of four whole numbers at line 2;"),
        (("1,2,3,1", "2 2 3 1"), "'2 2 3 1' instead of four whole numbers at line 2;"),
        (("1,2,3,1", "9" * 19 + ",2,3,1"), "instead of four whole numbers at line 2;"),
        (("t,x,y,p", "1,2,3,1", "2,2,3,2"), "a polarity other than 0 and 1 at line 3;"),
        (("t,x,y,p", "2,2,3,1", "1,2,3,1"), "time running backwards, from 2 to 1 us, at line 3;"),
        (("t,x,y,p", "2,2,9,1"), r"pixel \(2, 9\), one of 1 outside the sensor of 4 x 5, at line 2;"),
        (("t,x,y,p",), "no events at line 2;"),
        (("a,b,c,d", "1,2,3,1"), "expected whole numbers or the names t,x,y,p on line 1, got 'a,b,c,d'"),
        (("t,x@0,y@3,p", "1,2,3,1"), "expected a sensor of 1 to 32767 pixels"),
        (("t,x@3,y,p", "1,2,3,1"), "expected a sensor of 1 to 32767 pixels"),
    ],
)
def test_what_is_wrong_in_csv(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^e\.csv: .*{message}"):
        decode(lines(*texts), "e.csv", size=(4, 5))


def test_bad_lines_of_csv_are_left_out() -> None:
    found = decode(lines("1,2,3,1", "oops", " 2, 3, 4, 0", "3,1,1,5"), "e.csv", size=(4, 5), on_error="skip")
    assert found.t.tolist() == [1, 2]
    assert found.skipped == {"line": 1, "impossible": 1}


def test_csv_needs_a_sensor() -> None:
    with pytest.raises(
        ValueError, match="the sensor size is missing; begin the file with a line such as t,x@346,y@260,p, or give it"
    ):
        decode(lines("1,2,3,1"), "e.csv")


def test_aedat_3_names_its_camera() -> None:
    events = recording(11, 29, 346, 260)
    content = recordings.aedat_3(events)
    assert decode(content.replace(b": DVS128", b": DAVIS346B"), "b.aedat").height == 260
    assert decode(content.replace(b": DVS128", b": Own"), "b.aedat", size=(346, 260)).width == 346
    with pytest.raises(ValueError, match="outside the sensor of 128 x 128"):
        decode(content.replace(b": DVS128", b": Own"), "b.aedat")
