"""Data that goes on exactly where it stopped, for any number of workers and processes."""
