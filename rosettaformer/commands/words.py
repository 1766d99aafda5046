"""The sentences that the commands print; error messages and help texts are where they are used."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

NO_MESH = "--mesh cannot be used with --command: name the port, its file or its module instead"
NOTHING_TO_EXPLAIN = "[green]nothing to explain[/]: every case conforms"


def quick(dtypes: Sequence[str]) -> str:
    return f"--quick: testing only the core cases, in {', '.join(dtypes)}"


def like(family: str, described: str) -> str:
    return f"--like {family}: {described}"


def diagnosing(port: str, components: Collection[str], limit: float | None) -> str:
    at_most = f" (at most {limit:g} s of CPU time)" if limit else ""
    return f"diagnosing {', '.join(components)} of {port}{at_most} ..."


def stopped(why: str) -> str:
    return f"[yellow]stopped[/]: {why}; showing the best results so far"


def known_bugs(count: int, of: str = "") -> str:
    return f"{count} known bugs{of}"


def effects(count: int, shown: int) -> str:
    runs = f"the {shown} largest of {count} runs" if count > shown else f"{count} runs"
    return f"Error, and error divided by the tolerance ({runs})"


USUAL_TRAINING = "about a minute per backend"


def page(file: Path, heads: int, size: int) -> str:
    return f"wrote {file}: {heads} heads, {size / 1e6:.1f} MB"


def lengths(counts: Sequence[int], full: bool) -> str:
    """The number of tokens of each text. full: they fill all positions of the model."""
    return " and ".join(map(str, counts)) + ", the maximum of the model" * full


def converted(file: str, format: str, dtype: str, parameter_count: int) -> str:
    return f"wrote {file}: {format}, {dtype}, {parameter_count:,} parameters"


def environment(numpy: str, python: str, machine: str) -> str:
    return f"NumPy {numpy}, Python {python} on {machine}"


def exported(title: str, dtype: str, files: Sequence[Path], manifest: Path) -> str:
    return f"wrote {title} in {dtype}: {', '.join(map(str, files))}\nmanifest: {manifest}"


def out_of_range(what: str, becomes: str) -> str:
    return f"{what} out of range: {becomes}"


def no_end(problem: str, folder: Path) -> str:
    return f"note: {problem} in {folder}; no answer will end with it"


MEASURING = "measuring the built-in ports"
USUAL_GUIDE = "the whole guide takes about three minutes on two cores"


def site(folder: Path, pages: int, size: int, seconds: float) -> str:
    return f"wrote {folder}: {pages} pages, {size / 1e6:.1f} MB, in {seconds:.0f} s"


def more_tensors(count: int) -> str:
    return f"and {count} more; --json shows all"


AXES = (
    "axes: b batch, t target or query position, s source or key position, n new token or beam, d model width, h query heads, g key heads, "
    "k key size, e value size, f hidden width, v vocabulary, p learned positions, a segments, r pooled width, c classes"
)
FIELDS = "`rosettaformer list config` describes them"
NEVER_GENERATED = "the padding id and the strategy's start_id are never generated, unless one of them is its end_id; they are not scored"
LISTS = {
    "components": "every component, its arguments and what it computes",
    "-k COMPONENT": "full description of a component: parameters, axes, arguments",
    "config": "every field of the config, its values and its meaning",
    "cases": "every case and its dtypes; with --mesh, the cases on a mesh",
    "defects": "every known bug; `rosettaformer explain ID` shows its page",
    "ports": "every named port, and whether its framework is installed",
}


def arguments(given: Iterable[str], never: Sequence[str]) -> str:
    return f"arguments of a port's module: {', '.join(given)}" + (f"; no case passes {', '.join(never)}" if never else "")


def instead(stands: Mapping[str, str]) -> str:
    return f"alternative arguments: {', '.join(f'{made} for {of}' for made, of in stands.items())}"


def cases(count: int, gradient: str) -> str:
    return f"cases: {count}" + (f"; gradient: {gradient}" if gradient else "")


def parameters_of(other: str) -> str:
    return f"parameters and weights table: those of {other} (rosettaformer list -k '{other} and not vjp')"


def parameters(other: str, layers: bool) -> str:
    """The heading of a list of parameters. other: the component whose weights table they use."""
    table = f" (weights table of {other})" if other else ""
    return f"parameters{table}: canonical name, axes, shape" + "; layers.0 stands for every layer" * layers


def decay(names: Sequence[str]) -> str:
    return f"weight decay applies to {', '.join(names)}; biases, scales and offsets do not decay"


def checkpoint(folder: Path, architecture: str, parameters: int, dtype: str) -> str:
    return f"wrote {folder}: {architecture}, {parameters:,} parameters, {dtype}"


PROPOSING, CHECKING = "building the class and matching it", "checking"


def wrote(path: Path, what: str = "") -> str:
    return f"wrote {path}" + (f": {what}" if what else "")


def replace_code(path: Path, port: str) -> str:
    return f"\nReplace the code in {path} with your own, then run:\n  rosettaformer check {port}\n  rosettaformer diagnose {port}"


def open_questions(path: Path) -> str:
    return f"left to decide, marked TODO in {path}:"


def chosen_by_trials(path: Path, fields: Sequence[str]) -> str:
    text = f"read from your code by trials, so check cannot find a bug in them: {', '.join(fields)}"
    return f"{text}\n  compare `config` in {path} with the model that you port"


def then_check(path: Path, whole: str) -> str:
    return f"\nThen run:\n  rosettaformer check {path}{whole}"


def whole_model(family: str) -> str:
    commands = f"rosettaformer new-port like {family}\n  rosettaformer check {family}_port.py --like {family}"
    return f"\n\nFor the whole model, run:\n  {commands}" if family else ""


def not_checked(problem: str) -> str:
    return f"not checked, since the framework is missing: {problem}"


WRITING = "writing"


def starting(ports: Sequence[str]) -> str:
    return f"starting {', '.join(ports)}"


def at_most(comparisons: int) -> str:
    return f"at most {comparisons} comparisons"


def running(port: str, cases: int, compiled: bool) -> str:
    return f"running {port}: {cases} cases{', each compiled' * compiled} ..."


def so_far(done: float, total: float, unit: str, after: str, left: str) -> str:
    counted = f"{done:.0f} of {total:.0f} {unit}".rstrip()
    return f"{counted} after {after}" + (f", about {left} left" if left else "")


def written(done: int, total: int) -> str:
    return f"{done / 1e9:.1f} of {total / 1e9:.1f} GB written"


def report(headline: str, lead: str, file: Path, size: int, seconds: float) -> str:
    return "\n".join(filter(None, [headline, lead, f"wrote {file}: {size / 1e6:.1f} MB, in {seconds:.0f} s"]))


def figures(count: int, folder: Path) -> str:
    return f"figures: {count} in {folder}"


def step(seconds: float, number: int, count: int, what: str, left: str) -> str:
    return f"{seconds:6.1f} s  {number}/{count}  {what}" + (f"  (about {left} left)" if left else "")


def too_long(training: int, validation: int) -> str:
    return f"skipped, longer than max_length: {training} training pairs, {validation} validation pairs"


def training(backend: str, parameters: int, vocabulary: int, pairs: int, batches: Sequence[str]) -> str:
    return f"{backend}: {parameters:,} parameters, {vocabulary} tokens, {pairs:,} pairs in batches of {', '.join(batches)}"


WRITING_VECTORS, VERIFYING_VECTORS = "writing vectors", "recomputing vectors"
USUAL_VECTORS = "about five minutes for all of them"


def vectors(cases: int, size: int, folder: Path) -> str:
    return f"wrote {folder}: {cases} cases, {size / 1e6:.1f} MB"


def finding(message: str, rounding: bool) -> str:
    return message + "; --rounding accepts it" * rounding


def verified(wrong: int, accepted: int) -> str:
    if not wrong and not accepted:
        return "identical"
    return f"{wrong} differences" + (f", {accepted} rounding differences accepted" if accepted else "")


def library(name: str, version: str) -> str:
    return f"{name} {version}"


def comparing_class(family: str) -> str:
    return f"comparing the class of {family} ..."


def judged_class(family: str, name: str, status: str) -> str:
    told = {"pass": "conforms", "missing": "is not in this version"}.get(status, status)
    return f"{family}: {name} {told}"
