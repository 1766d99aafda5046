"""KerasHub's backbones of small sizes."""

from keras_hub import models
from published_sizes import Sizes, sizes


def _encoder(own: Sizes):
    return {
        "vocabulary_size": own.vocabulary, "num_layers": own.layers, "hidden_dim": own.width, "intermediate_dim": own.hidden,
        "num_heads": own.heads, "max_sequence_length": own.positions,
    }  # fmt: skip


def _decoder(own: Sizes):
    return {
        "vocabulary_size": own.vocabulary, "num_layers": own.layers, "hidden_dim": own.width, "intermediate_dim": own.hidden,
        "num_query_heads": own.heads, "num_key_value_heads": own.groups, "layer_norm_epsilon": own.epsilon,
    }  # fmt: skip


def bert(seed=0):
    return models.BertBackbone(**_encoder(sizes(seed)), num_segments=2)


def roberta(seed=0):
    return models.RobertaBackbone(**_encoder(sizes(seed)))


def distilbert(seed=0):
    return models.DistilBertBackbone(**_encoder(sizes(seed)))


def gpt2(seed=0):
    return models.GPT2Backbone(**_encoder(sizes(seed)))


def llama(seed=0):
    own = sizes(seed)
    return models.LlamaBackbone(**_decoder(own), rope_max_wavelength=own.base)


def mistral(seed=0):
    own = sizes(seed)
    return models.MistralBackbone(**_decoder(own), rope_max_wavelength=own.base)


def qwen2(seed=0):
    own = sizes(seed)
    return models.QwenBackbone(**_decoder(own), rope_max_wavelength=own.base)


def qwen3(seed=0):
    own = sizes(seed)
    return models.Qwen3Backbone(**_decoder(own), head_dim=own.head_size, rope_max_wavelength=own.base)


def gemma(seed=0):
    own = sizes(seed)
    return models.GemmaBackbone(**_decoder(own) | {"intermediate_dim": 2 * own.hidden, "layer_norm_epsilon": 1e-6}, head_dim=own.head_size)


def t5(seed=0):
    own = sizes(seed)
    others = {name: value for name, value in _encoder(own).items() if not name.startswith("max")}
    return models.T5Backbone(**others, key_value_dim=own.head_size, activation="relu", use_gated_activation=False)


def bart(seed=0):
    return models.BartBackbone(**_encoder(sizes(seed)))


def vit(seed=0):
    own = sizes(seed)
    return models.ViTBackbone(
        image_shape=(16, 16, 3), patch_size=4, num_layers=own.layers, num_heads=own.heads, hidden_dim=own.width, mlp_dim=own.hidden
    )
