"""Stands in for a process of the attack: it dies of every fifth case, and says nothing of every seventh."""

import json
import os
import sys
import time
from pathlib import Path

originals, *_, first, stop, step = sys.argv[1:]
for case in range(int(first), int(stop), int(step)):
    (Path(originals).parent / f"from-{first}" / "kind").mkdir(parents=True, exist_ok=True)
    told = {"case": case, "target": "kind"}
    print(json.dumps(told), flush=True)
    if case % 5 == 4:
        os.abort()
    if case % 7 == 6:
        time.sleep(60)
    print(json.dumps(told | {"outcome": "refused", "grown": 2**21}), flush=True)
