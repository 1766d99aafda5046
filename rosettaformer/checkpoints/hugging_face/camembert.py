"""CamemBERT (Martin et al. 2020): CamembertModel, CamembertForMaskedLM and classes with other heads."""

from .roberta import roberta

FAMILY = roberta("CamemBERT", "camembert", "Camembert", 30522)
