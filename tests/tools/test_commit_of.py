"""A result is traced to the commits that have its sources."""

from pathlib import Path

import pytest

from rheobase.files import write_json
from rheobase.train.sources import tree_id
from tests.repository import commit, git, new_repository
from tools.commit_of import commits_of, describe, has_history

FOLDERS = ("src", "tools")


def change(repository: Path, file: str, text: str) -> tuple[str, dict[str, str]]:
    """The commit after this change, and its sources."""
    (repository / file).write_text(text)
    return commit(repository, f"{file} is {text}"), {name: tree_id(repository / name) for name in FOLDERS}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = new_repository(tmp_path / "repository")
    for name in FOLDERS:
        (folder / name).mkdir()
        (folder / name / "a.py").write_text("zero")
    commit(folder)
    return folder


def test_the_right_commits_among_several(repository: Path, tmp_path: Path) -> None:
    first, first_sources = change(repository, "src/a.py", "one")
    documented, same_sources = change(repository, "README.md", "text")
    other_tools, _ = change(repository, "tools/a.py", "two")
    last, last_sources = change(repository, "src/a.py", "two")
    assert first_sources == same_sources
    assert commits_of(first_sources, repository) == [documented, first]
    assert commits_of(last_sources, repository) == [last]
    assert commits_of({"src": first_sources["src"]}, repository) == [other_tools, documented, first]

    write_json(tmp_path / "result.json", {"record": {"sources": last_sources}})
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / "environment.json", {"record": {"sources": first_sources}})
    assert describe(tmp_path / "result.json", repository).endswith("src/a.py is two")
    assert [line.split(" ", 3)[3] for line in describe(tmp_path / "run", repository).splitlines()] == [
        "README.md is text", "src/a.py is one"
    ]  # fmt: skip


def test_sources_that_nobody_committed(repository: Path, tmp_path: Path) -> None:
    (repository / "src" / "a.py").write_text("changed")
    write_json(tmp_path / "result.json", {"record": {"sources": {"src": tree_id(repository / "src")}}})
    with pytest.raises(ValueError, match="no commit has these sources"):
        describe(tmp_path / "result.json", repository)


def test_results_that_cannot_be_traced(repository: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "old.json", {"environment": {}})
    with pytest.raises(ValueError, match=r"old\.json has no record of its sources"):
        describe(tmp_path / "old.json", repository)
    with pytest.raises(ValueError, match=r"none\.json cannot be read: No such file"):
        describe(tmp_path / "none.json", repository)
    write_json(tmp_path / "result.json", {"record": {"sources": {"src": "0" * 40}}})
    with pytest.raises(ValueError, match="is not a git repository"):
        describe(tmp_path / "result.json", tmp_path)


def test_whether_all_commits_are_here(repository: Path, tmp_path: Path) -> None:
    change(repository, "src/a.py", "one")
    assert has_history(repository)
    git(tmp_path, "clone", "--quiet", "--depth", "1", repository.as_uri(), "shallow")
    assert not has_history(tmp_path / "shallow")
    (tmp_path / "nothing").mkdir()
    assert not has_history(tmp_path / "nothing")
