"""`fit` trains a recipe and writes the folder of a run."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from rheobase.data import Dataset
from rheobase.data.feed import Feed, generator
from rheobase.plugins import Part
from rheobase.recipes import Recipe
from rheobase.train import checkpoint, distributed, muster
from rheobase.train.checkpoint import Checkpoint
from rheobase.train.claim import claimed
from rheobase.train.distributed import Team
from rheobase.train.folders import own_folder, refuse_used
from rheobase.train.parts import Parts, named_after
from rheobase.train.progress import Reporter, process_seconds
from rheobase.train.runs import Run, channels_last, load_data, network_for
from rheobase.train.start import describe, normalising, start_of
from rheobase.train.step import DTYPES, for_device
from rheobase.train.stopping import Signals
from rheobase.train.switches import threads
from rheobase.train.trainer import Trainer
from rheobase.train.waking import wake

SAVE_SECONDS = 30.0
MOST_THREADS = 2**12  # that a file may ask for


def fit(
    recipe: Recipe | None = None,
    *,
    network: Part | None = None,
    neuron: Part | None = None,
    dataset: Dataset | Part | None = None,
    loss: Part | None = None,
    optimizer: Part | None = None,
    data: Path | str | None = None,
    out: Path | str | None = None,
    start: Run | Path | str | None = None,
    keep_best: bool = False,
    resume: bool = False,
    new_data: bool = False,
    device: str | torch.device = "auto",
    download: bool = False,
    reporter: Reporter | None = None,
    save_every: float = SAVE_SECONDS,
    part_bytes: int | None = None,
    patience: float = distributed.PATIENCE,
    began: float | None = None,
) -> Run:
    """Train `recipe` into the folder `out`, or resume the run there from its newest checkpoint, with its own recipe.

    `network`, `neuron`, `dataset`, `loss` and `optimizer` replace the parts that the recipe names. They are functions
    or classes as for the decorators of `plugins`, or a `Dataset`. `data` is the folder with the files of the dataset.

    To start from trained weights, give as `start` a run, its folder, the name of a shipped network, or the file of a
    converted network. Inputs are then normalised as they were there. `keep_best` keeps the best epoch in the folder
    `best` of the run, which is a run itself.

    A run is resumed only on its own data, or, with `new_data`, on other data with the same classes and shape.

    A `reporter` shows the progress (see `reporter_for`); without one, nothing is printed. A checkpoint is
    written every `save_every` seconds (0: after every epoch), at the end, and when a signal stops the run. Checkpoint
    files larger than `part_bytes` are split into parts of that size. A process gives up after it has waited
    `patience` seconds for another. `began` is when the work on the run began, in seconds since the start of
    this process; the default is now.
    """
    began = process_seconds() if began is None else began
    data, out = (None if place is None else Path(place) for place in (data, out))
    if resume and out is None:
        raise ValueError("resume needs the folder of the run")
    if new_data and not resume:
        raise ValueError("new_data is for a run that is resumed; add resume=True")
    if resume and (start is not None or keep_best):
        raise ValueError("a resumed run continues unchanged; leave out start and keep_best")
    handed = {"network": network, "neuron": neuron, "data": dataset, "loss": loss, "optimizer": optimizer}
    given = {name: part for name, part in handed.items() if part is not None}
    with Signals().watched() as signals, distributed.team(choose_device(device), patience) as (team, where):
        with muster.together(team):
            if team.world > 1 and out is None:
                raise ValueError("a run of several processes needs a folder that all of them see; add --out")
            earlier = Run(out, **given) if resume and out is not None else None
            recipe = _chosen(recipe, earlier, given)
            if recipe.freeze != "none" and start is None and earlier is None:
                raise ValueError(f"freeze={recipe.freeze} needs a trained network to start from; add --from")
            begins = None if start is None else start_of(start)
            if data is not None and not data.exists() and not download:
                raise ValueError(f"{data} does not exist; check the path given with --data")
            parts = Parts.of(recipe, **given) if earlier is None else earlier.parts
            if out is not None and earlier is None:
                refuse_used(out)

        def images() -> Dataset:
            if earlier is not None:
                return earlier.open_data(data, resume=not new_data, download=download)
            own = load_data(recipe, data, parts.data, download=download)
            return own if begins is None else normalising(begins, own)

        awake = wake(where)
        with muster.together(team):  # one process downloads before the others look
            found = images() if team.leads else None
        with muster.together(team):
            found = found or images()
        computed = for_device(recipe, where)
        muster.refuse_others(team, recipe, parts, found.info.fingerprint, computed.precision)
        with muster.together(team):
            feed = Feed(found, recipe, where, DTYPES.get(recipe.precision, torch.float32), team.rank, team.world)
            torch.manual_seed(generator(recipe.seed).initial_seed())
            # before the folder is created, as this may fail
            model = channels_last(network_for(recipe, found.info, parts)).to(feed.dtype)
            options: dict[str, Any] = {"keep_best": keep_best, "part_bytes": part_bytes, **given}
            if team.leads and begins is not None:
                options |= {"start": begins.load_into(model, recipe, feed), "weights": model.state_dict()}
        awake()
        shown = reporter if reporter and team.leads else Reporter()
        out = out or own_folder(recipe.name)
        with claimed(out) if team.leads else nullcontext():
            if team.leads and earlier is None:
                Run.create(out, recipe, found.info, where, processes=team.world, **options)
                if begins is not None:
                    shown.note(describe(options["start"], len(found.info.classes)))
            run = earlier or Run(out, **given)
            if computed != recipe:
                kind = "CPU" if where.type == "cpu" else "GPU"
                shown.note(f"computes in {computed.precision}, because bf16 would be slow on this {kind}")
            try:
                saved = _found(run, team)
                with _as_it_began(run, team.world, where, shown) if resume else nullcontext():
                    trainer = Trainer(
                        run, model, parts, feed, team, shown, began, save_every=save_every, part_bytes=part_bytes
                    )
                    if saved is not None:
                        trainer.restore(saved)
                    elif resume and (run.start is not None or (run.rows() and not run.beginning)):
                        raise ValueError(
                            f"{run} has lost its checkpoints and cannot be resumed; train it again in another folder"
                        )
                    if team.leads:
                        run.remember(data=data, start=None if begins is None else begins.place())
                    if team.leads and resume:
                        run.keep_rows(trainer.step // feed.steps)
                        run.change_data(found.info, trainer.step)
                    trainer.train(signals)
            except BaseException:  # including a signal before the first step
                if team.leads and earlier is None:
                    run.discard_if_empty()
                raise
            team.wait()  # no process ends before the last checkpoint is written
    return run


def _found(run: Run, team: Team) -> Checkpoint | None:
    """Return, in all processes, the newest good checkpoint that the first one finds. It sets damaged ones aside."""
    muster.refuse_blind(team, run.folder)
    with muster.together(team):
        saved = checkpoint.latest(run.checkpoints, set_aside=True) if team.leads else None
    # by name: a shared file system may show the newest one to some machines later
    name = team.confer(None if saved is None else saved.path.name)
    with muster.together(team):
        if name is not None and not team.leads:
            saved = checkpoint.load(run.checkpoints / name)
    return saved


def _chosen(recipe: Recipe | None, earlier: Run | None, given: dict[str, Part | Dataset]) -> Recipe:
    """Return the recipe to train. For a run that is resumed, it must be the run's own."""
    if recipe is None:
        if earlier is None:
            raise ValueError("fit needs a recipe, or a run to resume")
        recipe = earlier.recipe
    if not isinstance(recipe, Recipe):
        raise ValueError(f"fit: expected a recipe, such as recipes.get('demo'), got {recipe!r}")
    recipe = named_after(recipe, given)
    if earlier is not None:
        earlier.refuse_other(recipe)
    return recipe


