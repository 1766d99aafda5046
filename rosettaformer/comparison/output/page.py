"""Renders a report as one self-contained HTML page."""

import base64
import math
import os
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...common import pages
from ...judge.expectation.tolerance import MAX_FACTOR, ORDERS
from ...judge.report import grouping, html
from ...use.inference.attention_page import LEVELS, packed
from .. import words
from ..numbers import number, size
from ..one_model.implementations import LIBRARY, NAMES
from ..one_model.layer_errors import Attention
from ..one_model.making import Report
from ..one_model.subject import LARGE
from . import charts

FINEST = 127  # differences are stored in multiples of 1 / FINEST of the largest one of their head


def render(report: Report) -> str:
    """Returns the HTML page."""
    templates = pages.environment(__package__, "rosettaformer.judge.report")
    templates.filters |= {"significant": html.significant, "number": number, "size": size, "listed": words.listed}
    templates.globals |= {"names": NAMES, "called": charts.title_of, "svg": charts.svg, "isfinite": math.isfinite}
    shown = report.summary if report.summary and not _in_words(report) else None
    matrix = html.context(shown) if shown else {"data": {"results": [], "findings": [], "failures": [], "highest": 0}}
    attention = report.layers.attention if report.layers and "attention" in report.options.sections else []
    layers = report.layers if report.layers and report.layers.outputs else None
    good, headline, lead = verdict(report)
    return templates.get_template("model.html.jinja").render(
        **{**matrix, "data": matrix["data"] | {"attention": [*map(_data, attention)], "finest": FINEST, "levels": LEVELS}},
        report=report,
        subject=report.subject,
        good=good,
        headline=headline,
        lead=lead,
        matrix_title="Results",
        in_words=_in_words(report),
        left=grouping.reasons(report.summary) if report.summary else [],
        facts=facts(report),
        said=report.predictions,
        layers=layers,
        layer_charts=[*charts.layer_charts(layers)] if layers else [],
        attention=attention,
        largest=_largest,
        curves=report.curves,
        training_title="Training" if report.curves is None or report.curves.learns else "Gradient agreement",
        threads_said=bool(os.environ.get("OMP_NUM_THREADS")),
        training_charts=[*charts.training_charts(report.curves)] if report.curves and report.curves.found else [],
        recorded=charts.recorded_chart(report.subject.log),
        speed=report.speed,
        longest_peak=max(filter(math.isfinite, report.speed.peaks.values() if report.speed else ()), default=1.0),
        factor=MAX_FACTOR,
        orders=len(ORDERS),
        levels=LEVELS,
        quick_compile=report.subject.count < LARGE and "jax" in report.present,
        finest=FINEST,
    )


def verdict(report: Report) -> tuple[bool, str, str]:
    """Returns whether the report conforms, its headline, and its numbers, a sentence per line."""
    name = report.subject.path.resolve().name
    lacking = [NAMES[one] for one in report.missing if one != LIBRARY]
    names = report.present
    if not report.conforms:
        names = list(dict.fromkeys([*(row.port for row in (report.summary.failed if report.summary else ())), *report.problems]))
    titles = [NAMES.get(one, one) for one in names]
    headline = words.verdict(report.conforms, report.summary is not None, name, titles, lacking)
    return report.conforms and bool(report.present), headline, "\n".join(_lead(report))


def _in_words(report: Report) -> str:
    """Returns the paragraph that replaces a conforming table of one dtype; empty otherwise."""
    summary, dtypes = report.summary, report.options.dtypes
    if summary is None or not summary.conforms or len(dtypes) > 1:
        return ""
    asked = list(dict.fromkeys(row.component for row in summary.passed))
    worst = max(summary.passed, key=lambda row: row.ratio if math.isfinite(row.ratio) else 0.0)
    who = [NAMES[name] for name in dict.fromkeys(row.port for row in summary.passed)]
    largest = words.worst(worst.ratio, MAX_FACTOR, NAMES[worst.port])
    return words.conformance(summary.compared, dtypes[0], asked, who, largest, len(summary.left))


