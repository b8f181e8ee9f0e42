"""Pages and pictures from plain data."""
