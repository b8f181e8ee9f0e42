"""Every operation against its definition, or against Pillow where that is at hand."""

import pytest
import torch
from torch import Tensor

from rheobase.data.feed import generator
from rheobase.data.policy import (
    OPERATIONS,
    autocontrast,
    enhance,
    equalize,
    move,
    posterize,
    solarize,
    trivial_augment,
)


def images(n: int = 3, channels: int = 3, size: int = 8) -> Tensor:
    return torch.randint(10, 240, (n, channels, size, size), generator=generator(n, channels)).float()


def chosen(name: str, n: int = 1) -> Tensor:
    return torch.full((n,), float(OPERATIONS.index(name)))


def row(name: str, strength: float = 0.5, sign: float = 0.9) -> list[float]:
    return [(OPERATIONS.index(name) + 0.5) / len(OPERATIONS), strength, sign]


def test_identity_changes_nothing() -> None:
    x = images()
    assert torch.equal(trivial_augment(x, torch.tensor([row("identity")] * 3)), x)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_depends_on_its_own_row_alone(channels: int) -> None:
    x = images(len(OPERATIONS), channels, 20)  # fewer than 256 pixels are left alone by equalize
    u = torch.tensor([row(name, 0.8) for name in OPERATIONS])
    together = trivial_augment(x, u)
    for i, name in enumerate(OPERATIONS):
        torch.testing.assert_close(together[i : i + 1], trivial_augment(x[i : i + 1], u[i : i + 1]), msg=name)
        unchanged = {"identity", *(["color"] if channels == 1 else [])}
        assert torch.equal(together[i], x[i]) == (name in unchanged), name
    assert together.min() >= 0
    assert together.max() < 255.001


def test_translation_brings_in_zeros() -> None:
    x = images(1)
    right = move(x, chosen("translate_x"), torch.tensor([-2 / 8 / 0.3]))
    assert torch.equal(right[..., 2:], x[..., :-2])
    assert not right[..., :2].any()
    up = move(x, chosen("translate_y"), torch.tensor([1 / 8 / 0.3]))
    assert torch.equal(up[..., :-1, :], x[..., 1:, :])


def test_rotation_by_a_right_angle() -> None:
    x = images(1)
    assert torch.equal(move(x, chosen("rotate"), torch.tensor([3.0])), x.rot90(1, (-2, -1)))  # 3 * 30 degrees


def test_shear_keeps_the_middle_and_moves_the_rest() -> None:
    x = torch.zeros(1, 1, 8, 8)
    x[..., 4] = 1
    sheared = move(x, chosen("shear_x"), torch.tensor([0.5 / 0.3]))
    assert torch.equal(sheared.sum((0, 1, 3)), torch.ones(8))
    assert [int(r.argmax()) for r in sheared[0, 0]] == sorted((int(r.argmax()) for r in sheared[0, 0]), reverse=True)


def test_shear_along_the_other_axis_is_the_same() -> None:
    x, signed = images(1), torch.tensor([0.5 / 0.3])
    assert torch.equal(move(x.mT, chosen("shear_y"), signed), move(x, chosen("shear_x"), signed).mT)


def test_posterize_and_solarize() -> None:
    x = torch.tensor([0.0, 15.0, 16.0, 100.0, 255.0]).view(1, 1, 1, 5)
    assert posterize(x, torch.tensor([0.99])).flatten().tolist() == [0, 0, 16, 96, 240]
    assert torch.equal(posterize(x, torch.tensor([0.0])), x)
    assert solarize(x, torch.tensor([0.9])).flatten().tolist() == [0, 15, 16, 155, 0]
    assert torch.equal(solarize(x, torch.tensor([0.0])), x)
    assert solarize(torch.tensor([127.0, 128.0]).view(1, 1, 1, 2), torch.tensor([0.5])).flatten().tolist() == [127, 127]


def test_autocontrast_fills_the_range_and_leaves_flat_channels() -> None:
    x = images(2)
    x[0, 1] = 7
    result = autocontrast(x)
    assert result[1].amin((1, 2)).tolist() == [0, 0, 0]
    assert result[1].amax((1, 2)).tolist() == pytest.approx([255] * 3)
    assert torch.equal(result[0, 1], x[0, 1])


PILLOW = {"brightness": "Brightness", "color": "Color", "contrast": "Contrast", "sharpness": "Sharpness"}


@pytest.mark.parametrize("name", [*PILLOW, "equalize"])
def test_as_pillow_does(name: str) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="the comparison needs pillow")
    from PIL import ImageEnhance, ImageOps

    x = images(1, 3, 20)
    picture = pillow.fromarray(x[0].movedim(0, 2).to(torch.uint8).numpy())
    if name == "equalize":
        ours, theirs = equalize(x), ImageOps.equalize(picture)
    else:
        ours = enhance(x, chosen(name), torch.tensor([0.5]))
        theirs = getattr(ImageEnhance, PILLOW[name])(picture).enhance(1.45)
    expected = torch.tensor(list(theirs.tobytes())).view(*x.shape[-2:], 3).movedim(2, 0)
    assert (ours[0] - expected).abs().max() <= (0 if name == "equalize" else 2)  # Pillow rounds on the way
