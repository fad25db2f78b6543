"""Export a trained classifier of handwritten digits to a folder that runs without PyTorch.

    python export_model.py [--folder model]

Wants `torch-pjrt-quant` and scikit-learn. The folder's `load.py` needs JAX, NumPy and safetensors alone, and
runs the programs on CPU, TPU or GPU, for any size of the batch.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.export import Dim

from torch_pjrt_quant import export
from train_digits import build_model, make_batches, read_digits

RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from load import load
assert "torch" not in sys.modules
np.save(sys.argv[3], load(sys.argv[1])(np.load(sys.argv[2])))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.mkdtemp()) / "model")
    parser.add_argument("--batches", type=int, default=40)
    options = parser.parse_args()

    training, test = read_digits()
    model = build_model().to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _, (images, labels) in zip(range(options.batches), make_batches(training), strict=False):
        loss = torch.nn.functional.cross_entropy(model(images.to("pjrt")), labels.to("pjrt"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model = model.cpu().eval()

    images, labels = test[:100]
    exported = export(model, (images[:2],), dynamic_shapes=({0: Dim("batch", max=1024)},))
    exported.save(options.folder)
    given, found = options.folder.parent / "images.npy", options.folder.parent / "logits.npy"
    np.save(given, images.numpy())
    arguments = [str(path) for path in (options.folder, given, found)]
    subprocess.run([sys.executable, "-c", RUN, *arguments], check=True)

    logits = torch.from_numpy(np.load(found))
    with torch.no_grad():
        difference = (logits - model(images)).abs().max().item()
    right = (logits.argmax(1) == labels).float().mean().item()
    print(f"{options.folder}: {right:.0%} of 100 digits right without PyTorch")
    print(f"logits differ from PyTorch's by at most {difference:.0e}")


if __name__ == "__main__":
    main()
