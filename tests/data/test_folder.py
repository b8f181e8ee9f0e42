"""A user's own images, written here as files."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rheobase import data, train
from rheobase.data import decoding
from rheobase.data.feed import Feed, generator
from rheobase.data.files import Files
from rheobase.data.pictures import read
from rheobase.data.sets import folder
from rheobase.recipes import Recipe, get
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train.runs import Run, load_data
from tests.data.images import SHADES, write

Image = pytest.importorskip("PIL.Image", reason="reading images needs pillow")


def test_classes_and_normalisation_follow_from_the_files(images: Path) -> None:
    found = data.load("folder", images, size=8)
    assert found.info.classes == ("dark", "light")
    assert (len(found.train), len(found.test)) == (16, 4)
    assert found.train.shape == (3, 8, 8)
    assert found.train.labels.tolist() == [0] * 8 + [1] * 8
    brightness = found.train.read(torch.arange(16)).float().mean((1, 2, 3))
    assert brightness[:8].max() < 60 < 180 < brightness[8:].min()
    assert found.info.mean == pytest.approx([brightness.mean().item()] * 3, abs=3)


def test_every_fifth_image_of_a_class_is_held_out(images: Path) -> None:
    found = data.load("imagenet", images, size=8)
    assert isinstance(found.test, Files)
    assert [p.name for p in found.test.paths] == ["04.bmp", "09.png", "04.bmp", "09.png"]


def test_train_and_val_folders(images: Path, tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    images.rename(tmp_path / "both" / "train")
    for name, shade in SHADES.items():
        write(tmp_path / "both" / "val" / name / "a.jpg", shade)
    found = data.load("folder", tmp_path / "both", size=4)
    assert (len(found.train), len(found.test)) == (20, 2)
    write(tmp_path / "both" / "val" / "other" / "a.jpg", 1)
    with pytest.raises(ValueError, match=r"train and val in .* have different classes: other"):
        data.load("folder", tmp_path / "both", size=4)


def test_the_centre_and_random_parts() -> None:
    assert decoding.centre(12, 8, 1.0) == (2, 0, 10, 8)
    assert decoding.centre(12, 8, 2.0) == (4, 2, 8, 6)
    for row in torch.rand(200, 4, generator=generator(1)).tolist():
        left, top, right, bottom = decoding.random_part(30, 20, *row)
        assert 0 <= left < right <= 30
        assert 0 <= top < bottom <= 20
        assert 0.05 <= (right - left) * (bottom - top) / 600 <= 1
    assert decoding.random_part(30, 30, 0.0, 0.0, 1.0, 0.5) == (0, 0, 30, 30)


def test_a_large_set_is_read_batch_by_batch_and_the_same_again(images: Path) -> None:
    recipe = get("imagenet_resnet34").changed(["batch_size=5", "image_size=6", "timesteps=2"])
    feed = Feed(data.load("imagenet", images, size=6), recipe, torch.device("cpu"), torch.float32)
    first, again = list(feed.training(0)), list(feed.training(0))
    assert [len(labels) for _, labels, _ in first] == [5, 5, 5]  # one image is left over
    for (x, labels, _), (y, _, _) in zip(first, again, strict=True):
        assert x.shape == (5, 3, 6, 6)
        assert torch.equal(x, y)
        assert torch.equal(x.mean((1, 2, 3)) > 0, labels == 1)  # normalised brightness tells the class
    assert sum(len(labels) for _, labels in feed.testing()) == 4


def test_pictures_are_read_like_imagenet(images: Path) -> None:
    pictures, imagenet = (data.load(name, images, size=8) for name in ("pictures", "imagenet"))
    assert isinstance(pictures.train, Files)
    assert replace(pictures.info, name="imagenet") == imagenet.info
    test = pictures.test.read(torch.arange(1)).float()
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (pictures.info.mean, pictures.info.std))
    own = read(images / "dark" / "04.bmp", pictures.info)
    assert torch.equal(own, (test - mean) / std), "a picture that is classified alone has another margin"


def test_a_class_without_test_images_is_named(images: Path) -> None:
    for i in range(4):
        write(images / "few" / f"{i}.png", 100)
    with pytest.warns(
        UserWarning, match=r"set: fewer than 5 images, so none for testing, in few; add more, or folders "
    ):
        found = data.load("folder", images, size=8)
    assert len(found.train) == 16 + 4
    assert found.test.labels.tolist() == [0, 0, 2, 2]
    for i in range(9):
        write(images / f"rare{i}" / "0.png", 100)
    with pytest.warns(UserWarning, match=r"in few, rare0, rare1, rare2, rare3, \.\.\.; add more"):
        data.load("folder", images, size=8)


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "RGBA", "CMYK"])
def test_every_kind_of_picture_becomes_three_colours(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new("RGB", (11, 7), (255, 255, 255)).convert(mode).save(path)
    (white,) = Files([path], torch.zeros(1), 5).read(torch.tensor([0]))
    assert white.shape == (3, 5, 5)
    assert white.min() >= 254


@pytest.mark.parametrize("kind", ["<u2 .png", ">u2 .tif"])
def test_grey_of_16_bits_keeps_its_shades(tmp_path: Path, kind: str) -> None:
    dtype, suffix = kind.split()
    ramp, path = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8), tmp_path / f"ramp{suffix}"
    Image.fromarray(ramp.astype(dtype)).save(path)
    pixels = np.frombuffer(decoding.decode(decoding.Request(str(path), 8, 1.0, None)), np.uint8).reshape(8, 8, 3)
    assert np.abs(pixels - ramp[:, :, None] / 256).max() <= 1


def test_large_pictures_keep_the_pixels_of_a_small_part(tmp_path: Path) -> None:
    """The part is as sharp as if all of the picture had been decoded."""
    stripes = torch.zeros(512, 768, 3, dtype=torch.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes.numpy()).save(tmp_path / "a.jpg", quality=95)
    smallest_part = Files([tmp_path / "a.jpg"], torch.zeros(1), 220).read(torch.tensor([0]), torch.zeros(1, 10))
    assert smallest_part.float().std() > 60


def break_some(images: Path) -> None:
    """One file cut short, one of no format, one empty; the first and the last of a class among them."""
    content = (images / "dark" / "01.png").read_bytes()
    (images / "dark" / "01.png").write_bytes(content[: len(content) // 2])
    (images / "dark" / "08.bmp").write_bytes(b"nothing")
    (images / "light" / "00.bmp").write_bytes(b"")


def test_damaged_files_are_named_once_and_replaced_within_their_class(images: Path) -> None:
    break_some(images)
    files = data.load("imagenet", images, size=6).train
    assert isinstance(files, Files)
    everything = torch.arange(16)
    with pytest.warns(UserWarning, match="the next image of its class replaces it") as told:
        pixels = files.read(everything)
    assert [Path(str(w.message).split(": ")[0].removeprefix("cannot read the image ")).name for w in told] == [
        "01.png", "08.bmp", "00.bmp"
    ]  # fmt: skip
    assert torch.equal(pixels, files.read(everything))  # the same, without another word
    names = [f"{p.parent.name}/{p.stem}" for p in files.paths]
    for broken, instead in (("dark/01", "dark/02"), ("dark/08", "dark/00"), ("light/00", "light/01")):
        assert torch.equal(pixels[names.index(broken)], pixels[names.index(instead)])
    assert len(files.damaged) == 3
    files.paths[0].unlink()
    with pytest.raises(FileNotFoundError):  # not damage: it may be there again when the run is resumed
        files.read(everything)


def test_a_network_learns_the_users_images(images: Path, tmp_path: Path) -> None:
    recipe = get("images_resnet19").changed(
        ["network=resnet8", "image_size=8", "epochs=4", "batch_size=8", "padding=1"]
    )
    run = train.fit(recipe, data=images, out=tmp_path / "run", device="cpu")
    assert run.rows()[-1]["train_accuracy"] > 0.8
    assert evaluate_run(tmp_path / "run", data=images, device="cpu").loss == run.rows()[-1]["test_loss"]
    assert Run(tmp_path / "run").network().head.decode.out_features == 2


def recipe_without_size() -> Recipe:
    return get("images_resnet19").changed(["image_size=0"])


def test_bad_folders_are_one_sentence(images: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dataset 'folder' needs an image size"):
        load_data(recipe_without_size(), images)
    for size in (0, 8):  # a wrong path is told first
        with pytest.raises(ValueError, match="none is not a folder; give one with a sub-folder"):
            data.load("folder", tmp_path / "none", size=size)
    with pytest.raises(ValueError, match="dark has no sub-folders"):
        data.load("folder", images / "dark", size=8)
    for path in (images / "dark").glob("0[0-8].*"):  # 04 and 09 are for testing
        path.write_bytes(b"BM is not enough")
    with pytest.raises(ValueError, match=r"cannot read the image .*00\.bmp or 7 others of its class"):
        data.load("folder", images, size=8)
    (images / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no images; expected files such as"):
        data.load("folder", images, size=8)


def test_parts_with_other_names_are_no_classes_without_images(images: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        shutil.copytree(images, tmp_path / "mine" / part)
    with pytest.raises(ValueError, match=r"test has no images, but folders; .* call the parts .* train and val$"):
        data.load("folder", tmp_path / "mine", size=8)


def test_what_macos_adds_to_zip_archives_is_no_class(images: Path) -> None:
    (images / "__MACOSX" / "dark").mkdir(parents=True)
    (images / "__MACOSX" / "dark" / "._00.bmp").touch()
    assert data.load("folder", images, size=8).info.classes == ("dark", "light")


def test_pictures_of_a_phone_that_are_not_read_are_counted(images: Path, tmp_path: Path) -> None:
    for name in ("dark/a.HEIC", "dark/b.heic", "light/c.dng", "light/notes.txt", "light/._d.heic"):
        (images / name).touch()
    with pytest.warns(UserWarning, match=r"formats that are not read: 1 \.dng, 2 \.heic; convert them to use them$"):
        data.load("folder", images, size=8)
    (images / "phone").mkdir()
    (images / "phone" / "a.heic").touch()
    with pytest.raises(ValueError, match=r"phone has no images; expected files .*, got 1 \.heic; convert them$"):
        data.load("folder", images, size=8)


def test_too_many_images_for_memory(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "LIMIT", 20 * 3 * 8 * 8 - 1)
    with pytest.raises(ValueError, match="use --set data=pictures"):
        data.load("folder", images, size=8)
