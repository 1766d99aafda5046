"""Transformers' models of small sizes; epsilons and activations are those of KerasHub's."""

import transformers

SIZES = {
    "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 64, "attn_implementation": "eager",
}  # fmt: skip
DECODER = SIZES | {"num_key_value_heads": 2, "rms_norm_eps": 1e-6}


def bert(**changes):
    return transformers.BertModel(transformers.BertConfig(**SIZES | {"hidden_act": "gelu_pytorch_tanh"} | changes))


def roberta(**changes):
    sizes = SIZES | {"max_position_embeddings": 66, "type_vocab_size": 1, "hidden_act": "gelu_pytorch_tanh"}
    return transformers.RobertaModel(transformers.RobertaConfig(**sizes | changes), add_pooling_layer=False)


def distilbert(**changes):
    sizes = {"vocab_size": 60, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64}
    return transformers.DistilBertModel(transformers.DistilBertConfig(**sizes, attn_implementation="eager", **changes))


def gpt2(**changes):
    sizes = {"vocab_size": 60, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_inner": 40, "n_positions": 64}
    return transformers.GPT2Model(transformers.GPT2Config(**sizes, attn_implementation="eager", **changes))


def llama(**changes):
    return transformers.LlamaModel(transformers.LlamaConfig(**DECODER | changes))


def mistral():
    return transformers.MistralModel(transformers.MistralConfig(**DECODER, sliding_window=512))


def qwen2():
    return transformers.Qwen2Model(transformers.Qwen2Config(**DECODER))


def qwen3():
    return transformers.Qwen3Model(transformers.Qwen3Config(**DECODER, head_dim=6))


def gemma(**changes):
    return transformers.GemmaModel(transformers.GemmaConfig(**DECODER | {"head_dim": 6} | changes))


def t5():
    config = transformers.T5Config(vocab_size=60, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4)
    return transformers.T5Model(config)


def bart():
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 40))
    }
    config = transformers.BartConfig(vocab_size=60, d_model=24, max_position_embeddings=64, attn_implementation="eager", **sides)
    return transformers.BartModel(config)


def vit():
    sizes = {name: value for name, value in SIZES.items() if not name.startswith(("vocab", "max"))}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=4, layer_norm_eps=1e-6)
    return transformers.ViTModel(config, add_pooling_layer=False)
