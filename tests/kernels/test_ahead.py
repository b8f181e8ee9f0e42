"""Kernels that are compiled before their first use."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch


def test_all_kernels_are_compiled_and_none_runs(tmp_path: Path) -> None:
    pytest.importorskip("triton", "3.6", reason="needs Triton 3.6: install rheobase[kernels]")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("compile_ahead.py")
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    expected = Counter({"forward": 2, "backward": 4, "join_sums": 2, "statistics": 1, "join_statistics": 1})
    expected |= {"join_members": 1, "unpack": 1}
    for what in ("launcher", "loaded"):  # each kernel once, though the calls came twice and one with an error before
        assert Counter(line.split()[1] for line in run.stdout.splitlines() if line.startswith(what)) == Counter(
            {f"{name}_kernel": number for name, number in expected.items()}
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nothing_is_launched_and_a_launch_compiles_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    from rheobase.kernels import triton as launchers
    from rheobase.kernels.launching import compiled_ahead

    asked: list[str] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **of: asked.append(of["fn"].name))
    spikes, bits = torch.ones(1040, device="cuda"), torch.zeros(130, dtype=torch.uint8, device="cuda")
    with compiled_ahead():
        launchers.pack(spikes, bits)
    assert not bits.any()
    compiled = len(asked)
    launchers.pack(spikes, bits)
    assert (bits == 255).all()
    assert len(asked) == compiled
