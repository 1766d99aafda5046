"""GPT-2 as the library transformers has it: logits of the next token, with Conv1D kernels, three of them in c_attn."""

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

LAYERS = [(f"decoder.layers.{index}", f"transformer.h.{index}") for index in range(2)]
MODULES = {"self_attention": "attn", "self_attention_norm": "ln_1", "feed_forward": "mlp", "feed_forward_norm": "ln_2"}
FUSED = (("query", "0/3 h k"), ("key", "1/3 g k"), ("value", "2/3 g e"))


def layer(theirs, ours):
    for name, part in FUSED:
        yield f"{theirs}.self_attention.{name}.kernel", f"{ours}.attn.c_attn.weight", f"d ({part})"
        yield f"{theirs}.self_attention.{name}.bias", f"{ours}.attn.c_attn.bias", f"({part})"
    yield f"{theirs}.self_attention.output.kernel", f"{ours}.attn.c_proj.weight", "(h e) d"
    yield f"{theirs}.self_attention.output.bias", f"{ours}.attn.c_proj.bias", "d"
    for name, own, axes in (("hidden", "c_fc", "d f"), ("output", "c_proj", "f d")):
        yield f"{theirs}.feed_forward.{name}.kernel", f"{ours}.mlp.{own}.weight", axes
        yield f"{theirs}.feed_forward.{name}.bias", f"{ours}.mlp.{own}.bias", axes[-1]
    for name in ("self_attention_norm", "feed_forward_norm"):
        yield f"{theirs}.{name}.scale", f"{ours}.{MODULES[name]}.weight", "d"
        yield f"{theirs}.{name}.offset", f"{ours}.{MODULES[name]}.bias", "d"


weights = (
    ("target_embedding.table", "transformer.wte.weight", "v d"),
    ("target_position_embedding.table", "transformer.wpe.weight", "p d"),
    *(row for names in LAYERS for row in layer(*names)),
    ("decoder.final_norm.scale", "transformer.ln_f.weight", "d"),
    ("decoder.final_norm.offset", "transformer.ln_f.bias", "d"),
)
module_paths = (
    ("target_embedding", "transformer.wte"),
    ("target_position_embedding", "transformer.wpe"),
    *LAYERS,
    *((f"{theirs}.{name}", f"{ours}.{own}") for theirs, ours in LAYERS for name, own in MODULES.items()),
    ("decoder.final_norm", "transformer.ln_f"),
    ("logits", "lm_head"),
)
