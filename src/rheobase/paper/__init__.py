"""Reproduce the figures, tables and theorems of the paper. Each is a function that returns a `Result`."""
