"""The record of a data set: written, read back, and compared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rheobase.data import DataInfo

INFO = DataInfo(
    name="mine",
    classes=("cat", "dog", "eel"),
    channels=2,
    size=5,
    mean=(1.5, 2.0),
    std=(3.0, 4.0),
    timesteps=6,
    simulated=True,
    images=7,
    test_images=4,
    fingerprint="abc",
)


def test_a_record_survives_a_file() -> None:
    content = INFO.as_dict()
    assert DataInfo.of(json.loads(json.dumps(content, allow_nan=False)), "file") == INFO
    assert json.loads(json.dumps(content)) == content


def test_records_of_earlier_versions_may_have_two_classes_of_one_name() -> None:
    content = INFO.as_dict() | {"classes": ["crane", "dog", "crane"]}
    assert DataInfo.of(content, "data.json").classes == ("crane", "dog", "crane")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": None}, "is damaged"),
        ({"mean": [1.5]}, "one mean and deviation per channel"),
        ({"mean": [1.5, float("nan")]}, "must be finite"),
        ({"std": [1.0, 0.0]}, "deviations above 0"),
        ({"std": ["1", "2"]}, "must be finite"),
        ({"classes": []}, "there must be classes"),
        ({"classes": ["cat", 3]}, "names must be text"),
        ({"size": 0}, "sizes must be whole numbers"),
        ({"size": 10**6}, "images of . x 1000000 x 1000000 are too large"),
        ({"size": 5.0}, "sizes must be whole numbers"),
        ({"images": -1}, "sizes must be whole numbers"),
        ({"colour": 1}, "an unknown entry colour"),
    ],
)
def test_damage_is_named_with_the_file(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^data.json: its record of the data .*{message}"):
        DataInfo.of({**INFO.as_dict(), **change}, "data.json")


def test_a_record_without_classes() -> None:
    content = INFO.as_dict()
    del content["classes"]
    with pytest.raises(ValueError, match="has no classes; restore the file"):
        DataInfo.of(content, "data.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("cat", "dog", "elk")}, "other classes than these data have: elk instead of eel"),
        ({"classes": ("cat", "dog")}, "none instead of eel"),
        ({"classes": ("dog", "cat", "eel")}, "the same ones in another order"),
        ({"size": 6}, r"images of \[C, H, W\] = \[2, 5, 5\], these data have \[2, 6, 6\]"),
        ({"channels": 1, "mean": (1.0,), "std": (1.0,)}, r"these data have \[1, 5, 5\]"),
        ({"timesteps": 0}, "was trained on recordings, these data are images"),
    ],
)
def test_other_data_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^run .*{message}.*; give its own data"):
        INFO.refuse_others(replace(INFO, **change), "run")


def test_the_same_kind_of_data_is_not_refused() -> None:
    INFO.refuse_others(replace(INFO, timesteps=9, images=1, mean=(0.0, 0.0), fingerprint="other"), "run")
    replace(INFO, timesteps=0, fingerprint="").refuse_others(INFO, "an old run")


def test_content_is_compared_where_both_tell() -> None:
    assert INFO.same_content(replace(INFO, mean=(0.0, 0.0)))
    assert not INFO.same_content(replace(INFO, fingerprint="other"))
    assert INFO.same_content(replace(INFO, fingerprint=""))
    assert replace(INFO, fingerprint="").same_content(INFO)


OLD = sorted((Path(__file__).parents[2] / "results").rglob("data.json"))


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.parent.name)
def test_records_of_earlier_versions_are_read(path: Path) -> None:
    assert DataInfo.of(json.loads(path.read_text()), path).classes
