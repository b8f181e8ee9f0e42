"""Run processes with the sources of this checkout or of another, so that both are measured in one run."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def source_folder(path: Path) -> Path:
    """Return the folder of a checkout that holds the package: `path` or its `src`."""
    for folder in (path, path / "src"):
        if (folder / "rheobase" / "__init__.py").is_file():
            return folder.resolve()
    raise ValueError(f"{path} does not contain rheobase; give a checkout, or its folder src")


def environment(source: Path | None) -> dict[str, str]:
    """Return the environment of a process that imports what this one does, but `rheobase` from `source` if given."""
    paths = [str(source)] if source else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(ROOT), *filter(None, sys.path)])}
