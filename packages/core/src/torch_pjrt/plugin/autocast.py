"""What `torch.autocast("pjrt")` casts: four lists of operators, which a device may replace by its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

from torch_pjrt.errors import PluginError


@dataclass(frozen=True, slots=True)
class AutocastRules:
    """Operators by what happens to their floating inputs within `torch.autocast`; others run as they are.

    An operator is named as in PyTorch's schemas: `mm`, `conv_transpose2d.input`. float64 is never cast.
    One that this PyTorch does not have is passed over. One in two lists is a `PluginError`.

    lower           cast to autocast's dtype (bfloat16 unless the user says otherwise).
    float32         cast to float32.
    float32_result  run as they are, with `dtype=torch.float32` unless the call gives a dtype.
    widest          cast to float32 if one of them is float32, else to autocast's dtype.

        >>> rules = AutocastRules.of(lower="mm linear", float32="exp")
        >>> sorted(rules.lower)
        ['linear', 'mm']
    """

    lower: frozenset[str] = frozenset()
    float32: frozenset[str] = frozenset()
    float32_result: frozenset[str] = frozenset()
    widest: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for what, name in self.rows():
            if (first := seen.setdefault(name, what)) != what:
                raise PluginError(
                    f"The autocast rules have the operator `{name}` twice.",
                    saw=f"`{first}` and `{what}`",
                )

    @classmethod
    def of(cls, **lists: str) -> Self:
        """The rules whose lists are the words of these texts."""
        return cls(**{name: frozenset(text.split()) for name, text in lists.items()})

    def rows(self) -> Iterator[tuple[str, str]]:
        """Each operator with the name of its list."""
        for f in fields(self):
            for name in sorted(getattr(self, f.name)):
                yield f.name, name


# As PyTorch's accelerators (CUDA, XPU, MTIA) do. But `binary_cross_entropy` runs in float32, where they
# refuse it; and recurrent layers are named here, which they cast behind another operator.
ACCELERATOR = AutocastRules.of(
    lower="""
        _convolution _convolution.deprecated conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding
        conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution
        addbmm addmm addmv addr baddbmm bmm chain_matmul einsum linalg_multi_dot linalg_vecdot linear
        matmul mm mv prelu
        gru.data gru.input lstm.data lstm.input rnn_relu.data rnn_relu.input rnn_tanh.data rnn_tanh.input
        _thnn_fused_gru_cell _thnn_fused_lstm_cell gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell
        _scaled_dot_product_flash_attention _transformer_encoder_layer_fwd scaled_dot_product_attention
        """,
    float32="""
        acos asin cosh erfinv exp expm1 log log10 log1p log2 pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor
        reciprocal rsqrt sinh softplus tan
        group_norm layer_norm native_layer_norm rms_norm
        cosine_similarity dist frobenius_norm.dim logsumexp nuclear_norm nuclear_norm.dim pdist cdist renorm
        binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss hinge_embedding_loss
        huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
        nll_loss nll_loss2d poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss
        _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
        _upsample_nearest_exact3d upsample_bicubic2d upsample_bilinear2d upsample_linear1d
        upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
        """,
    float32_result="""
        cumprod cumsum linalg_matrix_norm linalg_matrix_norm.str_ord linalg_vector_norm log_softmax.int
        norm.Scalar norm.ScalarOpt_dim prod prod.dim_int softmax.int sum sum.dim_IntList
        """,
    widest="""
        addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot
        """,
)
