"""Train deep spiking neural networks directly (STBP-tdBN)."""

__version__ = "0.2.0"
