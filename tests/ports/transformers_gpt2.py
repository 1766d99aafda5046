"""GPT-2 from transformers: next-token logits, with Conv1D kernels, three of them in c_attn."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers_attention import ACTIVATIONS, ZEROS, sizes

from rosettaformer.ports import CLASSIC


def native(config):
    return GPT2Config(
        vocab_size=config.target_vocabulary,
        n_embd=config.model_width,
        n_layer=config.decoder_layers,
        n_head=config.heads,
        n_inner=config.feed_forward_width,
        n_positions=config.max_positions,
        activation_function=ACTIVATIONS[config.activation],
        layer_norm_epsilon=config.epsilon,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=ZEROS,
    )


class Model(GPT2LMHeadModel):
    def forward(self, source, target, target_mask_bt=None):
        mask = torch.ones_like(target, dtype=torch.bool) if target_mask_bt is None else target_mask_bt
        return super().forward(target, attention_mask=mask.long(), position_ids=self.positions(mask), use_cache=False).logits

    def positions(self, mask):
        first = torch.where(mask.any(1), mask.long().argmax(1), mask.shape[1])
        return (torch.arange(mask.shape[1]) - first[:, None]).clamp(min=0)


framework = "torch"
dtypes = ("float64", "float32")
components = {"transformer": lambda config, dtype: Model(native(config))}
config = CLASSIC | sizes | {
    "encoder_layers": 0, "positions": "learned", "position_offset": 0, "position_start": "first_token",
    "embedding_norm": False, "norm_placement": "pre", "final_norm": True, "scale_embedding": False,
    "share_embeddings": False, "tie_logits": True, "attention_bias": True, "output_bias": False,
    "padding_id": None,
}  # fmt: skip

FUSED = (("query", "0/3 h k"), ("key", "1/3 g k"), ("value", "2/3 g e"))
weights = {
    "embedding": (("table", "weight", "v d"),),
    "position_embedding": (("table", "weight", "p d"),),
    "layer_norm": (("scale", "weight", "d"), ("offset", "bias", "d")),
    "multi_head_attention": (
        *((f"{name}.kernel", "c_attn.weight", f"d ({part})") for name, part in FUSED),
        *((f"{name}.bias", "c_attn.bias", f"({part})") for name, part in FUSED),
        ("output.kernel", "c_proj.weight", "(h e) d"), ("output.bias", "c_proj.bias", "d"),
    ),
    "feed_forward": (
        ("hidden.kernel", "c_fc.weight", "d f"), ("hidden.bias", "c_fc.bias", "f"),
        ("output.kernel", "c_proj.weight", "f d"), ("output.bias", "c_proj.bias", "d"),
    ),
    "decoder_layer": (
        ("self_attention", "attn"), ("self_attention_norm", "ln_1"),
        ("feed_forward", "mlp"), ("feed_forward_norm", "ln_2"),
    ),
    "decoder": (("layers", "h"), ("final_norm", "ln_f")),
    "transformer": (
        ("target_embedding", "transformer.wte"), ("target_position_embedding", "transformer.wpe"),
        ("decoder", "transformer"), ("logits", "lm_head"),
    ),
}  # fmt: skip
