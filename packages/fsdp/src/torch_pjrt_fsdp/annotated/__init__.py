"""Models that lie in parts by annotations, for XLA's partitioner: one process drives all chips."""
