# keras_hub_bert_port.py
import importlib.util
import os
import sys
import types

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# some converters import it, for tokenizers
if "sentencepiece" not in sys.modules and not importlib.util.find_spec("sentencepiece"):
    sys.modules["sentencepiece"] = types.SimpleNamespace(SentencePieceProcessor=None)

import keras
import keras_hub

from rosettaformer.ports import NotCovered

dtypes = ("float32",)


def load(folder):
    backbone = keras_hub.models.Backbone.from_preset(folder, dtype="float32")
    layers = ["embeddings_layer_norm", *(f"transformer_layer_{index}" for index in range(backbone.num_layers))]
    states = keras.Model(backbone.input, [backbone.get_layer(name).output for name in layers])

    def logits(token_bt, mask_bt, segment_bt):
        raise NotCovered("the head for masked tokens is not read from a folder of Hugging Face")

    def hidden(token_bt, mask_bt, segment_bt):
        if "Roberta" in type(backbone).__name__ and not mask_bt[:, 0].all():
            raise NotCovered("learned positions are counted from the start of the row")
        given = {"token_ids": token_bt, "padding_mask": mask_bt, "segment_ids": segment_bt}
        given = {name: given[name] for name in backbone.input}
        return keras.ops.convert_to_numpy(keras.ops.stack(states(given, training=False)))

    logits.hidden = hidden
    return logits
