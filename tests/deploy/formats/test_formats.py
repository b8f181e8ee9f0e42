"""A format is a module: the one of CONTRIBUTING.md becomes known by being there."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from rheobase.deploy import fold, formats
from rheobase.models import build
from rheobase.tasks.export import write

CONTRIBUTING = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text()


def test_one_new_file_adds_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", CONTRIBUTING, re.DOTALL | re.MULTILINE)
    (source,) = (block for block in blocks if "SUFFIX" in block)
    (tmp_path / "arrays.py").write_text(source)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    assert formats.names() == ["arrays", "native", "nir", "onnx"]
    network = fold(build("resnet8").eval())
    network.info.update(json.loads(INFO))
    write(network, tmp_path / "network.npz", formats.module("arrays"), tmp_path / "run", bits=None, data=None)
    found = np.load(tmp_path / "network.npz")
    about = json.loads(str(found["about"]))
    assert about["input_shape"] == [1, 8, 8]
    assert [node["name"] for node in about["nodes"]] == list(network.nodes)
    assert np.array_equal(found["stem.weight"], network.nodes["stem"].weight)
    with pytest.raises(ValueError, match="are written, not read"):
        formats.of_file(tmp_path / "network.npz").load(tmp_path / "network.npz")


INFO = """
{"recipe": {"name": "r", "data": "digits", "network": "resnet8", "timesteps": 2, "epochs": 1, "batch_size": 4},
 "data": {"name": "digits", "classes": ["a"], "channels": 1, "size": 8, "mean": [0.0], "std": [1.0]}}
"""


def test_a_suffix_that_nobody_has(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a file that ends in one of \.safetensors, \.nir, \.onnx$"):
        formats.of_file(tmp_path / "network.h5")
