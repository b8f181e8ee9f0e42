"""What README.md says of other tools is so in the versions that it names, as far as their sources tell."""

import re
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# By the words of the table: what a package that has it defines or uses.
SIGNS = {
    "tdBN layer": r"class \w*ThresholdDependentBatchNorm|def tdbn\b",
    "ResNet-19 of the paper": r"def (spiking_)?resnet_?19\b",
    "own GPU kernels": r"triton\.jit",
    "folds tdBN into the weights": r"def fold\b",
    "writes or reads NIR": r"NIRGraph",
    "writes ONNX": r"torch\.onnx|import onnx\b|onnx\.helper",
    "converts ReLU networks": r"class Converter\b|def data_norm\b|\bann2snn\b",
    "N-MNIST or DVS-Gesture loader": r"(class|def) (DVS128Gesture|DVSGesture|NMNIST|nmnist|dvsgesture)\b",
    "spoken digits (SHD)": r"class \w*(SHD|Heidelberg)",
    "recurrent spiking layers": r"class \w*Recurrent",
    "Izhikevich neurons": r"class \w*Izhikevich",
    "STDP": r"STDP|\bstdp",
    "spiking transformers": r"class \w*[Ff]ormer\b",
}
WEIGHTS = ("*.safetensors", "*.pt", "*.pth")


def table() -> dict[str, dict[str, str]]:
    """By package in lower case, with its version where one is named: what is said of every feature."""
    text = (ROOT / "README.md").read_text()
    (lines,) = re.findall(r"^## Compared with other tools\n\n((?:\|.*\n)+)", text, re.MULTILINE)
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines())
    return {tool.lower(): {row[0]: row[column] for row in rows} for column, tool in enumerate(head) if tool}


TABLE = table()


def test_every_feature_is_looked_for() -> None:
    for said in TABLE.values():
        assert set(said) == {*SIGNS, "trained spiking networks included", "console command"}


def test_versions_are_those_of_the_peers() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for tool in set(TABLE) - {"rheobase"}:
        assert tool.replace(" ", "==") in makefile, tool


@pytest.mark.parametrize("tool", TABLE)
def test_what_is_said_of_a_tool_is_so(tool: str) -> None:
    name, _, version = tool.partition(" ")
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs {name}: make test-peers")
    if version and (installed := distribution(name).version) != version:
        pytest.skip(f"{name} {installed} is installed, and the table is about {version}")
    package = Path(spec.origin).parent
    sources = "\n".join(path.read_text() for path in package.rglob("*.py") if "test" not in path.parts)
    found = {feature: bool(re.search(sign, sources)) for feature, sign in SIGNS.items()}
    found["trained spiking networks included"] = any(any(package.rglob(kind)) for kind in WEIGHTS)
    found["console command"] = has_command(name)
    said = {feature: re.split(r",| ", words)[0] for feature, words in TABLE[tool].items()}
    assert said == {feature: "yes" if there else "no" for feature, there in found.items()}


def has_command(name: str) -> bool:
    try:
        return any(entry.group == "console_scripts" for entry in distribution(name).entry_points)
    except PackageNotFoundError:  # used from its sources, not installed
        return name in re.findall(r"^\[project\.scripts\]\n(\w+)", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
