"""Everything in results/ is strict JSON, and says how it was made since there is a record."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.train.test_record import ENTRIES
from tools.readme import ROOT

FILES = sorted((ROOT / "results").rglob("*.json*"))


def strict(text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_strict_and_its_record_is_whole(path: Path) -> None:
    text = path.read_text()
    content = [strict(line) for line in text.splitlines()] if path.suffix == ".jsonl" else strict(text)
    if isinstance(content, dict) and "record" in content:
        assert content["record"].keys() >= ENTRIES


def test_there_are_results() -> None:
    assert len(FILES) > 50


def test_the_check_sees_what_is_not_json() -> None:
    with pytest.raises(ValueError, match="NaN is not JSON"):
        strict('{"loss": NaN}')
