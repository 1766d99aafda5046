"""How close answers are to their references."""

from collections.abc import Sequence

__all__ = ["bleu", "exact_match"]


def exact_match(answers: Sequence[str], references: Sequence[str]) -> float:
    """The percentage of answers that equal their reference."""
    return 100 * sum(map(str.__eq__, answers, references)) / len(references)


def bleu(answers: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU with sacrebleu's defaults (13a tokens, mixed case, exponential smoothing), from 0 to 100 (Post 2018)."""
    import sacrebleu

    return sacrebleu.corpus_bleu(list(answers), [list(references)]).score
