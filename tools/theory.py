"""Write the tables of docs/theory.md from the files in results/paper: python -m tools.theory"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from tools.documents import ROOT, rewritten, table

RESULTS, DOCUMENT = ROOT / "results" / "paper", ROOT / "docs" / "theory.md"


def read(name: str) -> dict[str, Any]:
    """Return the content of a file in results/paper."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def lemma2() -> str:
    """Return phi of single layers against the variance of their weights."""
    rows = [
        (f"{row['gain']:g}", f"{row['phi']:.3f} +- {row['phi_error']:.3f}", f"{row['second_moments']:.3f}")
        for row in read("theorem1")["data"]["lemma2"]
    ]
    return table(("variance of the weights x their number", "phi measured", "second moment out / in"), rows)


def theorem1() -> str:
    """Return phi and varphi of a layer against the width of the surrogate."""
    rows = [
        (
            f"{row['ratio']:g}",
            f"{row['second_moments']:.3f}",
            f"{row['phi']:.3f} +- {row['phi_error']:.3f}",
            f"{row['predicted_phi']:.3f}",
            f"{row['varphi']:.2f} +- {row['varphi_error']:.2f}",
            f"{row['predicted_varphi']:.2f}",
        )
        for row in read("theorem1")["data"]["ratios"]
    ]
    headings = ("r = width / v_th", "second moment out / in", "phi measured", "phi calculated", "varphi measured")
    return table((*headings, "varphi calculated"), rows)


def shortcuts() -> str:
    """Return phi of residual blocks."""
    rows = [
        (row["block"], f"{row['phi']:.3f} +- {row['phi_error']:.3f}", f"{row['predicted_phi']:.3f}")
        for row in read("theorem1")["data"]["shortcuts"]
    ]
    return table(("residual block, r = 2, decay 0", "phi measured", "phi calculated"), rows)


def networks() -> str:
    """Return phi per block of whole networks."""
    rows = [
        (
            entry["network"],
            f"{entry['decay']:g}",
            str(len(entry["phis"])),
            f"{min(entry['phis']):.2f} to {max(entry['phis']):.2f}",
            f"{entry['product']:.2g}",
        )
        for entry in read("theorem1")["data"]["networks"]
    ]
    return table(("network at initialisation, r = 2", "decay", "blocks", "phi per block", "product"), rows)


def fig2() -> str:
    """Return the gradients of the first layer relative to the last."""
    found = read("fig2")
    rows = [
        (
            f"{row['decay']:g}",
            f"{row['width']:g}",
            f"{row['weight_ratio']:.2f}",
            f"{row['spike_ratio']:.2f}",
            f"{row['calculated_ratio']:.2f}",
        )
        for row in found["data"]["rows"]
        if row["tdbn"]
    ]
    headings = ("decay", "width (v_th = 0.5)", "weight gradients", "spike gradients", "calculated at decay 0")
    return "\n\n".join([f"Data: {found['source']}.", table(headings, rows), bullets(found["comparison"][2:])])


def theorem2() -> str:
    """Return the variance of membrane potentials."""
    rows = []
    for row in read("theorem2")["data"]["rows"]:
        square, v_th = row["sigma"] ** 2, 0.5
        values = (row[key][-1] / square for key in ("variance", "without_reset", "two_terms"))
        rows.append(
            (
                f"{row['decay']:g}",
                f"{row['sigma'] / v_th:g}",
                f"{row['fired'][-1]:.3f}",
                *(f"{value:.3f}" for value in values),
                f"{row['mean'][-1] / v_th:.3f}",
            )
        )
    headings = ("decay", "sigma / v_th", "share that fires", "variance / sigma^2, timestep 8", "without resets")
    return table((*headings, "two terms", "mean of u / v_th"), rows)


def table6() -> str:
    """Return the operations of trained networks."""
    rows = []
    paths = sorted(RESULTS.glob("cifar10-resnet19-t*/table6.json"))
    for path in paths:
        data = json.loads(path.read_text())["data"]
        additions, multiplications = data["counts"]["as the paper counts"]
        spiking = sum(layer["dense"] for layer in data["layers"] if layer["fed_by"] == "spikes")
        rows.append(
            (
                f"here, {data['images']} test images",
                str(data["timesteps"]),
                f"{additions:.2e}",
                f"{multiplications:.2e}",
                f"{additions / spiking / data['timesteps']:.3f}",
                f"{1e3 * data['joule']['snn']:.2f}",
            )
        )
    rows.append(("the paper", "6", "1.8e+09", "3.4e+07", f"{1.8e9 / 6 / spiking:.3f}", ""))
    headings = (
        "trained ResNet-19, CIFAR-10",
        "T",
        "additions",
        "multiplications",
        "connections used per timestep",
        "mJ",
    )
    sentences = json.loads(paths[-1].read_text())["comparison"]
    return "\n\n".join([table(headings, rows), f"{paths[-1].parent.name}:", bullets(sentences)])


def ablation() -> str:
    """Return the accuracy with single parts changed."""
    found = read("ablation")
    rows = [(row["group"], row["label"], f"{row['accuracy']:.1f}") for row in found["data"]["rows"]]
    headings = ("what varies", "", "test accuracy, %")
    return "\n\n".join([f"Data: {found['source']}. {found['comparison'][0]}", table(headings, rows)])


def bullets(sentences: Iterable[str]) -> str:
    """Return a Markdown list."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


SECTIONS: dict[str, Callable[[], str]] = {
    "lemma2": lemma2,
    "theorem1": theorem1,
    "shortcuts": shortcuts,
    "networks": networks,
    "fig2": fig2,
    "theorem2": theorem2,
    "table6": table6,
    "ablation": ablation,
}


def with_results(text: str) -> str:
    """Return the document with new results sections."""
    return rewritten(text, SECTIONS, "tools.theory")


if __name__ == "__main__":
    DOCUMENT.write_text(with_results(DOCUMENT.read_text()))
