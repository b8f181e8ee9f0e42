"""`fit`: from a recipe to the folder of a trained run."""

from contextlib import nullcontext
from pathlib import Path

import torch

from rheobase.data import Dataset
from rheobase.data.feed import Feed, generator
from rheobase.plugins import Part
from rheobase.recipes import Recipe
from rheobase.train import checkpoint, distributed
from rheobase.train.parts import Parts, named_after
from rheobase.train.progress import Reporter, process_seconds
from rheobase.train.runs import Run, channels_last, load_data, network_for
from rheobase.train.step import DTYPES
from rheobase.train.trainer import Trainer

SAVE_SECONDS = 30.0


def fit(
    recipe: Recipe | None = None,
    *,
    network: Part | None = None,
    neuron: Part | None = None,
    dataset: Dataset | Part | None = None,
    loss: Part | None = None,
    optimizer: Part | None = None,
    data: Path | None = None,
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    download: bool = False,
    reporter: Reporter | None = None,
    save_every: float = SAVE_SECONDS,
    part_bytes: int | None = None,
    began: float | None = None,
) -> Run:
    """Train `recipe` into the folder `out`, or resume the run that is there, by its own, from its newest checkpoint.

    `network`, `neuron`, `dataset`, `loss` and `optimizer` take the place of the parts that the recipe names; they are
    what the decorators of `plugins` take, or a `Dataset`. `data` is the folder with the data set's files.

    A checkpoint is written after the epoch in which `save_every` seconds have passed, at the end, and on Ctrl-C. Its
    files above `part_bytes` are cut into parts of that size. `began` is when the work on it began, in seconds since
    the start of this process; without it, now.
    """
    began = process_seconds() if began is None else began
    if resume and out is None:
        raise ValueError("resume needs the folder of the run")
    handed = {"network": network, "neuron": neuron, "data": dataset, "loss": loss, "optimizer": optimizer}
    given = {name: part for name, part in handed.items() if part is not None}
    earlier = Run(out, **given) if resume and out is not None else None
    if recipe is None:
        if earlier is None:
            raise ValueError("fit needs a recipe, or a run to resume")
        recipe = earlier.recipe
    recipe = named_after(recipe, given)
    if earlier is not None:
        earlier.refuse_other(recipe)
    with distributed.team(choose_device(device)) as (team, where):
        if team.world > 1 and out is None:
            raise ValueError("a run of several processes needs a folder that all can see; give one with --out")
        parts = Parts.of(recipe, **given) if earlier is None else earlier.parts

        def images() -> Dataset:
            if earlier is not None:
                return earlier.open_data(data, resume=True, download=download)
            return load_data(recipe, data, parts.data, download=download)

        # a download is for one process to do, before the others look
        found = images() if team.leads else None
        team.wait()
        found = found or images()
        feed = Feed(found, recipe, where, DTYPES.get(recipe.precision, torch.float32), team.rank, team.world)
        torch.manual_seed(generator(recipe.seed).initial_seed())
        model = channels_last(network_for(recipe, found.info, parts))  # before there is a folder: it may be impossible
        if team.leads and earlier is None:
            out = Run.create(out, recipe, found.info, where, **given).folder
        team.wait()
        assert out is not None
        run = earlier or Run(out, **given)
        if team.leads and data is not None:
            run.remember(data)
        shown = reporter if reporter and team.leads else Reporter()
        with run.claimed() if team.leads else nullcontext():
            trainer = Trainer(run, model, parts, feed, team, shown, began, save_every=save_every, part_bytes=part_bytes)
            if resume and (saved := checkpoint.latest(run.checkpoints)) is not None:
                trainer.restore(saved)
            if resume and team.leads:
                run.keep_rows(trainer.step // feed.steps)
            try:
                trainer.train()
            except Exception:
                if team.leads and earlier is None:
                    run.discard_if_empty()
                raise
            team.wait()  # nobody leaves before the last checkpoint is written
    return run


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        other = ", or another number" if ":" in name else ""
        raise ValueError(f"device '{name}' is not available here; use auto or cpu{other}") from None
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)  # graphs and Triton use the current one
    return device
