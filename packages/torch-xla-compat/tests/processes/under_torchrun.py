"""A script that torchrun starts."""

import two_processes

import torch_xla

if __name__ == "__main__":
    torch_xla.launch(two_processes.data_parallel)
