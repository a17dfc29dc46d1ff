"""Fields of Megatron-core's configuration that `trainer.megatron_args` may not set, each with the alternative."""

_SETTINGS = {
    "num_layers": "model.num_layers",
    "hidden_size": "model.hidden_size",
    "num_attention_heads": "model.num_attention_heads",
    "num_query_groups": "model.num_key_value_heads",
    "kv_channels": "model.head_dim",
    "ffn_hidden_size": "model.intermediate_size",
    "num_moe_experts": "model.num_experts",
    "attention_output_gate": "model.family",
    "experimental_attention_variant": "model.family",
    "linear_attention_freq": "model.linear_attention.full_every",
    "linear_num_key_heads": "model.linear_attention.num_key_heads",
    "linear_num_value_heads": "model.linear_attention.num_value_heads",
    "linear_key_head_dim": "model.linear_attention.key_head_dim",
    "linear_value_head_dim": "model.linear_attention.value_head_dim",
    "linear_conv_kernel_dim": "model.linear_attention.conv_kernel",
    "params_dtype": "trainer.precision",
    "bf16": "trainer.precision",
    "tensor_model_parallel_size": "trainer.tensor_parallel_size",
    "pipeline_model_parallel_size": "trainer.pipeline_parallel_size",
    "virtual_pipeline_model_parallel_size": "trainer.virtual_pipeline_parallel_size",
    "context_parallel_size": "trainer.context_parallel_size",
    "expert_model_parallel_size": "trainer.expert_parallel_size",
    "sequence_parallel": "trainer.sequence_parallel",
    "moe_enable_routing_replay": "trainer.routing_replay",
}
_ENGINE = "it needs Transformer Engine, which the trainer does not use; remove it"
_BALANCE = "its gradient would be as many times too large as a rank has tokens; remove it"
REFUSED_ARGS = {name: f"vime sets this from {key}: change that" for name, key in _SETTINGS.items()} | {
    "expert_tensor_parallel_size": "experts are dealt out whole: set trainer.expert_parallel_size",
    "calculate_per_token_loss": "the loss is a weighted sum over tokens; remove it",
    "variable_seq_lengths": "rows differ in length; remove it",
    "batch_p2p_comm": "in batches, an interleaved pipeline takes activations for gradients; remove it",
    "hidden_dropout": "with dropout the logprobs of a sample are random; remove it",
    "attention_dropout": "with dropout the logprobs of a sample are random; remove it",
    "moe_router_load_balancing_type": _BALANCE,
    "moe_aux_loss_coeff": _BALANCE,
    "moe_z_loss_coeff": _BALANCE,
    "apply_rope_fusion": _ENGINE,
    "fp8": _ENGINE,
    "fp4": _ENGINE,
    "moe_grouped_gemm": _ENGINE,
    "moe_permute_fusion": _ENGINE,
    "moe_router_fusion": _ENGINE,
    "use_te_rng_tracker": _ENGINE,
}
"""Fields that another setting decides, that would silently change the objective, or that need missing packages."""
