"""Identify the running sources by git's tree ids, which are computed without git.

`python -m tools.commit_of FILE` finds the commits that contain them.
"""

import os
from functools import cache
from hashlib import file_digest, sha1
from pathlib import Path

FOLDERS = ("src", "benchmarks", "tools")
_PACKAGE = Path(__file__).parents[1]


@cache
def sources() -> dict[str, str]:
    """Return the tree id of every source folder in this checkout. For an installed package, it is its own folder."""
    root = _PACKAGE.parents[1]
    if _PACKAGE.parent.name == "src" and (root / "pyproject.toml").is_file():
        return {name: tree_id(root / name) for name in FOLDERS if (root / name).is_dir()}
    return {"src/rheobase": tree_id(_PACKAGE)}


def tree_id(folder: Path) -> str:
    """Return what `git rev-parse COMMIT:FOLDER` prints for a commit of all files now in `folder`."""
    return _tree(_entries(folder)).hex()


def _entries(folder: Path) -> bytes:
    found: list[tuple[bytes, bytes]] = []
    for item in os.scandir(folder):
        name = os.fsencode(item.name)
        if _ignored(item.name):
            continue
        if not item.is_dir():
            mode = b"100755" if item.stat().st_mode & 0o100 else b"100644"
            found.append((name, mode + b" " + name + b"\0" + _blob(item.path)))
        elif content := _entries(Path(item.path)):  # git has no empty folders
            found.append((name + b"/", b"40000 " + name + b"\0" + _tree(content)))
    return b"".join(entry for _, entry in sorted(found))


def _ignored(name: str) -> bool:
    """Return whether .gitignore lists the file."""
    return name.startswith(".") or name == "__pycache__" or name.endswith((".pyc", ".egg-info"))


def _tree(entries: bytes) -> bytes:
    return sha1(b"tree %d\0" % len(entries) + entries, usedforsecurity=False).digest()


def _blob(path: str) -> bytes:
    with open(path, "rb") as file:
        digest = sha1(b"blob %d\0" % os.fstat(file.fileno()).st_size, usedforsecurity=False)
        return file_digest(file, lambda: digest).digest()  # in pieces: the shipped networks are large
