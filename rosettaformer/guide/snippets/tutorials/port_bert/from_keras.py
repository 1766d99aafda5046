# region convert
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import bert
import keras
import keras_hub
import numpy as np
import port
import torch

from impl_torch import weights
from reference_numpy import preset
from rosettaformer.files import checkpoints
from rosettaformer.ports import Names

PATHS = {  # part of a KerasHub path: our name
    "token_embedding/embeddings": "source_embedding/table",
    "position_embedding/embeddings": "source_position_embedding/table",
    "segment_embedding/embeddings": "source_segment_embedding/table",
    "embeddings_layer_norm": "source_embedding_norm",
    "transformer_layer_": "encoder/layers/",
    "self_attention_layer_norm": "self_attention_norm",
    "self_attention_layer": "self_attention",
    "attention_output": "output",
    "feedforward_layer_norm": "feed_forward_norm",
    "feedforward_intermediate_dense": "feed_forward/hidden",
    "feedforward_output_dense": "feed_forward/output",
    "mlm_head/intermediate_dense": "masked_language_head/hidden",
    "mlm_head/intermediate_layer_norm": "masked_language_head/norm",
    "mlm_head/output_bias": "masked_language_head/logits/bias",
    "gamma": "scale",
    "beta": "offset",
}


def canonical(model):
    found = {}
    for variable in model.weights:  # except dropout seeds
        name = variable.path
        for theirs, ours in PATHS.items():
            name = name.replace(theirs, ours)
        if "pooled_dense" not in name:  # not used by these logits
            found[name.replace("/", ".")] = np.array(variable)
    return found


# region model
keras.utils.set_random_seed(0)
sizes = {"vocabulary_size": 101, "num_layers": 2, "num_heads": 4, "hidden_dim": 48}
backbone = keras_hub.models.BertBackbone(**sizes, intermediate_dim=96, max_sequence_length=32)
theirs = keras_hub.models.BertMaskedLM(backbone)
for variable in theirs.weights:  # biases are zero in a new model
    variable.assign(variable + 0.1 * keras.random.normal(variable.shape))

layer, head = backbone.transformer_layers[0].get_config(), theirs.get_layer("mlm_head").get_config()
print("layers", layer["activation"]["config"], layer["layer_norm_epsilon"])
print("head", head["intermediate_activation"], head["layer_norm_epsilon"])

c = preset(
    "bert_base", source_vocabulary=101, target_vocabulary=101, encoder_layers=2, heads=4,
    key_value_heads=4, model_width=48, key_size=12, value_size=12, feed_forward_width=96,
    max_positions=32, activation="gelu_tanh", pooler=False, padding_id=None,
)  # fmt: skip
checkpoints.save("from_keras.safetensors", c, canonical(theirs))

# region compare
checkpoint = checkpoints.load("from_keras.safetensors")
model = bert.MaskedLanguageModel(checkpoint.config).eval()
table = Names(port.weights).table("masked_language_logits", checkpoint.config)
weights.load(model, checkpoint.parameters, checkpoint.config, table=table)
model.head.norm.eps = head["layer_norm_epsilon"]

ids = np.array([[2, 17, 4, 3, 41, 3, 0, 0], [2, 8, 9, 10, 11, 12, 13, 3]])
real, segments = ids != 0, np.array([[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]])
given = {"token_ids": ids, "segment_ids": segments, "padding_mask": real.astype("int32")}
wanted = theirs(given | {"mask_positions": np.tile(np.arange(8), (2, 1))}).numpy()
with torch.inference_mode():
    ours = model(*map(torch.from_numpy, (ids, real, segments))).numpy()
print(f"largest difference from KerasHub: {np.abs(ours - wanted)[real].max():.1e}")
