"""Analyse a network: isometry, distributions, gradients, activity, operations. All functions return plain data."""
