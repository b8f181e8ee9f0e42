"""The figures, tables and theorems of the paper, computed anew: each a function that returns a `Result`."""
