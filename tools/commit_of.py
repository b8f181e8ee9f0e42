"""Find the commits of this repository that made a result: python -m tools.commit_of FILE_OR_FOLDER ...

The record of a result holds git's tree ids of the sources. Several commits can have the same ones, if they differ
elsewhere.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def sources_of(path: Path) -> dict[str, str]:
    """Return the tree ids in a results file, or in the folder of a run."""
    file = path / "environment.json" if path.is_dir() else path
    try:
        return json.loads(file.read_text())["record"]["sources"]
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{file} has no record of its sources; it cannot be traced to a commit") from None


def commits_of(sources: dict[str, str], repository: Path = ROOT) -> list[str]:
    """Return the commits of all branches that have exactly these trees, newest first."""
    commits = _git(repository, "log", "--all", "--format=%H").split()
    names = "".join(f"{commit}:{folder}\n" for commit in commits for folder in sources)
    found = iter(_git(repository, "cat-file", "--batch-check=%(objectname)", text=names).splitlines())
    return [commit for commit in commits if [next(found) for _ in sources] == [*sources.values()]]


def has_history(repository: Path = ROOT) -> bool:
    """Return whether all commits are available, which they are not in a shallow clone or without git."""
    try:
        return _git(repository, "rev-parse", "--is-shallow-repository").strip() == "false"
    except ValueError:
        return False


def _git(repository: Path, *arguments: str, text: str = "") -> str:
    try:
        done = subprocess.run(["git", "-C", str(repository), *arguments], input=text, capture_output=True, text=True)
    except FileNotFoundError:
        raise ValueError("git is not installed, but is needed to look up commits; install it") from None
    if done.returncode:
        raise ValueError(f"{repository} is not a git repository; run this in a clone of it")
    return done.stdout


def describe(path: Path, repository: Path = ROOT) -> str:
    """Return a line for each commit."""
    commits = commits_of(sources_of(path), repository)
    if not commits:
        raise ValueError(f"{path}: no commit has these sources; they were changed, or are from another repository")
    shown = _git(repository, "show", "--no-patch", "--format=%h %as %s", *commits)
    return "\n".join(f"{path}: {line}" for line in shown.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE_OR_FOLDER")
    failed = False
    for path in parser.parse_args().results:
        try:
            print(describe(path))
        except ValueError as error:
            print(error)
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
