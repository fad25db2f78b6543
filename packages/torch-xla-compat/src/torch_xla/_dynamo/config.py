"""Settings of torch_xla's bridge to `torch.compile`, which mean nothing here."""

skip_input_data_check = False  # inputs of a compiled function may be pending
