"""The targets of the attack: files that the program reads, how to damage them, and how to read them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from attack.mutations import Mutation, damaged
from rheobase.extras import installed


@dataclass(frozen=True)
class Target:
    """A kind of files, of which every case damages one."""

    name: str
    files: Callable[[], Mapping[str, bytes]]
    """Returns the undamaged files, by their names in a folder."""
    read: Callable[[Path], object]
    """Reads the folder, as the program does."""
    structure: Mapping[str, Mutation] = field(default_factory=dict)
    """Damage by suffix that keeps the structure of the format, such as checksums and lengths."""
    repair: Callable[[Path], None] | None = None
    """Corrects the checksums in the folder after a file was damaged."""
    needs: tuple[str, ...] = ()
    """Packages that must be installed."""

    def possible(self) -> bool:
        """Return whether all packages are installed."""
        return all(map(installed, self.needs))

    def case(self, originals: Mapping[str, bytes], random: Random) -> tuple[str, bytes]:
        """Return the name and content of a damaged file."""
        name = random.choice(sorted(originals))
        own = self.structure.get(Path(name).suffix)
        mutation = own if own is not None and random.random() < 0.6 else damaged
        return name, mutation(originals[name], random)


def targets() -> list[Target]:
    """Return all targets whose packages are installed."""
    from attack.targets import archives, arrays, conversion, networks, pictures, recordings, runs, sets

    modules = (networks, runs, conversion, arrays, recordings, pictures, archives, sets)
    return [target for module in modules for target in module.TARGETS if target.possible()]
