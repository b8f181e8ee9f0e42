"""Pictures that are none, or would fill the memory."""

import importlib
import io
import os
import shutil
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

from rheobase.data.decoding import Request, decode, random_part
from rheobase.data.info import DataInfo
from rheobase.data.pictures import read

images = pytest.importorskip("PIL.Image", reason="needs Pillow: install rheobase[images]")

INFO = DataInfo(name="folder", classes=("a",), channels=3, size=5, mean=(0.0,) * 3, std=(1.0,) * 3)


def png(width: int, height: int) -> bytes:
    """A black picture of that size, as its header says; there are few pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(90))) + chunk(b"IEND", b"")
    )


def test_postscript_under_the_name_of_a_picture_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert shutil.which("gs") == str(program)
    (tmp_path / "a.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    with pytest.raises(ValueError, match=r"cannot read the image .*a\.jpg: its format is none of BMP, GIF, .*, WEBP$"):
        read(tmp_path / "a.jpg", INFO)
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"])
def test_every_format_that_is_promised(kind: str, tmp_path: Path) -> None:
    images.new("RGB", (8, 7), (200, 100, 0)).save(tmp_path / "a", kind)
    pixels = decode(Request(str(tmp_path / "a"), 5, 1.0, None))
    assert [abs(a - b) < 9 for a, b in zip(pixels[:3], (200, 100, 0), strict=True)] == [True] * 3


@pytest.mark.parametrize("kind", ["EPS", "ICO", "PCX", "TGA", "PDF"])
def test_no_other_format(kind: str, tmp_path: Path) -> None:
    images.new("RGB", (16, 16)).save(tmp_path / "a.png", kind)
    with pytest.raises(ValueError, match="its format is none of"):
        decode(Request(str(tmp_path / "a.png"), 5, 1.0, None))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "I;16"])
def test_grey_and_other_modes_become_rgb(mode: str, tmp_path: Path) -> None:
    white = images.new("L", (8, 7), 255)
    picture = images.new(mode, (8, 7), 65535) if mode == "I;16" else white.convert("RGB").convert(mode)
    picture.save(tmp_path / "a.tif")
    assert set(decode(Request(str(tmp_path / "a.tif"), 5, 1.0, None))) == {255}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_of_a_turned_camera_are_upright(orientation: int, kind: str, tmp_path: Path) -> None:
    bright = [[0, 60], [120, 240]]  # as seen
    flipped = {
        1: bright, 2: [[60, 0], [240, 120]], 3: [[240, 120], [60, 0]], 4: [[120, 240], [0, 60]],
        5: [[0, 120], [60, 240]], 6: [[60, 240], [0, 120]], 7: [[240, 60], [120, 0]], 8: [[120, 0], [240, 60]],
    }  # fmt: skip
    stored = np.kron(np.array(flipped[orientation], np.uint8), np.ones((16, 16), np.uint8))
    exif = images.Exif()
    exif[0x0112] = orientation
    images.fromarray(stored).convert("RGB").save(tmp_path / "a", kind, exif=exif)
    for part in (None, [0.5, 0.5, 1.0, 0.5]):
        pixels = np.frombuffer(decode(Request(str(tmp_path / "a"), 32, 1.0, part)), np.uint8).reshape(32, 32, 3)
        assert np.abs(pixels[8::16, 8::16].astype(int) - np.array(bright)[:, :, None]).max() < 12


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\x7f"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_damaged_remark_on_the_camera_spoils_no_picture(exif: bytes, tmp_path: Path) -> None:
    images.new("RGB", (8, 7), (200, 100, 0)).save(tmp_path / "a.jpg", exif=exif)
    assert decode(Request(str(tmp_path / "a.jpg"), 5, 1.0, None))[0] > 190


def test_a_damaged_remark_in_a_png_spoils_no_picture(tmp_path: Path) -> None:
    remark = importlib.import_module("PIL.PngImagePlugin").PngInfo()
    remark.add_text("Raw profile type exif", "\nexif\n2\nno hex")
    images.new("RGB", (8, 7), (200, 100, 0)).save(tmp_path / "a.png", pnginfo=remark)
    assert decode(Request(str(tmp_path / "a.png"), 5, 1.0, None))[0] > 190


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.full((8, 7), 0.25, np.float32), 64),
        (np.full((8, 7), 1.0, np.float32), 255),
        (np.full((8, 7), 0x4080, np.uint16), 0x40),
        (np.full((8, 7), 0x4080, ">u2"), 0x40),
    ],
)
def test_grey_of_more_than_8_bits_is_scaled(values: np.ndarray, expected: int, tmp_path: Path) -> None:
    images.fromarray(values).save(tmp_path / "a.tif")
    assert set(decode(Request(str(tmp_path / "a.tif"), 5, 1.0, None))) == {expected}


@pytest.mark.parametrize(("low", "high"), [(0.0, 255.0), (-0.5, 0.5), (0.0, np.inf), (np.nan, np.nan)])
def test_floats_beyond_1_are_refused(low: float, high: float, tmp_path: Path) -> None:
    images.fromarray(np.array([[low, high]] * 2, np.float32)).save(tmp_path / "a.tif")
    told = rf"a\.tif: its pixels are floats from {low:g} to {high:g}; expected 0 to 1; save it with 8 or 16 bits"
    with pytest.raises(ValueError, match=told):
        read(tmp_path / "a.tif", INFO)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_pixel_that_is_no_number_is_refused(place: int, tmp_path: Path) -> None:
    values = np.array([0.25, 0.5, 0.75, 1.0], np.float32)
    values[place] = np.nan
    images.fromarray(values.reshape(2, 2)).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match=r"a\.tif: .*(floats from nan to nan|one of its pixels is not a number); "):
        read(tmp_path / "a.tif", INFO)


def test_a_bomb_is_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(9000, 9000))
    with pytest.raises(ValueError, match=r"a\.png: its 9000 x 9000 pixels would take 618 MiB of memory"):
        read(path, INFO)
    path.write_bytes(png(60_000, 60_000))
    with pytest.raises(ValueError, match=r"cannot read the image .*a\.png: Image size"):
        read(path, INFO)


def test_a_limit_of_the_user_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    images.new("L", (600, 500)).save(file, "PNG")
    (tmp_path / "a.png").write_bytes(file.getvalue())
    monkeypatch.setenv("RHEOBASE_FILE_MEMORY", "2")
    with pytest.raises(ValueError, match="its 600 x 500 pixels would take 3 MiB"):
        read(tmp_path / "a.png", INFO)
    monkeypatch.setenv("RHEOBASE_FILE_MEMORY", "3")
    assert read(tmp_path / "a.png", INFO).shape == (1, 3, 5, 5)


def test_fifos_and_devices_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("/dev/zero")
    with warnings.catch_warnings():
        for name in ("a.png", "b.png"):
            with pytest.raises(ValueError, match=f"cannot read the image .*{name}: .* is not a plain file"):
                read(tmp_path / name, INFO)


@pytest.mark.parametrize(("aspect", "ratio"), [(0.0, 3 / 4), (0.5, 1.0), (1.0, 4 / 3)])
def test_a_random_part_is_from_3_by_4_to_4_by_3(aspect: float, ratio: float) -> None:
    left, top, right, bottom = random_part(90, 80, 0.25, 0.75, 0.2, aspect)
    assert (right - left) / (bottom - top) == pytest.approx(ratio)
    assert (right - left) * (bottom - top) == pytest.approx(90 * 80 * (0.08 + 0.92 * 0.2))
    assert (left, top) == pytest.approx((0.75 * (90 - right + left), 0.25 * (80 - bottom + top)))
