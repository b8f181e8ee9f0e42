"""Measurements of time, memory and agreement, such as a training step compared with its peers (`benchmarks.step`)."""
