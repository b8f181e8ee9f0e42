"""Attack the program: `python -m attack` takes a minute or two, `--full` hours. The exit code is 1 if anything broke.

Ctrl-C or SIGTERM ends a part early and reports what it has done so far.
"""

import argparse
import json
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

from rheobase.train.record import record, write_result
from rheobase.train.sources import tree_id

PARTS = ("files", "runs")
OTHERS = ("fuzz",)  # only with --only


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m attack", description=__doc__)
    parser.add_argument("--full", action="store_true", help="run as many attacks as for the published counts")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument("--only", choices=(*PARTS, *OTHERS), action="append", help="run only this part; repeatable")
    parser.add_argument("--out", type=Path, help="write the counts to this JSON file, and keep other parts in it")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = {}
    for name in chosen.only or PARTS:
        began = time.monotonic()
        report = import_module(f"attack.{name}").attack(chosen.full, chosen.seed)
        seconds = round(time.monotonic() - began)
        made = record(seed=chosen.seed)
        made["sources"] |= {"attack": tree_id(Path(__file__).parent)}
        found[name] = {"record": made, "seconds": seconds, **report.as_dict()}
        print(f"{name}: {dict(report.total())} in {seconds} s")
        for problem in report.problems:
            print(f"  {problem}")
    if chosen.out:
        kept = json.loads(chosen.out.read_text())["parts"] if chosen.out.exists() else {}
        write_result(chosen.out, {"parts": kept | found}, seed=chosen.seed)
    sys.exit(any(part["problems"] for part in found.values()))


if __name__ == "__main__":
    main()
