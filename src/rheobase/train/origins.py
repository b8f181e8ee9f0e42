"""The plugins that a run was made with: kept for the record, compared when the run is opened, never run."""

import json
import warnings
from pathlib import Path
from typing import Any

from rheobase.files import atomic_write
from rheobase.recipes import Recipe
from rheobase.train.parts import Parts

FILE, SOURCES = "plugins.json", "plugins"


def keep(folder: Path, recipe: Recipe, parts: Parts) -> None:
    """Write which parts of the run in `folder` come from which plugin, and the sources of these."""
    entries = []
    for setting, plugin in parts.origins().items():
        digest = plugin.sha256
        entries.append({"part": setting, "name": getattr(recipe, setting), "plugin": plugin.name, "sha256": digest})
        for name, content in plugin.sources.items():
            path = folder / SOURCES / digest[:8] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    if entries:
        with atomic_write(folder / FILE) as part:
            part.write_text(json.dumps(entries, indent=1) + "\n")


def find(folder: Path, recipe: Recipe, given: dict[str, Any]) -> Parts:
    """The parts of the run in `folder`, with a warning where a plugin has changed since."""
    kept = _read(folder)
    for setting in Parts.missing(recipe, **given):
        if setting in kept:
            plugin = kept[setting]["plugin"]
            raise ValueError(
                f"{folder} needs the {setting} '{getattr(recipe, setting)}' of {plugin}; "
                f"name it with --plugin {plugin}, or hand the object over in Python"
            )
    parts = Parts.of(recipe, **given)
    for setting, origin in parts.origins().items():
        if setting in kept and kept[setting]["sha256"] != origin.sha256:
            warnings.warn(
                f"the {setting} '{getattr(recipe, setting)}' is not the one that {folder} began with: {origin.name} "
                f"has changed; its source then is in {folder / SOURCES / kept[setting]['sha256'][:8]}",
                stacklevel=3,
            )
    return parts


def _read(folder: Path) -> dict[str, dict[str, str]]:
    """The entries by setting; their texts are somebody's, so they are made fit to be shown."""
    try:
        entries = json.loads((folder / FILE).read_text())
        return {entry["part"]: {key: _shown(entry[key]) for key in ("name", "plugin", "sha256")} for entry in entries}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{folder / FILE} is damaged; restore it, or remove it to go on without") from None


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:200]
