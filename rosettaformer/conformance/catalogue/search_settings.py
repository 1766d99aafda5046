"""Settings of the searches: options that are read otherwise, penalties of other tokens, other numbers to draw with."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from ..reference.components import SEARCHES
from .alteration import Alteration, setting, settings
from .answer_settings import answers, looped
from .combinators import bound, on_arguments

Array = np.ndarray
PLACES = tuple(f"decoding.{search}" for search in SEARCHES)


def _option(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable:
    """Changes the options of a search by a function of those that are given."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        given = bound(original, *args, **options)
        given["strategy"] = dict(given["strategy"]) | change(dict(given["strategy"]))
        return original(**given)

    return altered


def _of(name: str, change: Callable[[Any], Any], default: Any) -> Callable:
    """Changes one option by a function of it."""
    return _option(lambda given: {name: change(given.get(name, default))})


def _options() -> Iterator[Alteration]:
    rows: dict[str, tuple[str, Callable]] = {
        "min_new_tokens + 1": ("one token more comes before the end", _of("min_new_tokens", lambda n: n + 1 if n else 0, 0)),
        "min_new_tokens - 1": ("the end may come one token early", _of("min_new_tokens", lambda n: max(n - 1, 0), 0)),
        "min_new_tokens ignored": ("min_new_tokens is ignored", _of("min_new_tokens", lambda n: 0, 0)),
        "repetition_penalty ignored": ("repetition_penalty is ignored", _of("repetition_penalty", lambda x: 1.0, 1.0)),
        "no_repeat_ngram ignored": ("no_repeat_ngram is ignored", _of("no_repeat_ngram", lambda n: 0, 0)),
        "alpha ignored": ("alpha is ignored: log p is not divided", _of("alpha", lambda alpha: 0.0, 0.6)),
        "alpha = 1": ("alpha is 1", _of("alpha", lambda alpha: 1.0, 0.6)),
        "alpha = 0.6": ("alpha is 0.6", _of("alpha", lambda alpha: 0.6, 0.6)),
        "early_stop": ("a row stops as soon as beam_size answers are finished", _of("early_stop", lambda stop: True, False)),
        "early_stop ignored": ("early_stop is ignored", _of("early_stop", lambda stop: False, False)),
        "one beam": ("there is one beam", _option(lambda given: {"beam_size": 1, "n_best": 1})),
        "beam_size = n_best": ("there are n_best beams", _option(lambda given: {"beam_size": given.get("n_best", 1)})),
        "beam_size + 1": ("there is one beam more", _of("beam_size", lambda n: n + 1, 1)),
        "beam_size - 1": ("there is one beam less", _of("beam_size", lambda n: max(n - 1, 1), 1)),
        "2 beam_size": ("there are twice as many beams", _of("beam_size", lambda n: 2 * n, 1)),
    }  # fmt: skip
    for name, (title, altered) in rows.items():
        beams = name.startswith(("alpha", "early", "beam", "one", "2"))
        yield setting(name, "beam_search" if beams else "greedy_search", title, "use the option as it is given", altered, *PLACES)


def _penalised(choose: Callable[[Any], dict[str, Any]]) -> Callable:
    """Gives the penalties other attributes of the model."""

    def altered(original: Callable, self: Any, scores_bv: Array) -> Array:
        own = dict(vars(self))
        vars(self).update(choose(self))
        result_bv = original(self, scores_bv)
        vars(self).update(own)
        return result_bv

    return altered


def _part(part: Callable[[Array, int], Array]) -> Callable[[Any], dict[str, Any]]:
    """A part of the target, and the same part of its mask; a function of the prefix's length."""

    def choose(self: Any) -> dict[str, Any]:
        target_bt, mask_bt = (part(array, self._prefix_length) for array in (self.target_bt, self.target_mask_bt))
        return {
            "target_bt": target_bt,
            "target_mask_bt": mask_bt,
            "_prefix_length": self._prefix_length - self.target_bt.shape[1] + target_bt.shape[1],
        }

    return choose


def _normalised(x_bv: Array) -> Array:
    x_bv = x_bv - np.max(x_bv, axis=1, keepdims=True)
    return x_bv - np.log(arithmetic.sum(arithmetic.exp(x_bv), axis=1))


