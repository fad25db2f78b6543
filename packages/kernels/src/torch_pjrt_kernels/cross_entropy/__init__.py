"""Cross-entropy behind a linear layer, without ever making all logits.

`reference.py` says what it is, `chunked.py` computes it some classes at a time, `operator.py` is the
function.
"""
