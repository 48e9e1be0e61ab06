"""Purposes of a launch: measure a cell, check its strategy (gate), or profile it."""
