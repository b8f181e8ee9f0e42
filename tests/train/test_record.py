"""A result says how it was made, and names no place of the machine it was made on."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rheobase.train.record import checksum, command_line, record, write_result
from rheobase.train.sources import sources

ENTRIES = {
    "command", "sources", "packages", "python", "platform", "device", "threads", "seed", "data", "time",
}  # fmt: skip


def test_a_result_has_a_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    write_result(path, {"accuracy": 0.5}, seed=7, data="abc", command="rheobase train demo")
    text = path.read_text()
    found = json.loads(text)
    assert text.endswith("\n}\n")
    assert [*found] == ["record", "accuracy"]
    made = found["record"]
    assert made.keys() == ENTRIES
    assert (made["seed"], made["data"], made["command"]) == (7, "abc", "rheobase train demo")
    assert made["sources"] == sources()
    assert made["packages"]["torch"] == torch.__version__
    assert made["threads"] == torch.get_num_threads()


def test_what_is_not_known_is_null() -> None:
    found = record(data="")
    assert (found["seed"], found["data"]) == (None, None)


def test_a_number_that_json_cannot_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"result\.json\['runs'\]\[1\]\['loss'\] is nan, which JSON cannot hold"):
        write_result(tmp_path / "result.json", {"runs": [{"loss": 1.0}, {"loss": float("nan")}]})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "arguments", "line"),
    [
        ("rheobase.__main__", ["train", "demo"], "rheobase train demo"),
        (None, ["/opt/bin/rheobase", "paper", "fig2"], "rheobase paper fig2"),
        ("benchmarks.step", ["/home/me/benchmarks/step.py", "--only", "loop"], "python -m benchmarks.step --only loop"),
        (None, ["/home/me/mine.py", "--name", "a b"], "python mine.py --name 'a b'"),
        ("tools.keep", ["", "runs/a", "results/b"], "python -m tools.keep runs/a results/b"),
        (
            "tools.keep",
            ["", "/b/a", "--data", "b", "--data=/x"],
            "python -m tools.keep a --data DATA --data=DATA",
        ),
        ("tools.keep", ["", "--out=/a/b=c/d/", "lr=0.1", "../e/f", "/g"], "python -m tools.keep --out=d lr=0.1 f g"),
    ],
)
def test_the_command_can_be_copied(
    monkeypatch: pytest.MonkeyPatch, module: str | None, arguments: list[str], line: str
) -> None:
    spec = SimpleNamespace(name=module) if module else None
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    monkeypatch.setattr(sys, "argv", arguments if module != "rheobase.__main__" else ["/x/__main__.py", *arguments])
    assert command_line() == line


def test_the_command_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(sys, "argv", ["/opt/bin/rheobase", "train", "demo"])
    assert command_line() == "torchrun --nproc-per-node 8 -m rheobase train demo"


def test_a_checksum_is_of_content_and_order(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("one")
    second.write_text("two")
    assert checksum([first, second]) == "25b6746d5172ed6352966a013d93ac846e1110d5a25e8f183b5931f4688842a1"
    assert checksum([second, first]) != checksum([first, second])
