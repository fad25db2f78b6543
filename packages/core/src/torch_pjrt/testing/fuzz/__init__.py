"""Random programs on a device and on the CPU: `python -m torch_pjrt.testing.fuzz`.

What a program may call is what PyTorch documents (`calls.py`), with arguments that are mostly right and at
times wrong (`arguments.py`); in which way it is run is its *kind* (`kinds.py`). Afterwards every tensor of
the program is compared (`judge.py`).
"""
