"""A script that torchrun starts."""

import cases

import torch_xla

if __name__ == "__main__":
    torch_xla.launch(cases.data_parallel)
