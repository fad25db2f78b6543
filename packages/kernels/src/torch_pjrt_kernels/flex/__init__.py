"""Attention whose scores a function changes or hides, in blocks: `flex_attention`, and sequences in a row.

`block.py` has what a block of scores is, `visits.py` which blocks are looked at; `forward.py` and
`backward.py` compute. `mods.py` and `operator.py` stand behind `torch.nn.attention.flex_attention`,
`varlen.py` behind `torch.nn.attention.varlen`.
"""
