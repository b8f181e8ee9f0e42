"""Random damage to bytes and to JSON. The same random numbers give the same damage."""

import json
from collections.abc import Callable
from random import Random
from struct import pack
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

NUMBERS = (
    0, 1, 2, 127, 128, 255, 256, 2**15 - 1, 2**15, 2**16 - 1, 2**20, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**62,
    2**63 - 1,
)  # fmt: skip
TWO_LINES = "a\nb"
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 1023, 1024, 10**6, 2**31, 2**40, 2**63, 10**30, -(2**63), 10**400,
    0.0, -0.0, 0.5, -1.5, 1e-320, 1e-30, 1e30, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
    "", "a", "0", "none", "1x1", "\x1b[31mred", "[bold]b[/bold]", ":cat:", TWO_LINES, "\0", "../../x", "/dev/zero",
    "é" * 9, "x" * 10_000,
    [], {}, [[]], [0], [1, 1], [0, 0], [-1, 2], [2**31, 2**31], [1, 2, 3], [None], ["a", "a"], {"a": 1},
)  # fmt: skip


def damaged(content: bytes, random: Random) -> bytes:
    """Apply one to four changes to bytes."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        content = random.choice(CHANGES)(content, random)
    return content


def _flip(content: bytes, random: Random) -> bytes:
    at = _place(content, random)
    return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :] if content else content


def _byte(content: bytes, random: Random) -> bytes:
    at = _place(content, random)
    return content[:at] + bytes([random.choice((0, 1, 127, 128, 255, random.randrange(256)))]) + content[at + 1 :]


def _number(content: bytes, random: Random) -> bytes:
    """Overwrite two, four or eight bytes with a number that programs stumble over."""
    at, form = _place(content, random), random.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
    size = {"H": 16, "I": 32, "Q": 64}[form[1]]
    number = pack(form, (random.choice(NUMBERS) * random.choice((1, 1, -1))) % 2**size)
    return content[:at] + number + content[at + len(number) :]


def _cut(content: bytes, random: Random) -> bytes:
    return content[: _place(content, random)]


def _remove(content: bytes, random: Random) -> bytes:
    at = _place(content, random)
    return content[:at] + content[at + random.choice((1, 2, 4, 8, 100)) :]


def _insert(content: bytes, random: Random) -> bytes:
    at = _place(content, random)
    new = random.choice((b"\0", b"\xff", b"\n", b"%", b"#", random.randbytes(random.randrange(1, 40))))
    return content[:at] + new * random.choice((1, 1, 4, 1000)) + content[at:]


def _repeat(content: bytes, random: Random) -> bytes:
    a, b = sorted((_place(content, random), _place(content, random)))
    return content[:b] + content[a:b] * random.choice((1, 1, 3)) + content[b:]


def _swap(content: bytes, random: Random) -> bytes:
    a, b, size = _place(content, random), _place(content, random), random.choice((1, 4, 16, 64))
    changed = bytearray(content)
    changed[a : a + size], changed[b : b + size] = content[b : b + size], content[a : a + size]
    return bytes(changed)


def _zeros(content: bytes, random: Random) -> bytes:
    at, size = _place(content, random), random.choice((4, 16, 256))
    return content[:at] + bytes([random.choice((0, 255))]) * size + content[at + size :]


def _place(content: bytes, random: Random) -> int:
    """Return a place anywhere, in half of the cases near the start, where headers are."""
    limit = random.choice((64, 1024, len(content), len(content)))
    return random.randrange(max(1, min(limit, len(content))))


CHANGES: tuple[Mutation, ...] = (_flip, _byte, _number, _cut, _remove, _insert, _repeat, _swap, _zeros)


def json_text(content: bytes, random: Random) -> bytes:
    """Change one or two values in a JSON text, or in one of several lines of JSON."""
    if random.random() < 0.02:
        return b"[" * 200_000
    lines = content.splitlines()
    try:
        at = random.randrange(len(lines))
        return b"\n".join([*lines[:at], _one_text(lines[at], random), *lines[at + 1 :]]) + b"\n"
    except ValueError:  # one document on several lines
        return _one_text(content, random)


def _one_text(content: bytes, random: Random) -> bytes:
    value = json.loads(content)
    for _ in range(random.choice((1, 1, 2))):
        value = changed(value, random)
    return json.dumps(value).encode()


def changed(value: Any, random: Random) -> Any:
    """Return a JSON value in which one part is replaced, missing or duplicated."""
    inside = isinstance(value, dict | list) and len(value) > 0 and random.random() < 0.9
    if not inside:
        return random.choice(ODD)
    key = random.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
    copy = dict(value) if isinstance(value, dict) else list(value)
    what = random.random()
    if what < 0.1:
        del copy[key]
    elif what < 0.15:
        copy[key] = value[random.choice(sorted(value) if isinstance(value, dict) else range(len(value)))]
    elif what < 0.2 and isinstance(copy, dict):
        copy[random.choice(("", "x", "name", "epoch"))] = copy.pop(key)
    elif what < 0.2:
        copy.append(copy[key])
    else:
        copy[key] = changed(value[key], random)
    return copy
