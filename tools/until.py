"""Train until a run has finished some of its epochs, then stop it, so that it can be forked.

python -m tools.until 86 runs/t2 rheobase train cifar10_resnet19_t2 --data DATA --out runs/t2 --continue

The command gets SIGINT in the middle of the next epoch and saves a checkpoint. If the run has got that far already, the
command is not started. The exit code is 0 if the run has got that far.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

INTO_EPOCH = 1.0  # seconds; between two epochs there would be nothing new to save


def train_until(epochs: int, run: Path, command: list[str]) -> bool:
    """Run the command until `run` has finished this many epochs. Return whether it has."""
    metrics = run / "metrics.jsonl"

    def reached() -> bool:
        return metrics.exists() and len(metrics.read_text().splitlines()) >= epochs

    if not reached():
        process = subprocess.Popen(command)
        try:
            while process.poll() is None and not reached():
                time.sleep(0.1)
            time.sleep(0 if process.poll() is not None else INTO_EPOCH)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        finally:  # Ctrl-C reaches the command too
            process.wait()
    return reached()


if __name__ == "__main__":
    sys.exit(not train_until(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
