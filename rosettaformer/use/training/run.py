"""Starts a run in a new folder, or resumes one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reference_numpy import TransformerConfig, sharding

from ...common.reading import parse_settings
from . import options, schema, tasks
from .corpus import Corpus, answer_limits
from .manifest import Manifest, check, read_tokens
from .tasks import Data, Task
from .tokens import Tokens

Options = Mapping[str, Any]  # the options that the user set, by name


@dataclass(frozen=True)
class Run:
    """Everything that defines a run, except its parameters."""

    folder: Path
    manifest: Manifest
    task: Task
    data: Data
    tokens: Tokens
    corpus: Corpus


def begin(folder: Path, name: str, task_options: Options, given: Options) -> Run:
    """Returns a new run without writing anything.

    Raises ValueError on invalid options and data, and if the folder has a run or links to files.
    """
    _refuse_used(folder)
    fixed, free = _chosen(name, given)
    recipe = options.recipe(fixed)
    _check(free, options.config(fixed, 1))
    task = tasks.create(name, {**task_options, "seed": fixed["seed"]})
    data = task.data()
    tokens = Tokens.train(data.epoch(0), fixed["vocabulary"])
    corpus = _corpus(data, tokens, fixed)
    manifest = Manifest(
        task=task.to_dict(), fixed=fixed, free=free, config=options.config(fixed, tokens.vocabulary), recipe=recipe,
        tokens=tokens.digest, data=data.digest(), limits=answer_limits(corpus.first_epoch),
    )  # fmt: skip
    return Run(folder, manifest, task, data, tokens, corpus)


def free_options(folder: Path, name: str | None, given: Options, resumed: bool) -> dict[str, Any]:
    """Returns the free options of a call before its data are made; raises ValueError if invalid."""
    if resumed:
        manifest = Manifest.read(folder)
        free, config = manifest.free | _free(given), manifest.config
    else:
        _refuse_used(folder)
        fixed, free = _chosen(str(name), given)
        config = options.config(fixed, 1)
    _check(free, config)
    return free


def resume(folder: Path, name: str | None, task_options: Options, given: Options) -> Run:
    """Returns the run in the folder with this call's options, without writing anything.

    Raises ValueError listing every option that conflicts with the run's, and if the tokens or the
    data have changed.
    """
    manifest = Manifest.read(folder)
    if differences := [*_differences(manifest, name, task_options, given)]:
        raise ValueError(f"the run in {folder} differs from the options asked for:\n  " + "\n  ".join(differences))
    manifest = replace(manifest, free=manifest.free | _free(given))
    _check(manifest.free, manifest.config)
    tokens = read_tokens(folder, manifest)
    task = tasks.create(manifest.task["name"], {key: value for key, value in manifest.task.items() if key != "name"})
    data = task.data()
    if (digest := data.digest()) != manifest.data:
        raise ValueError(
            f"the data of the task {task.name} have changed since the run began: their fingerprint was {manifest.data}, now {digest}"
        )
    corpus = _corpus(data, tokens, manifest.fixed)
    if answer_limits(corpus.first_epoch) != manifest.limits:
        raise ValueError(f"the limits in {folder} do not match those of its data; run.json has been changed")
    return Run(folder, manifest, task, data, tokens, corpus)


def _corpus(data: Data, tokens: Tokens, fixed: Options) -> Corpus:
    return Corpus(data, tokens, **{key: fixed[key] for key in ("batch_tokens", "buckets", "max_length", "microbatches", "seed")})


def _refuse_used(folder: Path) -> None:
    check(folder)
    if Manifest.exists(folder) or (folder / "checkpoints").exists():
        raise ValueError(f"{folder} holds a run: continue it with --resume, or choose another --out")


def _chosen(name: str, given: Options) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fixed and free options of a new run. Raises ValueError on invalid fixed ones."""
    chosen = options.FIXED | options.FREE | dict(tasks.kind(name).defaults) | dict(given)
    fixed, free = ({key: chosen[key] for key in part} for part in (options.FIXED, options.FREE))
    schema.refuse(schema.problems(fixed, options.FIXED_FIELDS))
    return fixed, free


def _free(given: Options) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key in options.FREE}


def _check(free: Options, config: TransformerConfig) -> None:
    """Raises ValueError on free options that do not fit each other or the model."""
    schema.refuse(schema.problems(free, options.FREE_FIELDS))
    if free["average"] > free["keep"]:
        raise ValueError(f"average must be at most keep, the number of checkpoints kept; got {free['average']} and {free['keep']}")
    if mesh := options.mesh(free):
        sharding.check(config, mesh)
        if free["backend"] == "numpy" and mesh.devices > 1:
            raise ValueError(f"the backend numpy uses a single device; got --mesh {mesh} (turn it off with --mesh none)")


def _differences(manifest: Manifest, name: str | None, task_options: Options, given: Options) -> Iterator[str]:
    """Yields a line for every option that conflicts with the run's."""
    if name and name != manifest.task["name"]:
        yield f"task: the run has {manifest.task['name']}; got {name}"
        return
    if idle := [key for key in task_options if key not in manifest.task]:
        yield f"{', '.join(idle)}: not an option of the task {manifest.task['name']}"
    config, fields = manifest.config.to_dict(), parse_settings(given.get("settings", ()))
    compared = [(f"task {key}", manifest.task[key], value) for key, value in task_options.items() if key not in idle]
    compared += [(key, manifest.fixed[key], value) for key, value in given.items() if key in options.FIXED and key != "settings"]
    compared += [(key, config[key], value) for key, value in fields.items()]
    for key, had, value in compared:
        if had != (list(value) if isinstance(value, tuple) else value):
            yield f"{key}: the run has {had!r}; got {value!r}"
