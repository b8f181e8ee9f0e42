"""What this machine's CPU does fast. Nothing is timed, so a run gives the same bits again."""

from pathlib import Path

from torch.backends.cpu import get_cpu_capability

_ABOUT = Path("/proc/cpuinfo")
_ZEN_4 = {"vendor_id": "AuthenticAMD", "cpu family": "25"}


def multiplies_512_bits() -> bool:
    """Return whether the CPU multiplies 512 bits at once. Zen 4 has AVX-512, but computes it in two halves."""
    return get_cpu_capability() == "AVX512" and not _first_core().items() >= _ZEN_4.items()


def has_bf16() -> bool:
    """Return whether the CPU has instructions for bf16. Without them, torch takes many times as long as in float32."""
    core = _first_core()
    on_arm = "bf16" in core.get("Features", "").split()
    return on_arm or (get_cpu_capability() == "AVX512" and "avx512_bf16" in core.get("flags", "").split())


def _first_core() -> dict[str, str]:
    """Return what Linux says about the first core; nothing on other systems."""
    lines = _ABOUT.read_text().partition("\n\n")[0].splitlines() if _ABOUT.exists() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
