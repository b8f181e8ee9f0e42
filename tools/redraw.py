"""Draw the pictures in results/ again from the files beside them, after a change of layout: python -m tools.redraw

No result need be measured again for that.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rheobase.paper import ablation, conversion, inference, theory, training
from rheobase.report import plots
from rheobase.report.charts import Chart
from rheobase.train.runs import Run
from tools.results import ROOT

CHARTS: dict[str, Callable[[Mapping[str, Any]], list[Chart]]] = {
    "ablation": ablation.charts,
    "fig2": training.fig2_charts,
    "fig3": theory.fig3_charts,
    "fig4": theory.fig4_charts,
    "fig6": inference.fig6_charts,
    "table1": conversion.charts,
    "table6": inference.table6_charts,
    "theorem1": theory.theorem1_charts,
    "theorem2": theory.theorem2_charts,
}


def main(results: Path = ROOT / "results") -> None:
    for path in sorted(results.rglob("*.json")):
        if path.stem in CHARTS:
            kept = json.loads(path.read_text())
            title = f"{kept['title']} ({kept['source']})"
            for picture in plots.draw(path.stem, title, CHARTS[path.stem](kept["data"]), path.parent):
                print(f"written to {picture}")
    for picture in sorted(results.rglob("curves.png")):
        plots.learning_curves(Run(picture.parent).rows(), picture)
        print(f"written to {picture}")


if __name__ == "__main__":
    main()
