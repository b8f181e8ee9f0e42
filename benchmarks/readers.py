"""Compare reading of every format with tonic or NumPy, on one core, and check for equal results.

    python -m benchmarks.readers

A synthetic recording is written in every format, mostly by faery's encoders. tonic reads AEDAT 4 with the package
aedat, and Prophesee's formats with expelliarmus. Times are measured as in `benchmarks.events`.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks import events
from benchmarks.events import columns_differ, compare, peer
from rheobase.data.events import Events, read
from rheobase.extras import need
from rheobase.train.record import write_result
from tests.data import recordings as writers

OUT = Path("results/readers.json")
EVENTS, SECONDS_LONG = 1_000_000, 2  # size of the recording
HAND_MADE: dict[str, tuple[Callable[[Events], bytes], tuple[int, int]]] = {  # writer and sensor
    "AEDAT 2.0.aedat": (writers.aedat_2, (128, 128)),
    "AEDAT 3.1.aedat": (partial(writers.aedat_3, per_packet=4096), (128, 128)),
    "N-MNIST.bin": (writers.nmnist, (34, 34)),
    "compressed.npz": (writers.npz, (640, 480)),
}
BY_FAERY: dict[str, dict[str, Any]] = {  # options of faery's encoders
    "AEDAT 4, LZ4.aedat4": {},
    "AEDAT 4, Zstandard.aedat4": {"compression": ("zstd", 3)},
    "DAT.dat": {"zero_t0": False},
    "EVT 2.0.raw": {"version": "evt2", "zero_t0": False},
    "EVT 3.0.raw": {"version": "evt3", "zero_t0": False},
    "CSV.csv": {},
}
ENCODINGS = {"DAT": "dat", "EVT 2.0": "evt2", "EVT 3.0": "evt3"}  # for expelliarmus


def contenders(path: Path) -> dict[str, events.Contender]:
    """Return functions that read this file."""
    if path.suffix == ".aedat":
        return events.readers(path)
    found: dict[str, events.Contender] = {"rheobase": lambda: read(path)}
    if path.suffix == ".csv":
        found["numpy.loadtxt"] = lambda: _rows(np.loadtxt(path, np.int64, delimiter=",", skiprows=1))
    elif path.suffix == ".npz":
        found["numpy.load"] = lambda: dict(np.load(path))
    elif path.stem in ENCODINGS:
        if wizards := peer("expelliarmus"):
            found["tonic (expelliarmus)"] = lambda: wizards.Wizard(encoding=ENCODINGS[path.stem]).read(path)
    elif tonic := peer("tonic.io"):
        if path.suffix == ".bin":
            found["tonic"] = lambda: tonic.read_mnist_file(str(path), tonic.events_struct)
        elif peer("aedat"):
            found["tonic"] = lambda: tonic.read_aedat4(str(path))
    return found


def made_up_files(folder: Path) -> list[Path]:
    """Write the recording in every format, and check that it is read back as it was written."""
    faery = need("faery", "this benchmark")
    paths = [folder / name for name in (*HAND_MADE, *BY_FAERY)]
    for path in paths:
        write, sensor = HAND_MADE.get(path.name, (None, (640, 480)))
        recording = writers.recording(0, EVENTS, *sensor, until=1_000_000 * SECONDS_LONG)
        if write is not None:
            path.write_bytes(write(recording))
        else:
            rows = np.zeros(EVENTS, faery.EVENTS_DTYPE)
            for name in "txyp":
                rows[name] = getattr(recording, name)
            faery.events_stream_from_array(rows, sensor).to_file(path, **BY_FAERY[path.name])
        assert not columns_differ(read(path), recording), path.name
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description="Time reading of every format.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with TemporaryDirectory() as folder:
        for path in made_up_files(Path(folder)):
            size = path.stat().st_size
            print(f"{path.stem}: {EVENTS} events, {size / EVENTS:.1f} bytes each")
            found = compare(contenders(path), EVENTS, arguments.rounds, columns_differ)
            rows.append({"name": path.stem, "events": EVENTS, "bytes": size, "reading": found})
    write_result(arguments.out, {"load": os.getloadavg()[0], "formats": rows}, seed=0)


def _rows(table: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip("txyp", table.T, strict=True))


if __name__ == "__main__":
    main()
