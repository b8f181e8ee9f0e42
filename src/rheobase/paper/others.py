"""Other systems in the paper's Tables 1 to 3, as printed there. The paper's own rows are in `paper.training`."""

from typing import NamedTuple


class Other(NamedTuple):
    """A system that the paper compares with."""

    source: str
    method: str
    accuracy: float
    """Top-1, in percent."""
    network: str | None = None
    timesteps: int | None = None
    """Tables 2 and 3 state neither network nor timesteps."""


OTHERS: dict[str, dict[str, list[Other]]] = {  # by table and dataset
    "table1": {
        "cifar10": [
            Other("Sengupta et al. 2019", "ANN-SNN", 91.55, "VGG-16", 2500),
            Other("Hu et al. 2018", "ANN-SNN", 92.37, "ResNet-44", 350),
            Other("Rathi et al. 2020", "hybrid training", 92.02, "VGG-16", 200),
            Other("Lee et al. 2020", "spike-based BP", 90.95, "ResNet-11", 100),
            Other("Wu et al. 2019", "STBP", 90.53, "5 conv, 2 fc", 12),
        ],
        "imagenet": [
            Other("Sengupta et al. 2019", "ANN-SNN", 69.96, "VGG-16", 2500),
            Other("Sengupta et al. 2019", "ANN-SNN", 65.47, "ResNet-34", 2500),
            Other("Han et al. 2020", "ANN-SNN", 66.61, "ResNet-34", 1024),
            Other("Hu et al. 2018", "ANN-SNN", 71.61, "ResNet-34", 768),
            Other("Rathi et al. 2020", "hybrid training", 65.19, "VGG-16", 250),
            Other("Rathi et al. 2020", "hybrid training", 61.48, "ResNet-34", 250),
        ],
    },
    "table2": {
        "dvsgesture": [
            Other("He et al. 2020", "STBP", 93.40),
            Other("Shrestha & Orchard 2018", "SLAYER", 93.64),
            Other("Kugele et al. 2020", "ANN", 95.68),
            Other("Amir et al. 2017", "BPTT", 94.59),
        ],
    },
    "table3": {
        "dvscifar10": [
            Other("Sironi et al. 2018", "HATS", 52.40),
            Other("Kugele et al. 2020", "streaming rollout ANN", 66.75),
            Other("Ramesh et al. 2019", "DART", 65.78),
            Other("Wu et al. 2019", "STBP", 60.5),
        ],
    },
}


def sentences(table: str) -> list[str]:
    """Return the other systems of a table, as one sentence per dataset."""
    return [
        f"Others on {data}, as the paper prints them: {'; '.join(map(_told, others))}."
        for data, others in OTHERS[table].items()
    ]


def _told(other: Other) -> str:
    where = "" if other.network is None else f", {other.network}, T = {other.timesteps}"
    return f"{other.method}{where}: {other.accuracy:.2f} % ({other.source})"


def rows(table: str) -> list[dict[str, str | float | None]]:
    """Return the other systems of a table as plain data."""
    return [{"data": data, **other._asdict()} for data, others in OTHERS[table].items() for other in others]