def _lead(report: Report) -> Iterator[str]:
    if report.predictions:
        yield report.predictions.sentence
    if report.summary:
        ratios = [row.ratio for row in report.summary.passed if math.isfinite(row.ratio)]
        yield words.outputs(report.summary.compared, len(report.summary.failed))
        if ratios:
            yield words.worst(max(ratios), MAX_FACTOR)
    if report.layers and report.layers.outputs:
        beyond = sum(one.excess > 1 for place in report.layers.outputs for one in place.found.values())
        total = sum(len(place.found) for place in report.layers.outputs)
        yield words.layer_outputs(total - beyond, total)
    if report.curves and report.curves.found:
        largest = max(max(pair) for name in report.curves.found for pair in report.curves.units(name))
        yield words.training(len(report.curves.losses), largest)


def facts(report: Report) -> dict[str, str]:
    """Returns the facts about the model, by title."""
    subject, config = report.subject, report.subject.config
    kinds = {"hugging-face": "Hugging Face checkpoint", "canonical": "canonical checkpoint", "run": "run of rosettaformer train"}
    stacks = [f"{count} {name} layers" for name, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)) if count]
    shape = "encoder and decoder" if len(stacks) == 2 else "encoder-only" if config.encoder_layers else "decoder-only"
    heads = [name for name, there in (("classifier", config.classes), ("masked-language head", config.masked_language_head)) if there]
    shared = f", {config.key_value_heads} key-value heads" if config.key_value_heads < config.heads else ""
    activation = f"gated {config.activation}" if config.gated_feed_forward else config.activation
    kind = [f"{config.norm} {config.norm_placement}-norm", f"{config.positions} positions", activation]
    sizes = [
        *stacks, f"width {config.model_width}", f"{config.heads} heads{shared}", f"feed-forward {config.feed_forward_width}",
        f"vocabulary {config.source_vocabulary if config.encoder_layers else config.target_vocabulary:,}",
    ]  # fmt: skip
    result = {
        "model": ", ".join([shape, *kind]) + (f", with {words.listed(heads)}" if heads else ""),
        "sizes": ", ".join(sizes),
        "parameters": f"{subject.count:,}, stored in {subject.dtype}",
        "read from": f"{subject.path} ({kinds[subject.kind]})",
        "implementations": words.listed([NAMES[name] for name in report.present]) or "none",
    }
    for index, text in enumerate(subject.texts):
        result["text" if not index else "second text"] = text
    result["tokens"] = words.listed([f"{len(tokens)} {side}" for side, tokens in subject.tokens.items() if len(tokens)])
    if subject.notes:
        result["note"] = "; ".join(subject.notes)
    return result


def _data(one: Attention) -> dict[str, Any]:
    """Returns the data of one kind of attention for the page's script."""
    layers, heads, *_ = one.reference_lhts.shape
    differences, scales = {}, {}
    for name, found in one.found_lhts.items():
        away = found - one.reference_lhts
        largest = np.abs(away).max(axis=(2, 3), keepdims=True)
        levels = np.rint(away / np.where(largest > 0, largest, 1) * FINEST).astype(np.int8)
        differences[name] = base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()
        scales[name] = largest[:, :, 0, 0].tolist()
    return {
        "name": one.name,
        "layers": layers,
        "heads": heads,
        "queries": list(one.queries),
        "keys": list(one.keys),
        "weights": packed(one.reference_lhts),
        "even": [[one.even(layer, head) for head in range(heads)] for layer in range(layers)],
        "differences": differences,
        "scales": scales,
        "noise": list(map(float, one.noise_l)),
        "titles": [[name, NAMES[name]] for name in one.found_lhts],
    }


def _largest(one: Attention, layer: int) -> list[float]:
    """Returns the largest difference in every head over all implementations, in noise units."""
    return [float(value) for value in np.max([one.units(name, layer) for name in one.found_lhts], axis=0)] if one.found_lhts else []
