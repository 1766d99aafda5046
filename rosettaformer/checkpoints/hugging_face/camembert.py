"""CamemBERT (Martin et al. 2020): CamembertModel, CamembertForMaskedLM and classes with other heads."""

from .roberta import roberta

FAMILY = roberta("CamemBERT", "camembert", "Camembert", "CamembertTokenizer", 30522)