def _log_p_penalised(original: Callable, self: Any, scores_bv: Array) -> Array:
    """Penalises log p, not the logits, in a search without beams."""
    return original(self, self.log_p_bv if scores_bv is self.logits_bv else scores_bv)


def _logits_penalised(original: Callable, self: Any, scores_bv: Array) -> Array:
    """Penalises the logits in beam search, before log p is taken."""
    return original(self, scores_bv) if scores_bv is self.logits_bv else _normalised(original(self, self.logits_bv))


def _over_all_tokens(original: Callable, self: Any, parameters: Any, config: Any, strategy: Any, *rest: Any) -> None:
    """Takes log p over all tokens; those that no answer may hold are left out when one is chosen."""

    class Lax(type(strategy)):  # type: ignore[misc]
        def forbidden_ids(self, config: Any) -> list[int]:
            return []

    original(self, parameters, config, Lax(**vars(strategy)), *rest)
    penalised, forbidden = self.penalised, strategy.forbidden_ids(config)

    def barred(scores_bv: Array) -> Array:
        result_bv = penalised(scores_bv)
        result_bv[:, forbidden] = -np.inf
        return result_bv

    self.penalised = barred


def _models() -> Iterator[Alteration]:
    fix = "penalise, of every token that the target holds, prefix and answer, what is chosen from: logits, or log p of beams"
    rows: dict[str, tuple[str, Callable]] = {
        "answer": ("the penalties do not see the prefix", _penalised(_part(lambda target, length: target[:, length:]))),
        "prefix": ("the penalties see the prefix alone", _penalised(_part(lambda target, length: target[:, :length]))),
        "without the last": ("the penalties do not see the last token", _penalised(_part(lambda target, length: target[:, :-1]))),
        "prefix counted": ("the tokens of the prefix count in min_new_tokens", _penalised(lambda self: {"_prefix_length": 0})),
        "log p": ("log p is penalised, not the logits", _log_p_penalised),
        "logits": ("the logits of the beams are penalised, before log p is taken", _logits_penalised),
    }  # fmt: skip
    for name, (title, altered) in rows.items():
        component = "beam_search" if name == "logits" else "greedy_search"
        yield setting(f"penalties of={name}", component, title, fix, altered, "decoding._Model.penalised")
    title, fix = "log p is taken over all tokens, padding and start among them", "log p of the tokens that an answer may hold"
    yield setting("log p=of all tokens", "greedy_search", title, fix, _over_all_tokens, "decoding._Model.__init__")
    title, fix = "log p is taken after the penalties", "log p of the model, before any penalty"
    altered = looped(log_p=lambda model: _normalised(model.penalised(model.logits_bv)))
    yield setting("log p=after penalties", "greedy_search", title, fix, altered, "decoding._one_by_one")


def _numbers() -> Iterator[Alteration]:
    fix = "draw token n of row b with the number uniform_bn[b, n]"
    rows: dict[str, tuple[str, Callable[[Array], Array]]] = {
        "one on": ("each token is drawn with the number of the next one", lambda u_bn: np.roll(u_bn, -1, axis=1)),
        "one back": ("each token is drawn with the number of the one before", lambda u_bn: np.roll(u_bn, 1, axis=1)),
        "first": ("every token of a row is drawn with the row's first number", lambda u_bn: np.repeat(u_bn[:, :1], u_bn.shape[1], axis=1)),
        "first row": ("every row is drawn with the numbers of the first", lambda u_bn: np.repeat(u_bn[:1], len(u_bn), axis=0)),
        "by step": ("the numbers are read step by step, not row by row", lambda u_bn: u_bn.reshape(u_bn.shape[::-1]).T),
        "from the end": ("the numbers are read from the last one on", lambda u_bn: u_bn[:, ::-1]),
        "1 - u": ("1 less the number is used", lambda u_bn: 1 - u_bn),
        "rows reversed": ("the rows' numbers are in reverse order", lambda u_bn: u_bn[::-1]),
    }  # fmt: skip
    of = lambda change: on_arguments(uniform_bn=change)  # noqa: E731 - of the numbers to draw with
    yield from settings("numbers=", "sample", fix, rows, PLACES[1], of=of)


def searches() -> Iterator[Alteration]:
    """The settings of the searches except those of the beams."""
    yield from _options()
    yield from _models()
    yield from answers()
    yield from _numbers()
