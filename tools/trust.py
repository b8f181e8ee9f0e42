"""Write the counts and tables of docs/trust.md from the files in results/: python -m tools.trust"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from tools.documents import rewritten, table

ROOT = Path(__file__).parents[1]
RESULTS, DOCUMENT = ROOT / "results" / "attack.json", ROOT / "docs" / "trust.md"
FUZZ = ROOT / "results" / "fuzz.json"
EXACTNESS = ROOT / "results" / "exactness-nvidia-h200.json"
GOOD = ("read", "refused")
ENDS = ("killed", "saved", "stopped", "refused", "finished", "died")  # accepted ends of a disturbed run


def files(part: dict[str, Any]) -> str:
    """Return the outcomes of damaged files, by kind."""
    total, facts = part["total"], part["facts"]
    broken = sum(count for outcome, count in total.items() if outcome not in GOOD)
    said = (
        f"{facts['files']} damaged files of {len(facts['kinds'])} kinds (seed {part['record']['seed']}, "
        f"{part['seconds']} s, {part['record']['device']}): {total.get('refused', 0)} refused in one sentence, "
        f"{total.get('read', 0)} read, {broken} crashed, hung, ended in a traceback or exceeded the memory limit. "
        f"The largest amount of memory that one file took was {facts['largest growth, MiB']} MiB."
    )
    rows = []
    for kind, counts in part["outcomes"].items():
        others = sum(count for outcome, count in counts.items() if outcome not in GOOD)
        rows.append((kind, str(counts.get("refused", 0)), str(counts.get("read", 0)), str(others)))
    return f"{said}\n\n{table(('kind', 'refused', 'read', 'neither'), rows)}"


def runs(part: dict[str, Any]) -> str:
    """Return the outcomes of disturbed runs, by kind of disturbance."""
    total, facts = part["total"], part["facts"]
    broken = sum(count for outcome, count in total.items() if outcome not in ENDS)
    new, resumed = (facts["file operations"][name] for name in ("beginning", "going on"))
    said = (
        f"{facts['runs']} runs (seed {part['record']['seed']}, {part['seconds']} s, {part['record']['device']}) "
        f"with {facts['kills']} kills, {facts['kills at file operations']} of them at a file operation (a new run has "
        f"{new}, a resumed one {resumed}): {facts['runs'] - broken} could be resumed and ended with the same bits as "
        f"an undisturbed run; {broken} hung, ended in a traceback, could not be resumed or differed. "
        f"{total.get('died', 0)} of them had died inside torch for lack of memory before they were resumed."
    )
    rows = []
    for kind, counts in part["outcomes"].items():
        others = sum(count for outcome, count in counts.items() if outcome not in ENDS)
        rows.append((kind, *(str(counts.get(outcome, 0)) for outcome in ENDS), str(others)))
    return f"{said}\n\n{table(('what was done', *ENDS, 'none of these'), rows)}"


def fuzz(part: dict[str, Any]) -> str:
    """Return the outcomes of inputs that were chosen by coverage."""
    if not part:
        return "No results are published yet."
    facts, record = part["facts"], part["record"]
    return (
        f"{facts['inputs']} inputs of {len(facts['kinds'])} kinds (seed {record['seed']}, {part['seconds']} s, "
        f"{record['device']}): {part['total'].get('problems', 0)} kinds had an input that was neither read nor refused."
    )


def exactness(content: dict[str, Any]) -> str:
    """Return whether runs on a GPU gave the same weights again."""
    record = content["record"]
    versions = record["packages"]
    said = f"`{record['command']}`, {record['device']}, torch {versions['torch']}, cuDNN {versions['cudnn']}:"
    words = {True: "the same weights", False: "other weights"}
    rows = []
    for way, found in content["ways"].items():
        answers = (words[found[f"same_when_{case}"]] for case in ("repeated", "killed_and_resumed"))
        rows.append((way, *answers, f"{min(found['epoch_seconds']):.2f}"))
    return f"{said}\n\n{table(('', 'repeated', 'killed and resumed', 's per epoch'), rows)}"


SECTIONS = {"files": files, "fuzz": fuzz, "runs": runs, "exactness": exactness}


def with_results(text: str) -> str:
    """Return the document with new results sections."""
    fuzzed = json.loads(FUZZ.read_text())["parts"]["fuzz"] if FUZZ.exists() else {}
    others = {"fuzz": fuzzed, "exactness": json.loads(EXACTNESS.read_text())}
    parts = json.loads(RESULTS.read_text())["parts"] | others
    return rewritten(text, {name: partial(write, parts[name]) for name, write in SECTIONS.items()}, "tools.trust")


if __name__ == "__main__":
    DOCUMENT.write_text(with_results(DOCUMENT.read_text()))
