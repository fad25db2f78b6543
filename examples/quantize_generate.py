"""Quantize the weights of a small Llama to four or eight bits, and generate text with `generate()`.

    python quantize_generate.py                 # int8 weights
    python quantize_generate.py --bits 4
    python quantize_generate.py --device cpu    # the model as it was, to compare

Wants `torch-pjrt-quant` and `torch-pjrt-ecosystem[transformers]`.
"""

import argparse

import torch

from finetune_trainer import build_model, sequences


def train(model: torch.nn.Module, device: str, steps: int) -> None:
    """Enough for the model to know how to count."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = torch.stack([row["input_ids"] for row in sequences(512)])
    for step in range(steps):
        words = rows[step * 32 % 512 :][:32].to(device)
        loss = model(input_ids=words, attention_mask=None, labels=words).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["pjrt", "cpu"], default="pjrt")
    parser.add_argument("--bits", type=int, choices=[4, 8], default=8)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()

    model = build_model().to(options.device)
    train(model, options.device, options.steps)
    model.eval()
    said = "as it was"
    if options.device == "pjrt":
        from torch_pjrt_quant import Int4, Int8, quantize_

        quantize_(model, Int8() if options.bits == 8 else Int4(group_size=32))
        said = f"with weights of {options.bits} bits"
    prompt = torch.tensor([[5, 7, 9, 11], [1, 2, 3, 4]], device=options.device)
    mask = torch.ones_like(prompt)
    tokens = model.generate(
        input_ids=prompt, attention_mask=mask, max_new_tokens=6, do_sample=False
    )
    print(f"on {options.device}, {said}")
    for row in tokens.tolist():
        print(*row[:4], "goes on with", *row[4:])


if __name__ == "__main__":
    main()
