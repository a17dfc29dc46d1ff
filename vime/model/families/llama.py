"""Llama 3 (arXiv 2407.21783): scaled rotary embeddings from 3.1 on."""

from vime.model.families import ModelFamily

FAMILY = ModelFamily(
    config_class="LlamaConfig",
    serves_vocabulary=True,
    rope_theta=500_000.0,
    test_shape={
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    },
)
