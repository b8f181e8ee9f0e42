"""What is attacked: files that the program reads, how each of them is damaged, and how it is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from attack.mutations import Mutation, damaged
from rheobase.extras import installed


@dataclass(frozen=True)
class Target:
    """Whole files, of which every case damages one: their content by their names inside a folder of their own."""

    name: str
    files: Callable[[], Mapping[str, bytes]]
    read: Callable[[Path], object]
    """Reads what is in the folder, as the program does."""
    structure: Mapping[str, Mutation] = field(default_factory=dict)
    """Damage that keeps a file of that suffix whole as its format has it: checksums and lengths agree."""
    repair: Callable[[Path], None] | None = None
    """Makes the checksums of the folder agree again after a file was damaged."""
    needs: tuple[str, ...] = ()
    """Packages."""

    def possible(self) -> bool:
        return all(map(installed, self.needs))

    def case(self, originals: Mapping[str, bytes], random: Random) -> tuple[str, bytes]:
        """The name and the content of a damaged file."""
        name = random.choice(sorted(originals))
        own = self.structure.get(Path(name).suffix)
        mutation = own if own is not None and random.random() < 0.6 else damaged
        return name, mutation(originals[name], random)


def targets() -> list[Target]:
    """All that can be attacked here: a target whose packages are not installed is left out."""
    from attack.targets import archives, arrays, conversion, networks, pictures, recordings, runs, sets

    modules = (networks, runs, conversion, arrays, recordings, pictures, archives, sets)
    return [target for module in modules for target in module.TARGETS if target.possible()]