@contextmanager
def _as_it_began(run: Run, processes: int, device: torch.device, reporter: Reporter) -> Iterator[None]:
    """On a CPU, use as many threads as the run started with, so that every bit is the same. Report what differs."""
    began, now = run.environment, torch.get_num_threads()
    then, record = began.get("processes", 1), began.get("record", {})
    number = record.get("threads", now) if isinstance(record, dict) else None
    if type(number) is not int or not 0 < number <= MOST_THREADS:
        raise ValueError(
            f"{run.folder / 'environment.json'} does not say with how many threads the run started; restore it"
        )
    precision = for_device(run.recipe, device).precision
    if run.precision != precision:
        reporter.note(f"started in {run.precision} and continues in {precision}: other rounding")
    if processes != then:
        reporter.note(
            f"started with {then} and continues with {processes} processes: same batches and schedule, other rounding"
        )
    elif device.type == "cpu" and number != now:
        reporter.note(f"continues with the number of threads that it started with: {number} per process")
        with threads(number):
            yield
        return
    yield


def choose_device(name: str | torch.device) -> torch.device:
    """Return the device with this name, and make a numbered GPU the current one. `auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        other = ", or another number" if ":" in str(name) else ""
        raise ValueError(f"device '{name}' is not available here; use auto or cpu{other}") from None
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)  # CUDA graphs and Triton use the current device
    return device
