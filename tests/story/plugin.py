"""The plugin of docs/plugins.md, and its commands."""

import json
import re
from collections.abc import Callable
from pathlib import Path

DOCUMENT = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
PLUGIN = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)[0]
COMMANDS = re.findall(r"^rheobase (.*)$", DOCUMENT, re.MULTILINE)

Command = Callable[..., tuple[int, str, str]]


def unfinished(run: Path) -> Path:
    """The finished run `run` as one that is to be trained for another epoch."""
    recipe = json.loads((run / "recipe.json").read_text())
    (run / "recipe.json").write_text(json.dumps({**recipe, "epochs": recipe["epochs"] + 1}))
    return run
