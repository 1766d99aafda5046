"""XLM-RoBERTa (Conneau et al. 2020): XLMRobertaModel, XLMRobertaForMaskedLM and classes with other heads."""

from .roberta import roberta

FAMILY = roberta("XLM-RoBERTa", "xlm-roberta", "XLMRoberta", 30522)
