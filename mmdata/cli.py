"""The `mmdata` command. It composes the verbs; each lives in a module of its own that is imported when it is called.

Results go to standard output (`--json` for programs), logs to standard error. Exit codes: 0 ok, 1 failed, 2 usage or
configuration, 3 over the error limit, 130 interrupted.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from mmdata.errors import ConfigError, StorageError, TesseraError, WorkerError

if TYPE_CHECKING:
    from mmdata.recipe import Recipe
    from mmdata.shards.catalog import Catalog
    from mmdata.shards.dataset import Manifest
    from mmdata.storage import Storage

app = typer.Typer(
    name="mmdata",
    help="From raw images, video, audio and text to verified shards.",
    epilog="Exit codes: 0 ok, 1 failed, 2 wrong usage or recipe, 3 too many bad samples, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_USAGE_ERROR: Any = typer.BadParameter.__mro__[2]
"""Base of all errors in arguments and options, whichever command-line library typer brings."""

RecipeFile = Annotated[str, typer.Argument(help="Recipe file (YAML).", metavar="RECIPE")]
DatasetFolder = Annotated[str, typer.Argument(help="Dataset folder or URL.", metavar="DATASET")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting for this run: --set output.max_samples=500. Repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes; 0 is one for each core.", min=0)]
Energon = Annotated[
    bool, typer.Option("--energon", help="Also write the files with which Megatron-Energon opens the dataset.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the dataset that is there: another recipe's, or a damaged one.")
]


def main() -> NoReturn:
    """Entry point of the `mmdata` command."""
    _prepare_streams()
    _leave(run())


def run(arguments: list[str] | None = None) -> int:
    """Run one command line (by default the process's own) and return its exit code; errors are told, not raised."""
    code = 0
    try:
        answer = typer.main.get_command(app).main(arguments, prog_name="mmdata", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        code = answer if isinstance(answer, int) else 0
    except _USAGE_ERROR as error:
        error.show()
        code = int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        _discard_stdout()
        code = 1
    except Exception as error:
        code = _fail(error)
    if code == 130:
        print("mmdata: interrupted; the same command goes on where it stopped", file=sys.stderr)
    return code


def _leave(code: int) -> NoReturn:
    """End the process without tearing the interpreter down.

    A thread of Arrow that drops its last hold on a Python file during the tear-down aborts the process, which would
    turn a finished command into a failed one.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    atexit._run_exitfuncs()
    os._exit(code)


def _prepare_streams() -> None:
    """Names of any bytes can be printed, and warnings of the log look like the rest."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter("mmdata: %(message)s"))


def _discard_stdout() -> None:
    """Whoever read standard output is gone: nothing more is written to it, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


def _fail(error: Exception) -> int:
    """Say what went wrong in one message, with the traceback under MMDATA_DEBUG; returns the exit code."""
    if os.environ.get("MMDATA_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, WorkerError):
        # The last line of a worker's traceback says what was raised; the whole is for those who debug.
        lines = [line for line in str(error).splitlines() if line.strip()]
        text = lines[0] if len(lines) < 2 else f"{lines[0]} {lines[-1].strip()}"
        text += "" if len(lines) < 3 else "; MMDATA_DEBUG=1 shows the whole traceback"
    elif isinstance(error, TesseraError):
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        named = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        text = f"{named}: {error.strerror}" if named else error.strerror
        if getattr(error, "errno", None) is not None and not named:
            text += "; MMDATA_DEBUG=1 shows where"
    elif type(error).__module__.startswith("pyarrow"):
        text = f"an Arrow or Parquet file is damaged, or is none: {error}; MMDATA_DEBUG=1 shows where"
    else:
        text = f"{type(error).__name__}: {error}; this is a defect of mmdata: please report it, with what "
        text += "the same command prints under MMDATA_DEBUG=1"
    try:
        print(f"mmdata: {text}", file=sys.stderr, flush=True)
        if isinstance(error, (OSError, StorageError)):
            _discard_stdout()  # what could not be written must not fail a second time at exit
    except BrokenPipeError:
        _discard_stdout()
    return error.exit_code if isinstance(error, TesseraError) else 1


def _show_version(asked: bool) -> None:
    if asked:
        from mmdata import __version__

        print(f"mmdata {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (or set MMDATA_DEBUG=1).")
    ] = False,
) -> None:
    if debug:
        os.environ["MMDATA_DEBUG"] = "1"


@app.command()
def scan(
    recipe: RecipeFile,
    set_: Overrides = None,
    workers: Workers = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Open every medium of the sources once and write the catalog."""
    _expect_processes(dry_run)
    from mmdata.report.summary import catalog_text

    loaded = _load(recipe, set_)
    if dry_run:
        return _preview(loaded, as_json)
    catalog, measured = _scan(loaded, workers)
    _print(_catalog_summary(catalog) | {"measured": measured}, as_json, catalog_text)


@app.command()
def build(
    recipe: RecipeFile,
    set_: Overrides = None,
    workers: Workers = None,
    shard_range: Annotated[
        str | None, typer.Option(metavar="I/N", help="Build only the I-th of N equal ranges of shards, I from 0.")
    ] = None,
    overwrite: Overwrite = False,
    energon: Energon = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build the dataset of a recipe; scan first where no catalog fits it."""
    _expect_processes(dry_run)
    from mmdata import build as verb
    from mmdata.report.summary import dataset_text, plan_text, range_text

    loaded = _load(recipe, _with_energon(set_, energon))
    if shard_range is not None:
        verb.shard_range(shard_range, 0)
    catalog = _catalog(loaded, workers, dry_run=dry_run or shard_range is not None)
    if catalog is None and shard_range is not None and not dry_run:
        raise ConfigError(f"--shard-range: {loaded.catalog} holds no catalog that fits; run `mmdata scan` first, once")
    if catalog is None:
        return _preview(loaded, as_json)
    if dry_run:
        return _print(_plan_summary(loaded, catalog), as_json, plan_text)
    manifest = None if overwrite else verb.finished(loaded, catalog)
    if manifest is not None:
        return _print(_dataset_summary(loaded.output.path, manifest) | {"unchanged": True}, as_json, dataset_text)
    prepared = verb.prepare(loaded, catalog, overwrite=overwrite)
    count = len(prepared.plan.shards)
    numbers = range(count) if shard_range is None else verb.shard_range(shard_range, count)
    with _progress("build", "samples") as progress:
        built = verb.build_shards(
            prepared,
            numbers,
            workers=_workers(loaded, workers),
            progress=progress.build,
            waiting=progress.waiting,
        )
    if shard_range is not None:
        own = {"shard_range": shard_range, "range": [numbers.start, numbers.stop], "shards": count}
        return _print(own | {"shards_built": built}, as_json, range_text)
    _print(_dataset_summary(loaded.output.path, verb.commit(prepared)), as_json, dataset_text)


@app.command()
def commit(
    recipe: RecipeFile,
    set_: Overrides = None,
    overwrite: Overwrite = False,
    energon: Energon = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Fold the shards that `build --shard-range` made into a dataset.

    Takes the recipe and the `--set` options that the shards were built with. Fails, naming them, while shards are
    missing.
    """
    from mmdata import build as verb
    from mmdata.report.summary import dataset_text, plan_text
    from mmdata.shards.catalog import open_catalog

    loaded = _load(recipe, _with_energon(set_, energon))
    catalog = open_catalog(_storage(loaded), loaded.catalog)
    if dry_run:
        return _print(_plan_summary(loaded, catalog), as_json, plan_text)
    manifest = verb.finished(loaded, catalog)
    unchanged = manifest is not None
    if manifest is None:
        manifest = verb.commit(verb.prepare(loaded, catalog, overwrite=overwrite))
    _print(_dataset_summary(loaded.output.path, manifest) | {"unchanged": unchanged}, as_json, dataset_text)


@app.command()
def verify(
    dataset: DatasetFolder,
    workers: Workers = None,
    decode: Annotated[bool, typer.Option("--decode", help="Also decode every medium.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a dataset; name each damaged shard and sample."""
    from mmdata.inspect import check_kind
    from mmdata.shards.verify import verify_dataset

    check_kind(dataset, "dataset")
    with _progress("verify", "shards") as progress:
        count = workers or len(os.sched_getaffinity(0))
        result = verify_dataset(dataset, workers=count, decode=decode, progress=progress.count)
    _print(result.to_dict(), as_json, lambda _: result.to_text())
    if not result.ok:
        raise typer.Exit(1)


@app.command()
def inspect(
    target: Annotated[
        str, typer.Argument(help="Dataset folder, catalog folder, or one shard.", metavar="DATASET|SHARD|CATALOG")
    ],
    sample: Annotated[
        str | None, typer.Option(help="Extract the members of this sample into the folder --to.", metavar="KEY")
    ] = None,
    to: Annotated[str, typer.Option(help="Folder that --sample writes to.", metavar="DIR")] = ".",
    explain: Annotated[
        str | None, typer.Option(help="Tell the way of this sample, or why it was dropped.", metavar="KEY")
    ] = None,
    bad: Annotated[bool, typer.Option("--bad", help="List the samples that were dropped or are bad.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a dataset, catalog or shard holds."""
    from mmdata import inspect as verb

    if sum((sample is not None, explain is not None, bad)) > 1:
        raise ConfigError("--sample, --explain and --bad are three questions: ask one at a time")
    if sample is not None:
        return _print(verb.extract(target, sample, to), as_json, verb.extract_text)
    if explain is not None:
        return _print(verb.explain(target, explain), as_json, verb.explain_text)
    if bad:
        return _print(verb.list_bad(target), as_json, verb.bad_text)
    _print(verb.describe(target), as_json, verb.describe_text)


@app.command()
def init(
    folder: Annotated[str, typer.Argument(help="Folder or URL with media.", metavar="FOLDER")],
    recipe: Annotated[str, typer.Option(help="Recipe file to write.", metavar="FILE")] = "recipe.yaml",
    output: Annotated[
        str | None,
        typer.Option(
            help="Dataset folder that the recipe will name; by default `dataset`, or a folder beside FOLDER.",
            metavar="DIR",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing recipe file.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Look at a folder and write a commented recipe for it."""
    from mmdata.init import write_recipe

    result = write_recipe(folder, recipe, output, force=force, dry_run=dry_run)
    _print(result.to_dict(), as_json, lambda _: result.to_text())


def _with_energon(overrides: list[str] | None, energon: bool) -> list[str]:
    return [*(overrides or ()), *(["output.energon=true"] if energon else [])]


def _expect_processes(dry_run: bool) -> None:
    """Let the server of worker processes import what they need while this process imports what it needs."""
    from mmdata.engines.preload import MODULES
    from mmdata.processes import expect

    if not dry_run:
        expect(MODULES)


def _load(path: str, overrides: list[str] | None) -> Recipe:
    from mmdata.operators.registry import load_builtin, prepare
    from mmdata.recipe import load

    load_builtin()
    recipe = load(path, overrides or ())
    prepare(recipe)
    return recipe


def _storage(recipe: Recipe) -> Storage:
    from mmdata.storage import StorageSettings, open_storage

    return open_storage(StorageSettings(**recipe.storage.arguments()))


def _workers(recipe: Recipe, option: int | None) -> int:
    return (recipe.workers if option is None else option) or len(os.sched_getaffinity(0))


def _progress(verb: str, unit: str) -> Any:
    from mmdata.report.progress import Progress

    return Progress(verb, unit)


def _preview(recipe: Recipe, as_json: bool) -> None:
    from mmdata import scan as verb
    from mmdata.report.summary import sources_text

    _print(verb.preview(recipe) | {"dry_run": True}, as_json, sources_text)


def _scan(recipe: Recipe, workers: int | None) -> tuple[Catalog, int]:
    from mmdata import scan as verb

    with _progress("scan", "samples") as progress:
        result = verb.scan(recipe, workers=_workers(recipe, workers), progress=progress.scan, waiting=progress.waiting)
    return result.catalog, result.measured


def _catalog(recipe: Recipe, workers: int | None, *, dry_run: bool) -> Catalog | None:
    """The recipe's catalog, scanned where there is none made with these settings (None in a dry run, or for one of
    several hosts, each of which would scan)."""
    from mmdata import scan as verb
    from mmdata.shards.catalog import has_catalog, open_catalog

    storage = _storage(recipe)
    if has_catalog(storage, recipe.catalog):
        catalog = open_catalog(storage, recipe.catalog)
        if catalog.scan == recipe.scan_fingerprint():
            verb.check_limit(catalog, recipe.limits)
            return catalog
        if not dry_run:
            print(f"mmdata: {recipe.catalog} was scanned with other settings: scanning again", file=sys.stderr)
    return None if dry_run else _scan(recipe, workers)[0]


def _catalog_summary(catalog: Catalog) -> dict[str, Any]:
    return {"catalog": catalog.url, "samples": catalog.rows, "status": catalog.counts, "ignored": catalog.ignored}


def _plan_summary(recipe: Recipe, catalog: Catalog) -> dict[str, Any]:
    from collections import Counter

    from mmdata.shards.dataset import has_dataset, open_manifest
    from mmdata.shards.plan import make_plan
    from mmdata.shards.records import committed_numbers

    storage, output = _storage(recipe), recipe.output.path
    plan = make_plan(recipe, catalog)
    buckets = Counter(plan.buckets[code].name if code >= 0 else "none" for code in plan.bucket.tolist())
    finished = has_dataset(storage, output) and open_manifest(storage, output).plan == plan.fingerprint
    numbers = range(len(plan.shards))
    built = len(numbers) if finished else len(committed_numbers(storage, output, plan.fingerprint, numbers))
    return {
        "catalog": catalog.url,
        "output": output,
        "read": plan.read,
        "samples": len(plan.order),
        "shards": len(plan.shards),
        "shards_built": built,
        "buckets": dict(sorted(buckets.items())),
        "packs": plan.pack_figures,
        "dropped": plan.dropped_counts,
        "dry_run": True,
    }


def _dataset_summary(url: str, manifest: Manifest) -> dict[str, Any]:
    from mmdata.shards.dataset import REPORT_FILE
    from mmdata.storage.urls import join

    return {
        "dataset": url,
        "samples": manifest.samples,
        "shards": len(manifest.shards),
        "bytes": manifest.bytes,
        "read": manifest.conservation.read,
        "dropped": manifest.conservation.dropped,
        "ignored": manifest.ignored,
        "report": join(url, REPORT_FILE),
    }


def _print(result: Mapping[str, Any], as_json: bool, text: Callable[[Any], str]) -> None:
    """The result on standard output: JSON, or lines for people."""
    lines = json.dumps(result, ensure_ascii=False) if as_json else text(result)
    try:
        print(lines, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write the result to standard output: {error.strerror}") from error
