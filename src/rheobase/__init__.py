"""Train deep spiking neural networks directly (STBP-tdBN)."""

__version__ = "0.1.0"
