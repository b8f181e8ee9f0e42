"""Shards and ImageNet's own archives: the same batches as the folder of images, and what is wrong with them is said."""

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner

from rheobase import recipes
from rheobase.cli import app
from rheobase.data import archives, ilsvrc, load, shards
from rheobase.data.feed import Feed
from rheobase.data.sets.folder import listings

Image = pytest.importorskip("PIL.Image", reason="needs pillow")


def picture(seed: int, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (11, 13, 3), np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes; among their names some that differ in a dot or in their suffix alone."""
    for part, number in (("train", 6), ("val", 2)):
        for c, name in enumerate(("Bär", "n01.b")):
            where = tmp_path / "images" / part / name
            where.mkdir(parents=True)
            names = ["a.b.png", "a_b.png", "c.png", "c.webp", "dd.png", "e e.png"][:number]
            for i, file in enumerate(names):
                (where / file).write_bytes(picture(100 * c + i + number, file[-3:].upper().replace("EBP", "WEBP")))
    return tmp_path / "images"


@pytest.fixture
def packed(folder: Path, tmp_path: Path) -> Path:
    shards.pack(listings(folder), tmp_path / "shards", shard=4096)
    return tmp_path / "shards"


def epoch(path: Path) -> list[torch.Tensor]:
    data = load("imagenet", path, size=8)
    recipe = recipes.get("imagenet_resnet34").changed(["batch_size=5", "image_size=8", "seed=3"])
    feed = Feed(data, recipe, torch.device("cpu"), torch.float32)
    return [t for x, y, _ in feed.training(1) for t in (x, y)] + [t for pair in feed.testing() for t in pair]


def test_the_same_batches_as_the_folder(folder: Path, packed: Path) -> None:
    assert len(list(packed.glob("train-*.tar"))) > 1
    here, there = epoch(folder), epoch(packed)
    assert len(here) == len(there) > 4
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    assert load("imagenet", folder, size=8).info == load("imagenet", packed, size=8).info  # fingerprint included


def test_small_sets_in_memory_too(folder: Path, packed: Path) -> None:
    assert torch.equal(load("folder", folder, size=8).train.images, load("folder", packed, size=8).train.images)


def test_any_tar_reads_a_shard_and_names_are_webdatasets(packed: Path, folder: Path) -> None:
    """webdataset takes what comes before the first dot of a file's name for one sample."""
    samples: dict[str, dict[str, bytes]] = {}
    for shard in sorted(packed.glob("train-*.tar")):
        with tarfile.open(shard) as tar:
            for entry in tar:
                where, _, name = entry.name.rpartition("/")
                key, _, kind = name.partition(".")
                samples.setdefault(f"{where}/{key}", {})[kind] = tar.extractfile(entry).read()  # type: ignore[union-attr]
    assert len(samples) == 12
    assert all(len(sample) == 2 and sample["cls"] in (b"0", b"1") for sample in samples.values())
    assert samples["train/Bär/c"]["png"] == (folder / "train/Bär/c.png").read_bytes()
    assert {s["cls"] for key, s in samples.items() if "n01.b" in key} == {b"1"}


def test_packed_twice_is_the_same_bytes(folder: Path, packed: Path, tmp_path: Path) -> None:
    shards.pack(listings(folder), tmp_path / "again", shard=4096)
    assert [p.read_bytes() for p in sorted(packed.iterdir())] == [
        p.read_bytes() for p in sorted((tmp_path / "again").iterdir())
    ]


def test_shards_can_be_packed_again(packed: Path, tmp_path: Path) -> None:
    shards.pack(listings(packed), tmp_path / "one")
    assert [p.name for p in sorted((tmp_path / "one").iterdir())] == [shards.INDEX, "train-00000.tar", "val-00000.tar"]
    assert all(torch.equal(a, b) for a, b in zip(epoch(packed), epoch(tmp_path / "one"), strict=True))


def test_a_damaged_image_is_named_and_replaced(packed: Path) -> None:
    (first, *_) = listings(packed)[1].places
    assert isinstance(first, archives.Member)
    with open(first.archive, "r+b") as file:
        file.seek(first.offset)
        file.write(b"\0" * first.size)
    data = load("imagenet", packed, size=8)
    with pytest.warns(UserWarning, match=r"train/Bär/a\.b\.png in .*train-00000\.tar.*damaged files so far: 1"):
        images = data.train.read(torch.arange(2))
    assert torch.equal(images[0], images[1])


@pytest.mark.parametrize("name", ["train\0.tar", "train\ud800.tar"])
def test_archives_that_no_file_can_be_called(packed: Path, name: str) -> None:
    index = packed / shards.INDEX
    with safe_open(index, "pt") as file:
        about = json.loads(file.metadata()["about"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is no dict)
    about["archives"][0] = name
    save_file(tensors, index, {"about": json.dumps(about)})
    with pytest.raises(ValueError, match=r"index\.safetensors is damaged; pack the images again"):
        listings(packed)


def test_a_short_shard_and_a_damaged_index(packed: Path) -> None:
    index = (packed / shards.INDEX).read_bytes()
    for damage in (index[:-3], index[:90], b"", index.replace(b"train.label", b"train.labex")):
        (packed / shards.INDEX).write_bytes(damage)
        with pytest.raises(ValueError, match=r"index\.safetensors is damaged; pack the images again"):
            listings(packed)
    (packed / shards.INDEX).write_bytes(index)
    last = sorted(packed.glob("val-*.tar"))[-1]
    last.write_bytes(last.read_bytes()[:700])
    with pytest.raises(ValueError, match=f"{last.name} is shorter than .*index.safetensors says; copy it again"):
        listings(packed)
    last.unlink()
    with pytest.raises(ValueError, match=r"cannot read .*index\.safetensors: No such file"):
        listings(packed)


def test_numbers_beyond_the_index_are_refused(packed: Path) -> None:
    classes, train, test = listings(packed)
    shards.write_index(packed / shards.INDEX, (classes[:1], train, test))
    with pytest.raises(ValueError, match="is damaged"):
        listings(packed)


def test_an_unfinished_pack_leaves_no_data_set(folder: Path, tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shards.pack(listings(folder), tmp_path / "out", done=stop)
    assert list((tmp_path / "out").iterdir()) == []
    shards.pack(listings(folder), tmp_path / "out")
    with pytest.raises(ValueError, match="out is not an empty folder"):
        shards.pack(listings(folder), tmp_path / "out")


def test_shards_are_not_mixed_with_other_files(folder: Path) -> None:
    with pytest.raises(ValueError, match="is not an empty folder"):
        shards.pack(listings(folder), folder)
    assert not list(folder.glob("*.tar"))


def test_names_that_are_not_utf8_are_refused_before_any_work(folder: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        (folder / part / "n01.b").rename(folder / part / os.fsdecode(b"B\xe4r"))
    load("imagenet", folder, size=8)
    with pytest.raises(ValueError, match=r"shards need names in UTF-8, got 'B\udce4r'; rename"):
        shards.pack(listings(folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_who_may_read_the_shards_may_read_the_index(packed: Path) -> None:
    assert len({path.stat().st_mode for path in packed.iterdir()}) == 1


def test_command(folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["pack", str(folder), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "12 training and 4 test images of 2 classes in 2 shards" in result.output


def tar_of(path: Path, files: dict[str, bytes], mode: str = "w") -> bytes:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path.read_bytes()


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """ImageNet's archives in small, and the folder that they would be unpacked to."""
    scipy = pytest.importorskip("scipy.io", reason="needs scipy")
    monkeypatch.setenv("RHEOBASE_CACHE", str(tmp_path / "cache"))
    names, tars, where = ("n02", "n01"), tmp_path / "tars", tmp_path / "folder"
    tars.mkdir()
    inner = {}
    for c, name in enumerate(names):
        files = {f"{name}_{i}.JPEG": picture(10 * c + i, "JPEG") for i in (9, 10, 2)}
        inner[f"{name}.tar"] = tar_of(tmp_path / "inner.tar", files)
        (where / "train" / name).mkdir(parents=True)
        for file, content in files.items():
            (where / "train" / name / file).write_bytes(content)
    tar_of(tars / ilsvrc.TRAIN, inner)
    truth = [2, 1, 1, 2]
    pictures = {f"ILSVRC2012_val_{i}.JPEG": picture(50 + i, "JPEG") for i in range(4)}
    tar_of(tars / ilsvrc.TEST, dict(reversed(pictures.items())))
    for number, (file, content) in zip(truth, pictures.items(), strict=True):
        (where / "val" / names[number - 1]).mkdir(parents=True, exist_ok=True)
        (where / "val" / names[number - 1] / file).write_bytes(content)
    meta = io.BytesIO()
    kind = np.dtype([("ILSVRC2012_ID", object), ("WNID", object)])
    scipy.savemat(meta, {"synsets": np.array([(1, "n02"), (2, "n01"), (3, "n00")], kind)})
    kit = {ilsvrc.META: meta.getvalue(), ilsvrc.TRUTH: "\n".join(map(str, truth)).encode()}
    tar_of(tars / ilsvrc.KIT, kit, "w:gz")
    return tars, where


def test_the_official_archives_are_the_folder(official: tuple[Path, Path]) -> None:
    tars, folder = official
    for _ in range(2):  # looked up, and remembered
        assert all(torch.equal(a, b) for a, b in zip(epoch(tars), epoch(folder), strict=True))
    assert load("imagenet", tars, size=8).info == load("imagenet", folder, size=8).info


def test_official_archives_that_are_not(official: tuple[Path, Path]) -> None:
    tars, _ = official
    content = {name: (tars / name).read_bytes() for name in (ilsvrc.TRAIN, ilsvrc.TEST, ilsvrc.KIT)}
    for name, damage, sentence in (
        (ilsvrc.TRAIN, b"x" * 2000, "not a complete tar archive"),
        (ilsvrc.TRAIN, content[ilsvrc.TEST], "has no class archives"),
        (ilsvrc.TEST, content[ilsvrc.TRAIN], "does not have the classes of the 2 images"),
        (ilsvrc.KIT, b"x" * 2000, "not the ILSVRC 2012 development kit"),
        (ilsvrc.KIT, content[ilsvrc.TEST], "not the ILSVRC 2012 development kit"),
    ):
        (tars / name).write_bytes(damage)
        with pytest.raises(ValueError, match=sentence):
            listings(tars)
        (tars / name).write_bytes(content[name])
    (tars / ilsvrc.KIT).unlink()
    with pytest.raises(ValueError, match=f"has {ilsvrc.TRAIN}, but not {ilsvrc.KIT}; add that file"):
        listings(tars)


def test_a_split_that_was_made_is_remembered(folder: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["pack", str(folder / "train"), "--out", str(tmp_path / "made")]).exit_code == 0
    assert load("imagenet", tmp_path / "made", size=8).info == load("imagenet", folder / "train", size=8).info
    assert load("imagenet", tmp_path / "made", size=8).info.held_out == 5
