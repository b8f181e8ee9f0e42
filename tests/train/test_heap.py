import subprocess
import sys

import pytest

_SCRIPT = """
import resource, sys, torch
from rheobase.train.heap import keep_freed_memory
if "keep" in sys.argv:
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(20):
    if step == 10:
        before = faults()
    torch.zeros(2**24)
print(faults() - before)
"""


def _faults(*arguments: str) -> int:
    """Page faults of ten tensors of 2**14 pages, each freed at once, after ten such tensors."""
    return int(subprocess.check_output([sys.executable, "-c", _SCRIPT, *arguments], text=True))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library's heap")
def test_freed_memory_is_used_again() -> None:
    assert _faults() > 9 * 2**14
    assert _faults("keep") < 2**14
