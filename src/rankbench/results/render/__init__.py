"""Sections become documents, and documents files of every format."""
