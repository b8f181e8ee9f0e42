"""A GPU that starts beside other work."""

import subprocess
import sys
import threading

import pytest
import torch

from rheobase.train import waking


def test_a_cpu_needs_no_waking() -> None:
    before = threading.active_count()
    awake = waking.wake(torch.device("cpu"))
    assert threading.active_count() == before
    awake()


def test_what_it_uses_is_there() -> None:
    """On a CPU, in a new process: the operations fit each other, and the kernels' module is imported."""
    pytest.importorskip("triton", reason="needs Triton: install rheobase[kernels]")
    code = (
        "import sys, torch\n"
        "from rheobase.train import waking\n"
        "assert 'rheobase.kernels.triton' not in sys.modules\n"
        "waking.use(torch.device('cpu'))\n"
        "assert 'rheobase.kernels.triton' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_device_that_is_not_there_is_for_others_to_complain_about() -> None:
    waking.use(torch.device("cuda", 99))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_is_awake_afterwards() -> None:
    before = threading.active_count()
    awake = waking.wake(torch.device("cuda"))
    awake()
    assert torch.cuda.is_initialized()
    assert threading.active_count() == before
