"""Which of PyTorch's tests fail, and why. Strict: a test that passes has no row, one that fails has one.

notyet    we mean to do it
upstream  waits for a change in JAX, XLA or PyTorch
never     has no meaning on an accelerator
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gap:
    """Tests that fail: `tests` are patterns (`file::Class.name`, with `*`), as words."""

    tests: str
    status: str
    why: str

    @property
    def patterns(self) -> list[str]:
        return self.tests.split()


GAPS: tuple[Gap, ...] = (
    Gap(
        "modules::*.test_forward_and_gradients_nn_CTCLoss_pjrt_float32",
        "notyet",
        "fifty steps of sums of exponentials, each rounded in float32: up to 2e-4 apart",
    ),
    Gap(
        "test_shape_ops::*.test_flip_pjrt_float32 test_view_ops::*.test_flatten_pjrt "
        "test_view_ops::*.test_ravel_pjrt",
        "never",
        "PyTorch's quantized dtypes (quint8, qint8, qint32) have no XLA equivalent",
    ),
    Gap(
        "test_indexing::*.test_trivial_fancy_out_of_bounds_pjrt "
        "test_segment_reductions::*.test_unsafe_flag_pjrt_* "
        "test_tensor_creation_ops::*.test_normal_std_error_pjrt "
        "test_linalg::*.test_eig_with_nan_pjrt_*",
        "never",
        "values on the device are looked at while it runs: an error comes with a later call or read",
    ),
    Gap(
        "test_tensor_creation_ops::*.test_alias_from_dlpack_pjrt_* "
        "test_tensor_creation_ops::*.test_copy_from_dlpack_pjrt_*",
        "never",
        "a capsule says where the memory is, which for the CPU device makes a tensor of PyTorch's CPU",
    ),
    Gap(
        "test_tensor_creation_ops::*.test_rand_like_pjrt test_tensor_creation_ops::*.test_randn_like_pjrt "
        "test_tensor_creation_ops::*.test_randint_like_pjrt",
        "never",
        "torch.Generator('pjrt') is refused: a Python backend can make none (docs/random-numbers.md)",
    ),
    Gap(
        "test_dlpack::*.test_max_version_pjrt",
        "upstream",
        "JAX exports capsules of DLPack 0.8, whatever version is asked for",
    ),
    Gap(
        "test_embedding::*.test_embedding_backward_pjrt_float64",
        "never",
        "a gradient that is sparse is refused on a device (docs/sparse-tensors.md)",
    ),
    Gap(
        "test_spectral_ops::*.test_fft_type_promotion_pjrt_float16 "
        "test_spectral_ops::*.test_fft_type_promotion_pjrt_complex32 "
        "test_spectral_ops::*.test_fft_round_trip_pjrt_float16 "
        "test_spectral_ops::*.test_fft_round_trip_pjrt_complex32 "
        "test_spectral_ops::*.test_fftn_noop_transform_pjrt_float16",
        "never",
        "FFTs of halves, which cuFFT has, and the CPU refuses in the same words",
    ),
    Gap(
        "test_autograd::*.test_autograd_multiple_dispatch_registrations_pjrt "
        "test_autograd::*.test_autograd_composite_implicit_and_dispatch_registration_pjrt",
        "never",
        "nested tensors of strided layout are refused (docs/sparse-tensors.md)",
    ),
    Gap(
        "test_transformers::*.test_scaled_dot_product_attention_3D_input_dim_2D_attn_mask_dropout_p_*_pjrt",
        "never",
        "the mask is drawn by chance: a row of it that hides all keys is nan in the test's reference alone",
    ),
    Gap(
        "test_sort_and_select::*.test_stable_sort_against_numpy_pjrt_*",
        "never",
        "an index on the CPU for a tensor on the device; where the device is CUDA, the test ends before",
    ),
)
