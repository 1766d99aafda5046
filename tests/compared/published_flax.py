"""The Flax models of transformers 4, the last that had them, of small sizes; `make` puts it into a folder of its own."""

import importlib
import sys
from pathlib import Path

FOLDER = Path(sys.prefix) / "flax-transformers"
sys.path.insert(0, str(FOLDER))

import transformers  # noqa: E402
from published_sizes import Sizes, sizes  # noqa: E402


def _encoder(own: Sizes):
    return {
        "vocab_size": own.vocabulary, "hidden_size": own.width, "num_hidden_layers": own.layers, "num_attention_heads": own.heads,
        "intermediate_size": own.hidden, "max_position_embeddings": own.positions,
    }  # fmt: skip


def _decoder(own: Sizes):
    return _encoder(own) | {"num_key_value_heads": own.groups, "rms_norm_eps": own.epsilon, "rope_theta": own.base}


def _module(family: str, name: str, config, **others):
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_flax_{family}"), f"Flax{name}Module")(config, **others)


def bert(seed=0):
    return _module("bert", "Bert", transformers.BertConfig(**_encoder(sizes(seed)), hidden_act="gelu_pytorch_tanh"))


def roberta(seed=0):
    own = _encoder(sizes(seed)) | {"max_position_embeddings": sizes(seed).positions + 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return _module("roberta", "Roberta", transformers.RobertaConfig(**own), add_pooling_layer=False)


def distilbert(seed=0):
    own = sizes(seed)
    config = transformers.DistilBertConfig(
        vocab_size=own.vocabulary, dim=own.width, n_layers=own.layers, n_heads=own.heads, hidden_dim=own.hidden,
        max_position_embeddings=own.positions,
    )  # fmt: skip
    return _module("distilbert", "DistilBert", config)


def gpt2(seed=0):
    own = sizes(seed)
    config = transformers.GPT2Config(
        vocab_size=own.vocabulary, n_embd=own.width, n_layer=own.layers, n_head=own.heads, n_inner=own.hidden, n_positions=own.positions
    )
    return _module("gpt2", "GPT2", config)


def llama(seed=0):
    return _module("llama", "Llama", transformers.LlamaConfig(**_decoder(sizes(seed))))


def mistral(seed=0):
    return _module("mistral", "Mistral", transformers.MistralConfig(**_decoder(sizes(seed)), sliding_window=512))


def gemma(seed=0):
    own = sizes(seed)
    others = {"head_dim": own.head_size, "rope_theta": 10000.0, "rms_norm_eps": 1e-6}
    return _module("gemma", "Gemma", transformers.GemmaConfig(**_decoder(own) | others))


def t5(seed=0):
    own = sizes(seed)
    config = transformers.T5Config(
        vocab_size=own.vocabulary, d_model=own.width, d_kv=own.head_size, d_ff=own.hidden, num_layers=own.layers, num_heads=own.heads
    )
    return _module("t5", "T5", config)


def bart(seed=0):
    own = sizes(seed)
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", own.layers), ("attention_heads", own.heads), ("ffn_dim", own.hidden))
    }
    config = transformers.BartConfig(vocab_size=own.vocabulary, d_model=own.width, max_position_embeddings=own.positions, **sides)
    return _module("bart", "Bart", config)


def vit(seed=0):
    own = {name: value for name, value in _encoder(sizes(seed)).items() if not name.startswith(("vocab", "max"))}
    return _module("vit", "ViT", transformers.ViTConfig(**own, image_size=16, patch_size=4, layer_norm_eps=1e-6), add_pooling_layer=False)
