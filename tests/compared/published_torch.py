"""Transformers' models of small sizes; activations, and epsilons that cannot be chosen, are those of KerasHub's."""

import transformers
from published_sizes import Sizes, sizes


def _encoder(own: Sizes):
    return {
        "vocab_size": own.vocabulary, "hidden_size": own.width, "num_hidden_layers": own.layers, "num_attention_heads": own.heads,
        "intermediate_size": own.hidden, "max_position_embeddings": own.positions, "attn_implementation": "eager",
    }  # fmt: skip


def _decoder(own: Sizes):
    return _encoder(own) | {"num_key_value_heads": own.groups, "rms_norm_eps": own.epsilon, "rope_theta": own.base}


def bert(seed=0, **changes):
    config = transformers.BertConfig(**_encoder(sizes(seed)) | {"hidden_act": "gelu_pytorch_tanh"} | changes)
    return transformers.BertModel(config)


def roberta(seed=0, **changes):
    own = sizes(seed)
    others = {"max_position_embeddings": own.positions + 2, "type_vocab_size": 1}
    return transformers.RobertaModel(transformers.RobertaConfig(**_encoder(own) | others | changes), add_pooling_layer=False)


def distilbert(seed=0, **changes):
    own = sizes(seed)
    config = transformers.DistilBertConfig(
        vocab_size=own.vocabulary, dim=own.width, n_layers=own.layers, n_heads=own.heads, hidden_dim=own.hidden,
        max_position_embeddings=own.positions, attn_implementation="eager", **changes,
    )  # fmt: skip
    return transformers.DistilBertModel(config)


def gpt2(seed=0, **changes):
    own = sizes(seed)
    config = transformers.GPT2Config(
        vocab_size=own.vocabulary, n_embd=own.width, n_layer=own.layers, n_head=own.heads, n_inner=own.hidden, n_positions=own.positions,
        attn_implementation="eager", **changes,
    )  # fmt: skip
    return transformers.GPT2Model(config)


def llama(seed=0, **changes):
    return transformers.LlamaModel(transformers.LlamaConfig(**_decoder(sizes(seed)) | changes))


def mistral(seed=0, **changes):
    return transformers.MistralModel(transformers.MistralConfig(**_decoder(sizes(seed)), sliding_window=512, **changes))


def qwen2(seed=0, **changes):
    return transformers.Qwen2Model(transformers.Qwen2Config(**_decoder(sizes(seed)) | changes))


def qwen3(seed=0, **changes):
    own = sizes(seed)
    return transformers.Qwen3Model(transformers.Qwen3Config(**_decoder(own) | {"head_dim": own.head_size} | changes))


def gemma(seed=0, **changes):
    own = sizes(seed)
    config = _decoder(own) | {"head_dim": own.head_size, "rope_theta": 10000.0, "rms_norm_eps": 1e-6}
    return transformers.GemmaModel(transformers.GemmaConfig(**config | changes))


def t5(seed=0, **changes):
    own = sizes(seed)
    config = transformers.T5Config(
        vocab_size=own.vocabulary, d_model=own.width, d_kv=own.head_size, d_ff=own.hidden, num_layers=own.layers, num_heads=own.heads,
        **changes,
    )  # fmt: skip
    return transformers.T5Model(config)


def bart(seed=0, **changes):
    own = sizes(seed)
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", own.layers), ("attention_heads", own.heads), ("ffn_dim", own.hidden))
    }
    config = transformers.BartConfig(
        vocab_size=own.vocabulary, d_model=own.width, max_position_embeddings=own.positions, attn_implementation="eager", **sides, **changes
    )
    return transformers.BartModel(config)


def vit(seed=0, **changes):
    own = {name: value for name, value in _encoder(sizes(seed)).items() if not name.startswith(("vocab", "max"))}
    config = transformers.ViTConfig(**own | {"image_size": 16, "patch_size": 4, "layer_norm_eps": 1e-6} | changes)
    return transformers.ViTModel(config, add_pooling_layer=False)
