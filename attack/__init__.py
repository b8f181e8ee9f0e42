"""Attacks on the program, with counts of how they ended.

A part is a module here with a function `attack(full, seed)`. `python -m attack` runs the parts that it lists.
"""
