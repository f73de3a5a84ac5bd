"""Readers of the files that publishers ship, and of compact sheets; one format a file."""
