"""Draw the pictures in results/paper again from the files beside them, after a change of layout: python -m tools.redraw

Results that take a GPU need not be measured again for that. The other pictures come with their commands, in seconds.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rheobase.paper import ablation, inference, training
from rheobase.report import plots
from rheobase.report.charts import Chart
from tools.results import ROOT

CHARTS: dict[str, Callable[[Mapping[str, Any]], list[Chart]]] = {
    "ablation": ablation.charts,
    "fig2": training.fig2_charts,
    "fig6": inference.fig6_charts,
    "table6": inference.table6_charts,
}


def main(results: Path = ROOT / "results" / "paper") -> None:
    for path in sorted(results.rglob("*.json")):
        if path.stem in CHARTS:
            kept = json.loads(path.read_text())
            title = f"{kept['title']} ({kept['source']})"
            for picture in plots.draw(path.stem, title, CHARTS[path.stem](kept["data"]), path.parent):
                print(f"written to {picture}")


if __name__ == "__main__":
    main()
