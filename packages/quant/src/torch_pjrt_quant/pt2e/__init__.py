"""PyTorch's quantization of exported programs (torchao's `pt2e`): a quantizer, rules, integer products."""
