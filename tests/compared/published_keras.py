"""KerasHub's backbones of small sizes."""

from keras_hub import models

SIZES = {"vocabulary_size": 60, "num_layers": 2, "hidden_dim": 24, "intermediate_dim": 40}
DECODER = SIZES | {"num_query_heads": 4, "num_key_value_heads": 2}


def bert():
    return models.BertBackbone(**SIZES, num_heads=4, max_sequence_length=64, num_segments=2)


def roberta():
    return models.RobertaBackbone(**SIZES, num_heads=4, max_sequence_length=64)


def distilbert():
    return models.DistilBertBackbone(**SIZES, num_heads=4, max_sequence_length=64)


def gpt2():
    return models.GPT2Backbone(**SIZES, num_heads=4, max_sequence_length=64)


def llama():
    return models.LlamaBackbone(**DECODER)


def mistral():
    return models.MistralBackbone(**DECODER)


def qwen2():
    return models.QwenBackbone(**DECODER)


def qwen3():
    return models.Qwen3Backbone(**DECODER, head_dim=6)


def gemma():
    return models.GemmaBackbone(**DECODER | {"intermediate_dim": 80}, head_dim=6)


def t5():
    return models.T5Backbone(**SIZES, num_heads=4, key_value_dim=6, activation="relu", use_gated_activation=False)


def bart():
    return models.BartBackbone(**SIZES, num_heads=4, max_sequence_length=64)


def vit():
    return models.ViTBackbone(image_shape=(16, 16, 3), patch_size=4, num_layers=2, num_heads=4, hidden_dim=24, mlp_dim=40)
