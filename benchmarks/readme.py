"""Write the tables of README.md from the files in results/: python -m benchmarks.readme"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
START, END = "<!-- results: written by python -m benchmarks.readme -->", "<!-- end of results -->"


def step_table(path: Path) -> str:
    """Time and memory of a training step, ours and others'."""
    content = json.loads(path.read_text())
    facts, (run,) = content["environment"], content["runs"]
    setting, results = run["setting"], run["results"]
    own = results["rheobase-speed"]["us_per_image_timestep"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if name != "rheobase")
    where = f"one {facts['device']}, bf16" if setting["device"] == "cuda" else f"{facts['threads']} CPU cores, fp32"
    lines = [
        f"Training step of ResNet-19 on {where}, T = {setting['timesteps']}, N = {setting['batch']} "
        f"({versions}; `{facts['command']}`, all in one run):",
        "",
        "| | us per image and timestep | peak memory, GiB | time relative to ours |",
        "|---|---|---|---|",
    ]
    for name, found in results.items():
        peak = f"{found['peak_bytes'] / 2**30:.2f}" if "peak_bytes" in found else ""
        time = found["us_per_image_timestep"]
        lines.append(f"| {name} | {time:.1f} | {peak} | {time / own:.2f} |")
    lines += [
        "",
        "`floor` is the convolutions and linear layers alone; `relu` the same network with ReLU instead of spikes.",
    ]
    return "\n".join(lines)


def with_results(readme: str) -> str:
    """The text with its section of results written anew."""
    before, rest = readme.split(START)
    _, after = rest.split(END)
    tables = [step_table(path) for path in sorted((ROOT / "results").glob("step-*.json"))]
    return "\n\n".join([before + START, *tables, END + after])


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(with_results(path.read_text()))
