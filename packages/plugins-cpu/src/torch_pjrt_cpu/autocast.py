"""What `torch.autocast("pjrt")` casts on the CPU: PyTorch's own lists for `torch.autocast("cpu")`."""

from __future__ import annotations

from torch_pjrt.plugin import AutocastRules

# `lstm.input` is `mkldnn_rnn_layer` there; the fast path of a transformer's layer meets autocast inside.
RULES = AutocastRules.of(
    lower="""
        _convolution.deprecated conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding
        conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
        _addmm_activation addbmm addmm baddbmm bmm linalg_vecdot linear matmul mm prelu
        _native_multi_head_attention mkldnn_rnn_layer scaled_dot_product_attention
        lstm.input _transformer_encoder_layer_fwd
        """,
    float32="""
        binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss
        ctc_loss.IntList ctc_loss.Tensor hinge_embedding_loss huber_loss kl_div l1_loss
        margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
        multilabel_margin_loss_forward nll_loss nll_loss2d poisson_nll_loss smooth_l1_loss
        soft_margin_loss triplet_margin_loss
        adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d fractional_max_pool2d fractional_max_pool3d
        max_pool3d max_unpool2d max_unpool3d
        reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d
        _grid_sampler_2d_cpu_fallback grid_sampler grid_sampler_2d grid_sampler_3d
        cdist fake_quantize_per_tensor_affine nanquantile nanquantile.scalar polar prod prod.dim_int
        quantile quantile.scalar trace view_as_complex
        fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2
        fft_irfftn fft_rfft fft_rfft2 fft_rfftn stft stft.center
        _lu_with_info cholesky cholesky_inverse cholesky_solve geqrf inverse lu_solve orgqr ormqr pinverse
        qr svd triangular_solve
        linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cond.p_str linalg_eig linalg_eigh
        linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq
        linalg_matrix_rank linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor
        linalg_matrix_rank.tol_tensor linalg_qr linalg_solve linalg_svd linalg_svdvals linalg_tensorinv
        linalg_tensorsolve
        """,
    widest="cat index_copy stack",
)
