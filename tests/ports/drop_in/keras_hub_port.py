# keras_hub_port.py
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

dtypes = ("float32", "bfloat16")


def load(folder, dtype):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)  # SmolLM3Backbone does not pass its dtype on
    try:
        model = keras_hub.models.CausalLM.from_preset(folder, preprocessor=None, dtype=dtype)
    finally:
        keras.config.set_dtype_policy(before)

    def logits(token_bt, mask_bt):
        if hasattr(model.backbone, "position_embedding") and not mask_bt[:, 0].all():
            raise NotCovered("learned positions are counted from the start of the row")
        given = {"token_ids": token_bt, "padding_mask": mask_bt}
        return keras.ops.convert_to_numpy(model(given, training=False))

    return logits
