"""The supported families of models."""

from . import bert, gpt2

FAMILIES = {family.model_type: family for family in (bert.FAMILY, gpt2.FAMILY)}  # by model_type
