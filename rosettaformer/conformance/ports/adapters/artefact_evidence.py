"""What a file shows without being run: rows of the report beside those of its cases."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ....artefacts.calls import Calls, unjudged
from ....artefacts.constants import constants
from ....artefacts.declared import OF_GRAPH, findings, nodes
from ....artefacts.settings import Settings
from ...status import Status

Rows = dict[str, tuple[str, str]]


def rows(settings: Settings, parameters: Mapping[str, Any], calls: Calls, asked: Collection[str]) -> Rows:
    """Returns what is found, by where: the status of its row, and the words.

    parameters: of the checkpoint; none if a lower precision explains other numbers. asked: the meanings of the outputs that are judged.
    """
    found: Rows = {}
    for place, status, sentence in (*_shown(settings, parameters, calls), *_unjudged(settings, calls, asked)):
        found[place] = status, "; ".join(filter(None, (found.get(place, ("", ""))[1], sentence)))
    return found


def _shown(settings: Settings, parameters: Mapping[str, Any], calls: Calls) -> Iterator[tuple[str, str, str]]:
    """Yields what the graphs show: an entry of config.json, or something of a graph."""
    config, files = settings.model, calls.bundle.files
    for file in files:
        of, held = f"{file.name}: " * (file != files[0]), constants(file)
        whole = file == files[0] or not config.cross_attention  # of both stacks the other files have a part alone
        for entry, sentence in findings(config, held, settings.declared, parameters) if whole else ():
            place = f"graph/{entry}" if entry in OF_GRAPH else f"config.json/{entry}"
            if not (settings.expect and entry in OF_GRAPH):  # which explains other numbers
                yield place, Status.DIFFERS, f"{of}{sentence}"
        live = nodes.live(held, calls.signatures(file))
        for sentence in nodes.of_training(held, live):
            yield "graph/randomness", Status.DIFFERS, f"{of}{sentence}"
        for sentence in nodes.masks(held, live):
            yield "graph/mask", Status.TOLD, f"{of}{sentence}"


def _unjudged(settings: Settings, calls: Calls, asked: Collection[str]) -> Iterator[tuple[str, str, str]]:
    for place, sentence in unjudged(calls, asked, bool(settings.function)):
        yield place, Status.NOT_SHOWN, sentence
