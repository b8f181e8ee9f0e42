"""Make a run that can be trained again from a folded file whose run is lost.

python -m tools.unfold FILE KEPT OUT --data DATA

`convert.unfold` separates tdBN from the weights again, with statistics of training images. KEPT is the folder that
`tools.keep` made of the run, with its metrics and environment.
"""

import argparse
import shutil
from itertools import islice
from pathlib import Path

import torch

from rheobase.convert.unfold import unfold
from rheobase.data.feed import Feed
from rheobase.deploy.formats import native
from rheobase.tasks.open import about
from rheobase.train import checkpoint
from rheobase.train.runs import Run, open_data

BATCHES = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("kept", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    network = native.load(options.file)
    stated = about(network, options.file)
    cpu = torch.device("cpu")
    dataset = open_data(stated.recipe, stated.data, options.data, options.file)
    run = Run.create(options.out, stated.recipe, stated.data, cpu)
    model = run.network()
    feed = Feed(dataset, stated.recipe, cpu, torch.float32)
    unfold(network, model, (x for x, *_ in islice(feed.training(0), BATCHES)), stated.recipe.timesteps)
    for name in ("environment.json", "metrics.jsonl"):
        shutil.copyfile(options.kept / name, run.folder / name)
    checkpoint.save(run.checkpoints, run.rows()[-1]["step"], {"weights": model.state_dict()}, {})
    run.begun()
    print(f"unfolded into {run.folder}")


if __name__ == "__main__":
    main()
