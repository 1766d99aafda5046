"""Where an answer ends: at an end token, or at a stop string."""

from collections.abc import Callable, Sequence

from .options import GenerationOptions


def common_length(first: str, second: str) -> int:
    """Returns the length of the longest text that both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, pair in pairs if pair[0] != pair[1]), min(len(first), len(second)))


class Ends:
    """Says whether an answer ends with its last token.

    text: turns ids into their text, special tokens included. Raises ValueError if the options have
    stop_strings and text is None.
    """

    def __init__(self, options: GenerationOptions, text: Callable[[Sequence[int]], str] | None) -> None:
        if options.stop_strings and text is None:
            raise ValueError("stop_strings need a tokenizer; got none")
        self._options, self._text = options, text

    def after(self, prompt: Sequence[int], tokens: Sequence[int]) -> bool:
        """Returns whether the answer ends: its last token is an end token or completes a stop
        string, which may begin in the prompt and may be followed by more of that token's text.
        """
        if tokens[-1] in self._options.eos_token_id:
            return True
        if not self._options.stop_strings or self._text is None:
            return False
        ids = [*prompt, *tokens]
        text = self._text(ids)
        before = common_length(self._text(ids[:-1]), text)
        stops = self._options.stop_strings
        return any(text.find(stop, max(before - len(stop) + 1, 0)) >= 0 for stop in stops)
