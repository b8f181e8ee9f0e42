"""Write the counts in docs/trust.md from results/attack.json, and what a GPU repeats: python -m tools.trust"""

import json
from pathlib import Path
from typing import Any

from tools.documents import table

ROOT = Path(__file__).parents[1]
RESULTS, DOCUMENT = ROOT / "results" / "attack.json", ROOT / "docs" / "trust.md"
FUZZ = ROOT / "results" / "fuzz.json"
EXACTNESS = ROOT / "results" / "exactness-nvidia-h200.json"
START, END = "<!-- {}: written by python -m tools.trust -->", "<!-- end of {} -->"
GOOD = ("read", "refused")
ENDS = ("killed", "saved", "stopped", "refused", "finished", "died")  # of a disturbed run


def files(part: dict[str, Any]) -> str:
    """What became of damaged files, by their kind."""
    total, facts = part["total"], part["facts"]
    broken = sum(count for outcome, count in total.items() if outcome not in GOOD)
    said = (
        f"{facts['files']} damaged files of {len(facts['kinds'])} kinds (seed {part['record']['seed']}, "
        f"{part['seconds']} s, {part['record']['device']}): {total.get('refused', 0)} refused in one sentence, "
        f"{total.get('read', 0)} read, {broken} crashed, hung, ended in a traceback or took more memory than they may. "
        f"The most that one of them took was {facts['largest growth, MiB']} MiB."
    )
    rows = []
    for kind, counts in part["outcomes"].items():
        others = sum(count for outcome, count in counts.items() if outcome not in GOOD)
        rows.append((kind, str(counts.get("refused", 0)), str(counts.get("read", 0)), str(others)))
    return f"{said}\n\n{table(('kind', 'refused', 'read', 'neither'), rows)}"


def runs(part: dict[str, Any]) -> str:
    """What became of trainings, by what was done to them."""
    total, facts = part["total"], part["facts"]
    broken = sum(count for outcome, count in total.items() if outcome not in ENDS)
    begins, goes_on = (facts["file operations"][name] for name in ("beginning", "going on"))
    said = (
        f"{facts['runs']} trainings (seed {part['record']['seed']}, {part['seconds']} s, {part['record']['device']}) "
        f"with {facts['kills']} kills, {facts['kills at file operations']} of them at a file operation (a run has "
        f"{begins}, one that goes on {goes_on}): {facts['runs'] - broken} went on and ended bit for bit as one that "
        f"was left alone; {broken} hung, ended in a traceback, could not go on or differed. {total.get('died', 0)} of "
        "them died inside torch for want of memory before they went on."
    )
    rows = []
    for kind, counts in part["outcomes"].items():
        others = sum(count for outcome, count in counts.items() if outcome not in ENDS)
        rows.append((kind, *(str(counts.get(outcome, 0)) for outcome in ENDS), str(others)))
    return f"{said}\n\n{table(('what was done', *ENDS, 'none of these'), rows)}"


def fuzz(part: dict[str, Any]) -> str:
    """What became of inputs that were chosen by coverage."""
    if not part:
        return "No run of it is published yet."
    facts, record = part["facts"], part["record"]
    return (
        f"{facts['inputs']} inputs of {len(facts['kinds'])} kinds (seed {record['seed']}, {part['seconds']} s, "
        f"{record['device']}): {part['total'].get('problems', 0)} kinds had one that was neither read nor refused."
    )


def exactness(content: dict[str, Any]) -> str:
    """Whether trainings on a GPU gave the same weights again."""
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
    """The document with its sections of results written anew."""
    fuzzed = json.loads(FUZZ.read_text())["parts"]["fuzz"] if FUZZ.exists() else {}
    others = {"fuzz": fuzzed, "exactness": json.loads(EXACTNESS.read_text())}
    parts = json.loads(RESULTS.read_text())["parts"] | others
    for name, write in SECTIONS.items():
        start, end = START.format(name), END.format(name)
        before, rest = text.split(start)
        _, after = rest.split(end)
        text = "\n\n".join([before + start, write(parts[name]), end + after])
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(with_results(DOCUMENT.read_text()))
