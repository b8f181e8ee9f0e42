"""Trained networks that ship with the package: folders of runs with 8-bit weights, found by name."""

from pathlib import Path

FOLDER = Path(__file__).parent / "networks"


def names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob("*/recipe.json"))


def find(source: Path) -> Path:
    """Return `source` if it exists, or else the folder of the shipped network with this name."""
    if source.exists():
        return source
    if str(source) in names():
        return FOLDER / source
    known = ", ".join(names()) or "there are none"
    raise ValueError(f"{source} is not the folder of a run, a file, or a network of the package ({known})")
