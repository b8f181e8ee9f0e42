"""Make pages and plots from plain data."""
