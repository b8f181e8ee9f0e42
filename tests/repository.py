"""Git repositories for tests."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOMEBODY = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")


def new_repository(folder: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder.mkdir(exist_ok=True)
    git(folder, "init", "--quiet")
    return folder


def git(repository: Path, *arguments: str) -> str:
    command = ["git", "-C", str(repository), *SOMEBODY, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def commit(repository: Path, message: str = "everything") -> str:
    """The commit of everything that is there."""
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", message)
    return git(repository, "rev-parse", "HEAD")
