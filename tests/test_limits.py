import pytest

from rheobase import limits


def test_a_file_may_take_half_a_gib_or_a_multiple_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(limits.VARIABLE, raising=False)
    assert limits.allowed(7) == 512 * 2**20
    assert limits.allowed(2**30) == 64 * 2**30
    limits.check(512 * 2**20, 7, "it")
    with pytest.raises(
        ValueError, match=r"^it would take 513 MiB of memory, .* may take 512; .* RHEOBASE_FILE_MEMORY=513$"
    ):
        limits.check(512 * 2**20 + 1, 7, "it")
    with pytest.raises(ValueError, match="would take"):
        limits.check(10**400, 7, "it")


def test_the_limit_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.VARIABLE, "3")
    assert limits.allowed(7) == 3 * 2**20
    for text in ("x", "-1", "1.5", "9" * 30):
        monkeypatch.setenv(limits.VARIABLE, text)
        with pytest.raises(ValueError, match=f"RHEOBASE_FILE_MEMORY: expected a whole number of MiB, got '{text}'"):
            limits.allowed(7)
