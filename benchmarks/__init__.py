"""Measurements: a training step against its peers (`benchmarks.step`), the fused soma alone (`benchmarks.soma`)."""
