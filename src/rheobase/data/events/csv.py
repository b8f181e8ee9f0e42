"""Events as CSV: one line of whole numbers t, x, y and p per event, with t in microseconds.

The first line may name the columns, in any order, and state the sensor as faery does: t,x@346,y@260,p. The digits of
many lines are added up at once, which is nearly twice as fast as NumPy's parser.
"""

import numpy as np
from numpy.typing import NDArray

from rheobase.data.events.stream import LARGEST, Events, OnError, Problems, checked, fits, no_size

NAMES = {"t": 0, "timestamp": 0, "x": 1, "y": 2, "p": 3, "polarity": 3, "on": 3}
PIECE = 2**19  # bytes to parse at once: as many as fit in the processor's cache
DIGITS = 18  # that always fit in 64 bits
ZERO, NINE = b"09"

Columns = list[NDArray[np.integer]]  # in the order of the file


def decode(content: bytes, source: str, size: tuple[int, int] | None = None, on_error: OnError = "raise") -> Events:
    """Decode a recording in this format."""
    problems = Problems(source, on_error, unit="line")
    places, stated, start = _heading(content, source)
    size = stated or size
    if size is None:
        raise no_size(source, "begin the file with a line such as t,x@346,y@260,p")
    first = line = 2 if start else 1
    stop = len(content)
    while stop > start and content[stop - 1] in b"\r\n":
        stop -= 1
    newline = content.find(b"\n", start)
    ending = b"\r\n" if content[newline - 1 : newline + 1] == b"\r\n" else b"\n"
    pieces: list[Columns] = []
    while start < stop:
        end = content.rfind(b"\n", start, start + PIECE) + 1 if stop - start > PIECE else stop
        end = end or stop  # a line this long is not valid
        piece = content[start:end] + (ending if end == stop else b"")
        found = _at_once(piece, b",,," + ending)
        pieces.append(_one_by_one(piece, line, problems) if found is None else found)
        line += len(pieces[-1][0])
        start = end
    t, x, y, p = (np.concatenate([np.empty(0, np.uint32), *(piece[place] for piece in pieces)]) for place in places)
    strange = p > 1
    if strange.any():
        what = "a polarity other than 0 and 1"
        problems.found("impossible", what, first + int(strange.argmax()), int(strange.sum()))
        t, x, y, p = t[~strange], x[~strange], y[~strange], p[~strange]
    return checked(problems, t.astype(np.int64, copy=False), x, y, p, size, lambda i: first + i)


def _heading(content: bytes, source: str) -> tuple[list[int], tuple[int, int] | None, int]:
    """Return the places of t, x, y and p in a line, the sensor if it is stated, and where the events begin."""
    if content[:1].isdigit() or not content:
        return [0, 1, 2, 3], None, 0
    end = content.find(b"\n") + 1 or len(content)
    words = [word.strip().lower().partition("@") for word in content[:end].decode("utf-8-sig", "replace").split(",")]
    columns = [NAMES.get(name, -1) for name, _, _ in words]
    if sorted(columns) != [0, 1, 2, 3]:
        got = ",".join(name for name, _, _ in words)[:60]
        raise ValueError(f"{source}: expected whole numbers or the names t,x,y,p on line 1, got '{got}'; fix the line")
    sides = [words[columns.index(column)][2] for column in (1, 2)]
    places = [columns.index(column) for column in range(4)]
    if not any(sides):
        return places, None, end
    if not all(side.isdecimal() and len(side) < DIGITS for side in sides) or not fits(int(sides[0]), int(sides[1])):
        raise ValueError(f"{source}: expected a sensor of 1 to {LARGEST} pixels in width and height, got {sides}")
    return places, (int(sides[0]), int(sides[1])), end


def _at_once(piece: bytes, separators: bytes) -> Columns | None:
    """Return the numbers of all lines, or None unless every line has four numbers with these separators."""
    text, expected = np.frombuffer(piece, np.uint8), np.frombuffer(separators, np.uint8)
    ends = np.flatnonzero(text < ZERO)
    if len(ends) % len(expected) or (text > NINE).any():
        return None
    ends = np.ascontiguousarray(ends.reshape(-1, len(expected)).T)
    if (text.take(ends) != expected[:, None]).any():
        return None
    starts = np.empty_like(ends[:4])
    starts[0, 0], starts[0, 1:], starts[1:] = 0, ends[-1, :-1] + 1, ends[:3] + 1
    lengths = ends[:4] - starts
    if lengths.min() < 1 or lengths.max() > DIGITS:
        return None
    return [_numbers(text, end, length) for end, length in zip(ends[:4], lengths, strict=True)]


def _numbers(text: NDArray[np.uint8], at: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.integer]:
    """Return the numbers of these lengths that end at `at`, which is overwritten."""
    shortest, longest = int(lengths.min()), int(lengths.max())
    kind: type[np.integer] = np.uint32 if longest < 10 else np.int64
    numbers: NDArray[np.integer] = np.zeros(len(at), kind)
    for place in range(longest):
        at -= 1
        digits = text.take(at, mode="clip")  # clip, because the first line may have nothing before it
        digits -= np.uint8(ZERO)
        if place >= shortest:
            digits *= lengths > place
        numbers += digits * kind(10**place)
    return numbers


def _one_by_one(piece: bytes, line: int, problems: Problems) -> Columns:
    """Return the numbers of all lines that have four. `line` is the number of the first line."""
    rows = []
    for number, text in enumerate(piece.splitlines(), line):
        words = [word.strip() for word in text.split(b",")]
        if len(words) == 4 and all(word.isdigit() and len(word) <= DIGITS for word in words):
            rows.append([int(word) for word in words])
        else:
            shown = text[:40].decode("ascii", "replace")
            problems.found("line", f"'{shown}' instead of four whole numbers", number)
    return list(np.array(rows, np.int64).reshape(-1, 4).T)
