"""Accelerate: what the rows `accelerate.*` of the table do."""
