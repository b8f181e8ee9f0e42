"""Trained networks that come with the package, by name: folded, with 8-bit weights."""

from pathlib import Path

FOLDER = Path(__file__).parent / "networks"


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def find(source: Path) -> Path:
    """`source` itself where there is such a run or file, or else the file of the network of that name."""
    if source.exists():
        return source
    if str(source) in names():
        return FOLDER / f"{source}.safetensors"
    known = ", ".join(names()) or "there is none here"
    raise ValueError(f"{source} is not the folder of a run, a file, or a network of the package ({known})")
