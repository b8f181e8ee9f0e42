"""The commands that train: demo, train."""

import gc
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from rheobase.cli import analysis, deploy
from rheobase.cli.common import (
    RECIPE_HELP,
    SIMULATED_NOTE,
    DataOption,
    DeviceOption,
    PluginOption,
    SettingsOption,
    add_command,
    command_line,
    console,
    counted,
    errors,
    export_hint,
    print_next,
    print_rates,
)
from rheobase.extras import installed

if TYPE_CHECKING:
    from rheobase.recipes import Recipe
    from rheobase.train.distributed import Team
    from rheobase.train.runs import Run

OutOption = Annotated[Path | None, typer.Option(help="Folder for the run; default: the first free runs/NAME-NUMBER.")]


class Frozen(StrEnum):
    """The parts of a network that can be frozen."""

    body = "body"


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    add_command(app, demo)
    add_command(app, train, "cifar10_resnet19_t2 --data cifar10 --set epochs=20", imports="rheobase.train")


def demo(
    out: OutOption = None,
    device: DeviceOption = "auto",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Train a small spiking network on the built-in handwritten digits, in about a minute on two cores."""
    import torch

    from rheobase import recipes

    torch.set_num_threads(1)  # the network is small: a second thread would only wait
    recipe = recipes.get("demo").changed([f"seed={seed}"])
    console.print(f"{recipe.network}, {recipe.timesteps} timesteps, on 1797 handwritten digits")
    run = _fit(recipe, out=out, device=device)
    if not _leads():
        return
    deploy.deploy(run.folder)
    console.print(f"wrote {analysis.write_report(run.folder)}; open it in a browser")
    print_next(
        (command_line("eval", run.folder, "--timesteps", 2), "run the network with half the timesteps"),
        (command_line("export", run.folder, "--to", "nir", "--int8"), "export as int8 for neuromorphic hardware"),
        ("rheobase train demo --set decay=0.5", "train with another setting"),
        ("rheobase recipes", "list the recipes, those of the paper included"),
        ("rheobase models", "list the networks"),
    )


def train(
    recipe: Annotated[str | None, typer.Argument(help=RECIPE_HELP)] = None,
    settings: SettingsOption = None,
    data: DataOption = None,
    out: OutOption = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN|NAME|FILE",
            help="Start from the weights of a run, a converted network, or a network that comes with the package.",
        ),
    ] = None,
    freeze: Annotated[
        Frozen | None, typer.Option(help="Train only the head; the body keeps the weights given by --from.")
    ] = None,
    keep_best: Annotated[bool, typer.Option("--keep-best", help="Also keep the best epoch, as RUN/best.")] = False,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
    new_data: Annotated[bool, typer.Option("--new-data", help="Resume with other data of the same classes.")] = False,
    go_on: Annotated[bool, typer.Option("--continue", help="Resume the run in --out, or start it there.")] = False,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Train one run per seed, one after another.")
    ] = None,
    device: DeviceOption = "auto",
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Download the dataset if it is missing.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write metrics for TensorBoard.")] = False,
    save_every: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Time between checkpoints; 0: after every epoch.")
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            min=1, metavar="SECONDS", help="Under torchrun: how long to wait for a process that does not respond."
        ),
    ] = None,
    parts: Annotated[bool, typer.Option("--parts", help="Split checkpoint files into parts of 15 MiB.")] = False,
    plugin: PluginOption = None,
) -> None:
    """Train a network by a recipe, or resume a run."""
    from rheobase import recipes
    from rheobase.train.runs import Run

    if seed is not None and any(setting.startswith("seed=") for setting in settings or []):
        raise ValueError("--seed and --set seed= mean the same; leave one of them out")
    changes = [*(settings or []), *([] if seed is None else [f"seed={seed}"])]
    changes += [] if freeze is None else [f"freeze={freeze}"]
    options: dict[str, Any] = {"data": data, "device": device, "download": download, "tensorboard": tensorboard}
    going_on = {"go_on": go_on, "new_data": new_data}
    options["part_bytes"] = 15 * 2**20 if parts else None
    if save_every is not None:
        options["save_every"] = save_every
    if patience is not None:
        options["patience"] = patience
    if new_data and resume is None and not go_on:
        raise ValueError("--new-data is for a run that is resumed; add --resume or --continue")
    if resume is not None:
        if recipe or changes or out or go_on or seeds or start or keep_best:
            others = "RECIPE, --set, --seed, --seeds, --out, --continue, --from, --freeze and --keep-best"
            raise ValueError(f"--resume continues a run unchanged; leave out {others}")
        run = _start_or_go_on(None, resume, go_on=True, new_data=new_data, start=None, keep_best=False, **options)
    elif recipe is None:
        raise ValueError(f"no recipe given; choose one of {', '.join(recipes.RECIPES)}, or --resume a run")
    elif recipe not in recipes.RECIPES and Path(recipe, "recipe.json").is_file():
        raise ValueError(f"{recipe} is a run, not a recipe; give it with --resume, or with --from and a recipe")
    elif go_on and out is None:
        raise ValueError("--continue needs --out, the folder of the run to start or resume")
    elif seeds is not None:
        if any(change.startswith("seed=") for change in changes):
            raise ValueError("--seed and --set seed= are for one run, --seeds for several; leave one of them out")
        several = [recipes.get(recipe).changed([*changes, f"seed={s}"]) for s in _distinct(seeds)]
        again = ["train", recipe, *(f"--set={s}" for s in changes), f"--seeds={seeds}"]
        again += [*(["--from", start] if start else []), *(["--keep-best"] if keep_best else [])]
        _fit_several(several, out, again, **going_on, start=start, keep_best=keep_best, **options)
        return
    else:
        chosen = recipes.get(recipe).changed(changes)
        run = _start_or_go_on(chosen, out, **going_on, start=start, keep_best=keep_best, **options)
    if not _leads():
        return
    if run is None:
        folder = resume or out
        assert folder is not None
        if hints := _fine_tuning(Run(folder), data):
            print_next(*hints)
        return
    hints = [(command_line("eval", run.folder, data=data), "evaluate the network")]
    if run.recipe.neuron == "lif" and run.recipe.normalisation == "tdbn":
        hints.append(export_hint(run.folder, run.recipe))
    elif run.recipe.neuron in ("relu", "qcfs"):
        method = "qcfs" if run.recipe.neuron == "qcfs" else "calibrated"
        words = ["convert", run.folder, "--method", method, "--timesteps", 32]
        hints.append((command_line(*words, data=data), "convert it to a spiking network"))
    print_next(*hints)


def _distinct(seeds: str) -> list[str]:
    found = [seed.strip() for seed in seeds.split(",")]
    if not all(seed.isdecimal() for seed in found) or len({int(seed) for seed in found}) < len(found):
        raise ValueError(f"--seeds: expected different whole numbers separated by commas, got '{seeds}'")
    return found


def _start_or_go_on(
    recipe: "Recipe | None",
    out: Path | None,
    *,
    go_on: bool,
    new_data: bool,
    start: str | None,
    keep_best: bool,
    **options: Any,
) -> "Run | None":
    """Train `recipe`, or the run in `out`, to its end and return the run; if it is finished, say so and return None."""
    from rheobase.train.runs import Run
    from rheobase.train.standing import Standing, standing

    with _team(options) as team:
        found = standing(out, recipe, start, team) if go_on and out is not None else Standing.NEW
        if found is Standing.FINISHED and out is not None:
            if _leads():
                own = Run(out).recipe
                console.print(f"{out} is finished: {counted(own.epochs, 'epoch')} of {own.name}, seed {own.seed}")
            return None
        if found is Standing.UNFINISHED or recipe is None:
            if keep_best and out is not None and not (out / "best").is_dir():
                raise ValueError(
                    f"{out} holds a run that was started without --keep-best; leave it out to resume the run"
                )
            return _fit(recipe, out=out, resume=True, new_data=new_data, **options)
        return _fit(recipe, out=out, start=start, keep_best=keep_best, **options)


def _fine_tuning(run: "Run", data: Path | None) -> list[tuple[str, str]]:
    """How to go on from a finished run. There is no command for it if a plugin of the run is not loaded."""
    from rheobase import recipes
    from rheobase.train.parts import Parts

    if Parts.missing(run.recipe):
        return []
    name, *kept = recipes.words(run.recipe)  # settings of the neuron must be the same
    return [(command_line("train", name, "--from", run.folder, *kept, data=data or run.place("data")), "fine-tune it")]


def _fit_several(
    chosen: "list[Recipe]", out: Path | None, again: Sequence[object], *, go_on: bool, start: str | None, **options: Any
) -> None:
    """Train the same recipe with several seeds, one folder each. Finished runs are not trained again."""
    from rheobase.report.comparison import percent
    from rheobase.tasks.compare import Spread
    from rheobase.train.progress import process_seconds
    from rheobase.train.runs import Run
    from rheobase.train.standing import folder_of_several, standing

    # one group of processes for all runs
    with folder_of_several(out, chosen[0].name, go_on=go_on, alone=_world() == 1) as whole, _team(options) as team:
        folders = [whole / f"seed-{recipe.seed}" for recipe in chosen]
        for folder, recipe in zip(folders, chosen, strict=True):
            standing(folder, recipe, start, team)  # find a run that cannot resume before the first one starts
        trained = False
        for i, (folder, recipe) in enumerate(zip(folders, chosen, strict=True)):
            if _leads():
                console.print(f"seed {recipe.seed}, {i + 1} of {len(chosen)}")
            gc.collect()  # a reference cycle keeps the previous network, and its memory, alive
            words = [*again, "--out", whole, "--continue"]
            began = process_seconds() if i else 0.0
            run = _start_or_go_on(recipe, folder, go_on=True, start=start, again=words, began=began, **options)
            trained |= run is not None
            if run is not None and run.interrupted and recipe is not chosen[-1]:
                _tell_how_to_go_on(f"stopped after seed {recipe.seed}", words, options["data"], run.interrupted)
    if not _leads():
        return
    runs = [Run(folder) for folder in folders]
    rows = [run.rows() for run in runs]
    last = Spread.of([run[-1]["test_accuracy"] for run in rows])
    best = Spread.of([max(row["test_accuracy"] for row in run if "test_accuracy" in row) for run in rows])
    console.print(
        f"{_tested(runs[0])} over {len(rows)} seeds: {percent(asdict(last))} % after the last epoch "
        f"(best epoch {percent(asdict(best))} %)"
    )
    again_from = [] if trained else _fine_tuning(runs[0], options["data"])
    print_next((command_line("compare", whole), "compare the runs"), *again_from)


def _world() -> int:
    """Return how many processes torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def _team(options: dict[str, Any]) -> "Iterator[Team]":
    """Join the processes of this command into a team."""
    from rheobase.train import choose_device, distributed

    patience = options.get("patience", distributed.PATIENCE)
    with distributed.team(choose_device(options["device"]), patience) as (team, _):
        yield team


def _leads() -> bool:
    """Return whether this process prints for all processes that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def _fit(
    recipe: "Recipe | None",
    *,
    device: str,
    data: Path | None = None,
    tensorboard: bool = False,
    began: float = 0.0,
    again: Sequence[object] = (),
    **options: Any,
) -> "Run":
    """Train and show the result. `again` is the command to continue after Ctrl-C, if it is not --resume."""
    from rheobase import train
    from rheobase.train.advice import on_cpu
    from rheobase.train.heap import keep_freed_memory
    from rheobase.train.progress import reporter_for
    from rheobase.train.stopping import exit_code

    cpu = train.choose_device(device).type == "cpu"
    if cpu:
        keep_freed_memory()
    reporter = reporter_for(console, on_cpu if cpu else None)
    if tensorboard:
        from rheobase.train.tensorboard import TensorBoard

        reporter = TensorBoard(reporter)
    try:
        run = train.fit(recipe, device=device, data=data, reporter=reporter, began=began, **options)
    except train.Interrupted as stop:
        _tell_how_to_go_on(str(stop), again or ("train", "--resume", stop.folder), data, stop.number)
    except KeyboardInterrupt as stop:
        if _leads():
            errors.print("stopped at once: nothing was saved; any earlier checkpoints are intact")
        raise typer.Exit(exit_code(stop.args[0] if stop.args else signal.SIGINT, saved=False)) from None
    if _leads():
        _show(run)
    return run


def _tell_how_to_go_on(what: str, words: Sequence[object], data: Path | None, number: int) -> NoReturn:
    """Exit with the code of a run that was saved after the signal `number` stopped it."""
    from rheobase.train.stopping import SIGNALS, exit_code

    for other in SIGNALS if _world() > 1 else []:
        signal.signal(other, signal.SIG_IGN)  # torchrun ends the others after the first; all is saved
    if _leads():
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        launcher = f"torchrun --nproc-per-node {local} -m " if _world() > 1 else ""
        line = "the same command with --continue" if _world() > local else launcher + command_line(*words, data=data)
        errors.print(f"{what}; continue with: {line}")
    raise typer.Exit(exit_code(number, saved=True)) from None


def _show(run: "Run") -> None:
    rows = run.rows()
    if not rows:
        raise ValueError(f"{run.metrics} is missing from a finished run; there is nothing to show")
    print_rates(rows[-1]["firing_rates"], run.recipe)
    last, best = rows[-1], max((row for row in rows if "test_accuracy" in row), key=lambda row: row["test_accuracy"])
    console.print(
        f"{_tested(run)} {100 * last['test_accuracy']:.2f} % after the last epoch and {last['elapsed']:.0f} s "
        f"(best epoch {100 * best['test_accuracy']:.2f} % after {best['elapsed']:.0f} s)"
    )
    if run.data.simulated:
        console.print(SIMULATED_NOTE)
    console.print(f"run folder: {run.folder}")
    if installed("matplotlib"):
        from rheobase.report.plots import learning_curves

        learning_curves(rows, run.folder / "curves.png")
        console.print(f"learning curves: {run.folder / 'curves.png'}")


def _tested(run: "Run") -> str:
    return "accuracy on held-out training images" if run.data.holdout else "test accuracy"
