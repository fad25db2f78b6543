"""The files of tests: each has a class `Tests`, whose tests run in every process of a run."""
