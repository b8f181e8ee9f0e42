"""What a CPU does fast follows from the vector instructions that torch uses and from what Linux says about the CPU."""

from pathlib import Path

import pytest

from rheobase.kernels import processor


@pytest.mark.parametrize(
    ("capability", "cpu", "multiplies", "bf16"),
    [
        ("AVX2", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t\t: fpu", False, False),
        ("AVX512", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t\t: fpu", True, False),
        ("AVX512", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t\t: fpu avx512_bf16 vme", True, True),
        ("AVX512", "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: avx512_bf16", False, True),
        ("AVX512", "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nflags\t\t: avx512_bf16", True, True),
        ("AVX2", "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nflags\t\t: avx512_bf16", False, False),
        ("SVE256", "BogoMIPS\t: 2100.00\nFeatures\t: fp asimd sve i8mm bf16 dgh", False, True),
        ("DEFAULT", "BogoMIPS\t: 2100.00\nFeatures\t: fp asimd", False, False),
        ("AVX512", None, True, False),
        ("DEFAULT", None, False, False),
    ],
)
def test_what_a_cpu_does_fast(
    capability: str, cpu: str | None, multiplies: bool, bf16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cpu is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{cpu}\n\nprocessor\t: 1\nflags\t\t: none\n")
    monkeypatch.setattr(processor, "_ABOUT", tmp_path / "cpuinfo")
    monkeypatch.setattr(processor, "get_cpu_capability", lambda: capability)
    assert (processor.multiplies_512_bits(), processor.has_bf16()) == (multiplies, bf16)
