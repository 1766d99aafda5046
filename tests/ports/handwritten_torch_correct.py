"""The hand-written torch Transformer after its three mistakes have been corrected."""

from handwritten_torch import Model, config, dtypes, framework, taps, weights

__all__ = ["components", "config", "dtypes", "framework", "taps", "weights"]

components = {"transformer": lambda config, dtype: Model(config, corrected=True)}
