"""The process that fuzzes one kind of file: python -m attack.fuzzed NAME FOLDER INPUTS SEED

The first byte of an input says which file of this kind it is; the rest is its content.
"""

import shutil
import sys
import warnings
from pathlib import Path
from random import Random

import atheris

OURS = ["rheobase", "nir"]
COMPILED = ["rheobase.data.events.compiled", "rheobase.kernels"]  # numba cannot compile code that atheris has changed


def main() -> None:
    name, place, inputs, seed = sys.argv[1:]
    folder, corpus = Path(place) / name.replace("/", "-"), Path(place) / "corpus"
    with atheris.instrument_imports(include=OURS, exclude=COMPILED):
        import torch

        from attack import worker
        from attack.targets import targets

        (target,) = (found for found in targets() if found.name == name)
        originals = target.files()
        worker.write_files(folder, originals)
        target.read(folder)  # readers import much only when they run
    torch.set_num_threads(1)
    names = sorted(originals)
    corpus.mkdir()
    for i, file in enumerate(names):
        (corpus / str(i)).write_bytes(bytes([i]) + originals[file])

    def mutate(data: bytes, size: int, number: int) -> bytes:
        """Mutate like a fuzzer, or like the attack, which knows the structure of files."""
        which, content = data[:1] or b"\0", data[1:]
        own = target.structure.get(Path(names[which[0] % len(names)]).suffix)
        random = Random(number)
        if own is not None and random.random() < 0.3:
            try:
                return (which + own(content, random))[:size]
            except Exception:  # an input that was damaged before may have lost its structure
                pass
        return which + atheris.Mutate(content, size - 1)

    def read(data: bytes) -> None:
        if not data:
            return
        worker.write_files(folder, originals)
        (folder / names[data[0] % len(names)]).write_bytes(data[1:])
        if target.repair:
            target.repair(folder)
        outcome, _ = worker.measured(target, folder)
        if outcome not in worker.GOOD:
            kept = worker.KEPT / f"fuzz-{folder.name}"
            shutil.copytree(folder, kept, dirs_exist_ok=True)
            print(f"broken: {outcome}; its files are in {kept}", file=sys.stderr, flush=True)
            raise AssertionError

    longest = 4 * max(4096, *map(len, originals.values()))
    options = {"runs": inputs, "seed": seed, "max_len": longest, "print_final_stats": 1, "rss_limit_mb": 0}
    words = [f"-{option}={value}" for option, value in options.items()]
    atheris.Setup(["fuzzed", *words, f"-artifact_prefix={place}/", str(corpus)], read, custom_mutator=mutate)
    warnings.simplefilter("ignore")
    atheris.Fuzz()


if __name__ == "__main__":
    main()
