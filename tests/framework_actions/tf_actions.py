"""Actions of users of Keras and TensorFlow, a file for each part."""

from . import tf_calls, tf_encoders, tf_layers, tf_lora, tf_numbers, tf_optimisers, tf_replicas, tf_saving, tf_training
from .tf_models import ACTIONS

__all__ = [
    "ACTIONS", "tf_calls", "tf_encoders", "tf_layers", "tf_lora", "tf_numbers", "tf_optimisers", "tf_replicas", "tf_saving", "tf_training",
]  # fmt: skip
