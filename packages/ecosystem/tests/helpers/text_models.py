"""Small models that generate, one of each architecture, by the name of its class."""

from __future__ import annotations

from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": 1,
}
_GROUPED = {**SIZES, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 8}
_NO_EXPERTS_LOST = {"num_experts_per_tok": 2}
_ENDS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 1}
_GPT: dict[str, Any] = {
    "vocab_size": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    **_ENDS,
}
_T5: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    **_ENDS,
}
BART: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
    **_ENDS,
}

# class -> (configuration, what it is made of)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "LlamaForCausalLM": ("LlamaConfig", _GROUPED),
    "MistralForCausalLM": ("MistralConfig", {**_GROUPED, "sliding_window": 8}),
    "Qwen2ForCausalLM": ("Qwen2Config", _GROUPED),
    "Qwen3ForCausalLM": ("Qwen3Config", _HEADS),
    "Gemma2ForCausalLM": ("Gemma2Config", {**_HEADS, "sliding_window": 8}),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", {**_HEADS, "sliding_window": 8}),
    "GPT2LMHeadModel": ("GPT2Config", _GPT),
    "OPTForCausalLM": (
        "OPTConfig",
        {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32},
    ),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SIZES),
    "GPTJForCausalLM": ("GPTJConfig", {**_GPT, "rotary_dim": 4}),
    "PhiForCausalLM": ("PhiConfig", SIZES),
    "Phi3ForCausalLM": ("Phi3Config", _GROUPED),
    "GemmaForCausalLM": ("GemmaConfig", _HEADS),
    "OlmoForCausalLM": ("OlmoConfig", _GROUPED),
    "Olmo2ForCausalLM": ("Olmo2Config", _GROUPED),
    "StableLmForCausalLM": ("StableLmConfig", _GROUPED),
    "Starcoder2ForCausalLM": ("Starcoder2Config", _GROUPED),
    "CohereForCausalLM": ("CohereConfig", _GROUPED),
    "GraniteForCausalLM": ("GraniteConfig", _GROUPED),
    "SmolLM3ForCausalLM": ("SmolLM3Config", _GROUPED),
    "FalconForCausalLM": (
        "FalconConfig",
        {**SIZES, "new_decoder_architecture": False, "multi_query": True},
    ),
    "BloomForCausalLM": (
        "BloomConfig",
        {**_ENDS, "vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "MptForCausalLM": (
        "MptConfig",
        {**_ENDS, "vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    ),
    "MixtralForCausalLM": (
        "MixtralConfig",
        {**_GROUPED, "num_local_experts": 4, **_NO_EXPERTS_LOST},
    ),
    "Qwen3MoeForCausalLM": (
        "Qwen3MoeConfig",
        {**_HEADS, "num_experts": 4, "moe_intermediate_size": 32, **_NO_EXPERTS_LOST},
    ),
    "MambaForCausalLM": (
        "MambaConfig",
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **_ENDS},
    ),
    "T5ForConditionalGeneration": ("T5Config", _T5),
    "MT5ForConditionalGeneration": ("MT5Config", _T5),
    "BartForConditionalGeneration": ("BartConfig", BART),
    "MarianMTModel": ("MarianConfig", BART),
    "PegasusForConditionalGeneration": ("PegasusConfig", BART),
}

_MOE: dict[str, Any] = {
    **_HEADS,
    "num_hidden_layers": 1,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_LATENT: dict[str, Any] = {
    **_MOE,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 0,
    "n_group": 2,
    "topk_group": 1,
}
_DBRX: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 1,
    "max_seq_len": 64,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    "ffn_config": {
        "ffn_hidden_size": 32,
        "hidden_size": 32,
        "moe_num_experts": 4,
        "moe_top_k": 2,
    },
    **_ENDS,
}
# Layers of experts, class -> (configuration, what it is made of)
EXPERTS: dict[str, tuple[str, dict[str, Any]]] = {
    "MixtralForCausalLM": MODELS["MixtralForCausalLM"],
    "DbrxForCausalLM": ("DbrxConfig", _DBRX),
    "JetMoeForCausalLM": ("JetMoeConfig", {**_MOE, "kv_channels": 8}),
    "Qwen2MoeForCausalLM": (
        "Qwen2MoeConfig",
        {**_MOE, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1},
    ),
    "Qwen3MoeForCausalLM": MODELS["Qwen3MoeForCausalLM"],
    "OlmoeForCausalLM": ("OlmoeConfig", _MOE),
    "PhimoeForCausalLM": ("PhimoeConfig", _MOE),
    "GraniteMoeForCausalLM": ("GraniteMoeConfig", _MOE),
    "DeepseekV2ForCausalLM": ("DeepseekV2Config", _LATENT),
    "DeepseekV3ForCausalLM": ("DeepseekV3Config", _LATENT),
    "GptOssForCausalLM": ("GptOssConfig", {**_MOE, "sliding_window": 8}),
    "Dots1ForCausalLM": (
        "Dots1Config",
        {**_MOE, "n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    ),
    "Glm4MoeForCausalLM": (
        "Glm4MoeConfig",
        {**_MOE, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0},
    ),
    "Ernie4_5_MoeForCausalLM": (
        "Ernie4_5_MoeConfig",
        {**_MOE, "moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 0},
    ),
    "HunYuanMoEV1ForCausalLM": ("HunYuanMoEV1Config", {**_MOE, "moe_topk": 2}),
    "LongcatFlashForCausalLM": (
        "LongcatFlashConfig",
        {
            **_LATENT,
            "num_hidden_layers": 2,
            "num_layers": 1,
            "ffn_hidden_size": 64,
            "expert_ffn_hidden_size": 32,
            "zero_expert_num": 2,
            "moe_topk": 2,
        },
    ),
    "SwitchTransformersForConditionalGeneration": (
        "SwitchTransformersConfig",
        {
            **_T5,
            "num_decoder_layers": 2,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "num_experts": 4,
            "expert_capacity": 4,
        },
    ),
    "NllbMoeForConditionalGeneration": (
        "NllbMoeConfig",
        {
            **BART,
            "num_experts": 4,
            "encoder_sparse_step": 2,
            "decoder_sparse_step": 2,
        },
    ),
}


def model(name: str) -> Any:
    """The same parameters each time; on the CPU."""
    configuration, given = MODELS[name] if name in MODELS else EXPERTS[name]
    torch.manual_seed(0)
    made = getattr(transformers, name)(getattr(transformers, configuration)(**given)).eval()
    for parameter in made.parameters():  # wide enough that the tokens differ
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return made


def prompt(n: int, rows: int = 1, pads: int = 0) -> dict[str, torch.Tensor]:
    """`n` tokens, of which the first `pads` of the first row are padding."""
    ids = torch.randint(3, 64, (rows, n), generator=torch.Generator().manual_seed(n))
    mask = torch.ones_like(ids)
    ids[0, :pads], mask[0, :pads] = 1, 0
    return {"input_ids": ids, "attention_mask": mask}
