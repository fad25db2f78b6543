"""Transformers: what the rows `transformers.*` of the table do."""
