"""Write the tables of README.md from the files in results/: python -m tools.readme"""

import json
from pathlib import Path
from typing import Any

from rheobase.paper.training import PUBLISHED
from rheobase.train.runs import Run

ROOT = Path(__file__).parents[1]
COMPARED = ("torch", "triton", "spikingjelly", "snntorch")  # packages whose speed a training step shows
START, END = "<!-- results: written by python -m tools.readme -->", "<!-- end of results -->"


def step_table(path: Path) -> str:
    """Time and memory of a training step, ours and others'."""
    content = _json(path)
    facts, (run,) = _facts(content), content["runs"]
    setting, results = run["setting"], run["results"]
    network = setting["network"].replace("resnet", "ResNet-")
    own = results["rheobase-speed"]["us_per_image_timestep"]
    installed = facts.get("packages") or facts["versions"]
    versions = ", ".join(f"{name} {installed[name]}" for name in COMPARED if name in installed)
    where = f"one {facts['device']}, bf16" if setting["device"] == "cuda" else f"{facts['threads']} CPU cores, fp32"
    lines = [
        f"Training step of {network} on {where}, T = {setting['timesteps']}, N = {setting['batch']} "
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


def accuracy_table(folders: list[Path]) -> str:
    """Accuracies of kept runs on CIFAR-10, and how long they took."""
    published = PUBLISHED["table1"]
    target = max(accuracy for (data, _, _), accuracy in published.items() if data == "cifar10")
    lines = [
        "CIFAR-10, test accuracy of one run each (seed 0, test images as they are; `rheobase train RECIPE`); seconds "
        "from the start of the process, evaluation and checkpoints included. Runs that are forked from another one "
        "(`python -m tools.fork`) have its first epochs, and their seconds count those:",
        "",
        "| recipe | T | paper, % | last epoch, % | best epoch, % | epochs | seconds | "
        f"seconds to {target} % | device |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for folder in folders:
        run = Run(folder)
        recipe, rows = run.recipe, run.rows()
        environment = _json(folder / "environment.json")
        forked = environment.get("forked")
        measured = [row for row in rows if "test_accuracy" in row and row["step"] > (forked or {"step": 0})["step"]]
        accuracies = [100 * row["test_accuracy"] for row in measured]
        reached = [row["elapsed"] for row in measured if 100 * row["test_accuracy"] >= target]
        cells = [
            f"[`{recipe.name}`](results/cifar10/{folder.name})",
            str(recipe.timesteps),
            str(published.get((recipe.data, recipe.network, recipe.timesteps), "")),
            f"{accuracies[-1]:.2f}",
            f"{max(accuracies):.2f}",
            f"{rows[-1]['epoch']} of {recipe.epochs}{', forked' if forked else ''}",
            f"{rows[-1]['elapsed']:.0f}",
            f"{reached[0]:.0f}" if reached and not forked else "",
            _facts(environment)["device"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def timesteps_table(folders: list[Path]) -> str:
    """Accuracy of kept runs at other numbers of timesteps than they were trained with."""
    contents = {folder: _json(folder / "timesteps.json") for folder in folders}
    found = {folder: content.get("timesteps", content) for folder, content in contents.items()}
    columns = list(next(iter(found.values())))
    lines = [
        "The same networks with other numbers of timesteps: test accuracy in % (mean spikes per neuron and step):",
        "",
        f"| recipe | trained with T | {' | '.join(f'T = {t}' for t in columns)} |",
        "|" + "---|" * (len(columns) + 2),
    ]
    for folder, by_timesteps in found.items():
        recipe = Run(folder).recipe
        cells = []
        for measured in by_timesteps.values():
            rates = list(measured["firing_rates"].values())
            cells.append(f"{100 * measured['accuracy']:.2f} ({sum(rates) / len(rates):.3f})")
        lines.append(f"| `{recipe.name}` | {recipe.timesteps} | {' | '.join(cells)} |")
    return "\n".join(lines)


def deployment_table(path: Path) -> str:
    """Accuracy of a trained network and of what it was deployed as."""
    content = _json(path)
    recipe, facts = content["recipe"], _facts(content)
    lines = [
        f"`{recipe['name']}` (T = {recipe['timesteps']}) as trained and as deployed (`{facts['command']}`):",
        "",
        "| | test accuracy, % | size of the file, MiB |",
        "|---|---|---|",
    ]
    for name, found in content["results"].items():
        if "accuracy" in found:
            size = f"{found['bytes'] / 2**20:.1f}" if "bytes" in found else ""
            lines.append(f"| {name} | {100 * found['accuracy']:.2f} | {size} |")
    return "\n".join(lines)


def shipped_table(paths: list[Path]) -> str:
    """The networks that come with the package."""
    lines = [
        "Trained networks that come with the package, with 8-bit weights; their names stand for runs in every command, "
        "and `rheobase train RECIPE --from NAME` starts from one:",
        "",
        "| name | T | accuracy as trained, % | accuracy with 8 bits, % | MiB |",
        "|---|---|---|---|---|",
    ]
    for path in paths:
        found = _json(path)
        trained, own = (f"{100 * found[key]:.2f}" for key in ("trained_accuracy", "accuracy"))
        size = f"{found['bytes'] / 2**20:.1f}"
        lines.append(f"| `{found['name']}` | {found['recipe']['timesteps']} | {trained} | {own} | {size} |")
    return "\n".join(lines)


def loop_sentence(path: Path) -> str:
    """What the training loop adds to the bare step."""
    content = _json(path)
    found, facts = content["result"], _facts(content)
    return (
        f"The training loop of `{content['recipe']}` adds {found['overhead_percent']:.1f} % to the bare step on one "
        f"{facts['device']} (`{facts['command']}`); an evaluation takes {found['evaluation_seconds']:.2f} s, "
        f"a checkpoint {found['checkpoint_seconds']:.2f} s."
    )


def tables(results: Path) -> list[str]:
    """All that there are results for."""
    runs = sorted(path.parent for path in (results / "cifar10").glob("*/metrics.jsonl"))
    networks = sorted((results / "shipped").glob("*.json"))
    measured = [folder for folder in runs if (folder / "timesteps.json").exists()]
    return [
        *([accuracy_table(runs)] if runs else []),
        *([timesteps_table(measured)] if measured else []),
        *([shipped_table(networks)] if networks else []),
        *(deployment_table(path) for path in sorted(results.glob("deploy-*.json"))),
        *(step_table(path) for path in sorted(results.glob("step-*.json")) if _is_comparison(_json(path))),
        *(loop_sentence(path) for path in sorted(results.glob("loop-*.json"))),
    ]


def _is_comparison(content: dict[str, Any]) -> bool:
    """With others, at one setting; neither a sweep nor a look at our own past."""
    return len(content["runs"]) == 1 and "before" not in content


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _facts(content: dict[str, Any]) -> dict[str, Any]:
    """How a result was made; files from before there were records call it environment, or are nothing else."""
    return content.get("record") or content.get("environment") or content


def with_results(readme: str, results: Path = ROOT / "results") -> str:
    """The text with its section of results written anew."""
    before, rest = readme.split(START)
    _, after = rest.split(END)
    return "\n\n".join([before + START, *tables(results), END + after])


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(with_results(path.read_text()))
