"""See inside a network: isometry, distributions, gradients, activity, operations. Functions that return plain data."""
