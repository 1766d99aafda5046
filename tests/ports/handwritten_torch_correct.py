"""The hand-written torch Transformer after its three mistakes have been corrected."""

from handwritten_torch import Model, config, dtypes, framework, module_paths, weights

__all__ = ["components", "config", "dtypes", "framework", "module_paths", "weights"]

components = {"transformer": lambda config, dtype: Model(config, corrected=True)}
