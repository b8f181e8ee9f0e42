"""Trained networks that come with the package, by name: folders of runs, with 8-bit weights."""

from pathlib import Path

FOLDER = Path(__file__).parent / "networks"


def names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob("*/recipe.json"))


def find(source: Path) -> Path:
    """`source` itself where there is such a run or file, or else the folder of the network of that name."""
    if source.exists():
        return source
    if str(source) in names():
        return FOLDER / source
    known = ", ".join(names()) or "there is none here"
    raise ValueError(f"{source} is not the folder of a run, a file, or a network of the package ({known})")
