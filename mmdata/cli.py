"""The `mmdata` command. It composes the verbs; each lives in a module of its own that is imported when it is called.

Results go to standard output (`--json` for programs), logs to standard error. Exit codes: 0 ok, 1 failed, 2 usage or
configuration, 3 over the error limit.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmdata.errors import TesseraError

if TYPE_CHECKING:
    from mmdata.recipe import Recipe
    from mmdata.shards.catalog import Catalog

app = typer.Typer(
    name="mmdata",
    help="From raw images, video, audio and text to verified shards.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

RecipeFile = Annotated[str, typer.Argument(help="Recipe file (YAML).", metavar="RECIPE")]
DatasetFolder = Annotated[str, typer.Argument(help="Dataset folder or URL.", metavar="DATASET")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override a setting: --set output.max_samples=500.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes; 0 is one for each core.", min=0)]


def main() -> None:
    """Entry point of the `mmdata` command."""
    try:
        app()
    except TesseraError as error:
        print(f"mmdata: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("mmdata: interrupted; the same command goes on where it stopped", file=sys.stderr)
        raise SystemExit(130) from None


@app.command()
def scan(
    recipe: RecipeFile,
    set_: Overrides = None,
    workers: Workers = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Open every medium of the sources once and write the catalog."""
    loaded = _load(recipe, set_)
    if dry_run:
        return _print({"catalog": loaded.catalog, "sources": [s.type for s in loaded.source], "dry_run": True}, as_json)
    catalog, measured = _scan(loaded, workers)
    _print(_catalog_summary(catalog) | {"measured": measured}, as_json)


@app.command()
def build(
    recipe: RecipeFile,
    set_: Overrides = None,
    workers: Workers = None,
    shard_range: Annotated[str | None, typer.Option(help="Build shards I/N only; then run `mmdata commit`.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a dataset built from another recipe or catalog.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build the dataset of a recipe; scans first where there is no catalog that fits."""
    from mmdata import build as verb

    loaded = _load(recipe, set_)
    catalog = _catalog(loaded, workers, dry_run=dry_run)
    if catalog is None:
        return _print({"catalog": loaded.catalog, "would": "scan, then plan", "dry_run": True}, as_json)
    if dry_run:
        from mmdata.shards.plan import make_plan

        return _print(_plan_summary(make_plan(loaded, catalog)) | {"dry_run": True}, as_json)
    manifest = verb.finished(loaded, catalog)
    if manifest is not None:
        return _print(_dataset_summary(loaded.output.path, manifest) | {"unchanged": True}, as_json)
    prepared = verb.prepare(loaded, catalog, overwrite=overwrite)
    count = len(prepared.plan.shards)
    numbers = range(count) if shard_range is None else verb.shard_range(shard_range, count)
    with _Progress("build", "samples") as progress:
        built = verb.build_shards(prepared, numbers, workers=_workers(loaded, workers), progress=progress.build)
    if shard_range is not None:
        return _print({"shards_built": built, "range": [numbers.start, numbers.stop], "shards": count}, as_json)
    _print(_dataset_summary(loaded.output.path, verb.commit(prepared)), as_json)


@app.command()
def commit(recipe: RecipeFile, set_: Overrides = None, overwrite: bool = False, as_json: AsJson = False) -> None:
    """Fold the shards that `build --shard-range` made into a finished dataset."""
    from mmdata import build as verb
    from mmdata.shards.catalog import open_catalog
    from mmdata.storage import StorageSettings, open_storage

    loaded = _load(recipe, set_)
    catalog = open_catalog(open_storage(StorageSettings(**loaded.storage.arguments())), loaded.catalog)
    manifest = verb.finished(loaded, catalog)
    if manifest is None:
        manifest = verb.commit(verb.prepare(loaded, catalog, overwrite=overwrite))
    _print(_dataset_summary(loaded.output.path, manifest), as_json)


@app.command()
def verify(
    dataset: DatasetFolder,
    workers: Workers = None,
    decode: Annotated[bool, typer.Option(help="Also decode every medium.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a dataset against its manifest and index; names each damaged shard and sample."""
    from mmdata.shards.verify import verify_dataset

    with _Progress("verify", "shards") as progress:
        result = verify_dataset(dataset, workers=workers or os.cpu_count() or 1, decode=decode, progress=progress.count)
    _print(result.to_dict(), as_json, text=result.to_text())
    if not result.ok:
        raise typer.Exit(1)


@app.command()
def inspect(
    target: Annotated[str, typer.Argument(help="Dataset, catalog, or one shard.", metavar="DATASET|SHARD|CATALOG")],
    sample: Annotated[str | None, typer.Option(help="Extract the members of this sample.", metavar="KEY")] = None,
    explain: Annotated[
        str | None, typer.Option(help="Tell the way of this sample, or why it was dropped.", metavar="KEY")
    ] = None,
    bad: Annotated[bool, typer.Option("--bad", help="List the samples that were dropped or are bad.")] = False,
    to: Annotated[str, typer.Option(help="Folder that --sample writes to.")] = ".",
    as_json: AsJson = False,
) -> None:
    """Show what a dataset, catalog or shard holds."""
    from mmdata import inspect as verb

    if sample is not None:
        return _print(verb.extract(target, sample, to), as_json)
    if explain is not None:
        return _print(verb.explain(target, explain), as_json)
    _print(verb.list_bad(target) if bad else verb.describe(target), as_json)


@app.command()
def init(
    folder: Annotated[str, typer.Argument(help="Folder or URL with media.", metavar="FOLDER")],
    recipe: Annotated[str, typer.Option(help="Recipe file to write.")] = "recipe.yaml",
    output: Annotated[str, typer.Option(help="Dataset folder that the recipe will name.")] = "dataset",
    force: Annotated[bool, typer.Option(help="Replace an existing recipe file.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Look at a folder and write a commented recipe for it."""
    from mmdata.init import write_recipe

    result = write_recipe(folder, recipe, output, force=force, dry_run=dry_run)
    _print(result.to_dict(), as_json, text=result.to_text())


def _load(path: str, overrides: list[str] | None) -> Recipe:
    from mmdata.operators.registry import load_builtin, prepare
    from mmdata.recipe import load

    load_builtin()
    recipe = load(path, overrides or ())
    prepare(recipe)
    return recipe


def _workers(recipe: Recipe, option: int | None) -> int:
    return (recipe.workers if option is None else option) or len(os.sched_getaffinity(0))


def _scan(recipe: Recipe, workers: int | None) -> tuple[Catalog, int]:
    from mmdata import scan as verb

    with _Progress("scan", "samples") as progress:
        result = verb.scan(recipe, workers=_workers(recipe, workers), progress=progress.scan)
    return result.catalog, result.measured


def _catalog(recipe: Recipe, workers: int | None, *, dry_run: bool) -> Catalog | None:
    """The recipe's catalog, scanned where there is none made with these settings (None in a dry run)."""
    from mmdata import scan as verb
    from mmdata.shards.catalog import has_catalog, open_catalog
    from mmdata.storage import StorageSettings, open_storage

    storage = open_storage(StorageSettings(**recipe.storage.arguments()))
    if has_catalog(storage, recipe.catalog):
        catalog = open_catalog(storage, recipe.catalog)
        if catalog.scan == recipe.scan_fingerprint():
            verb.check_limit(catalog, recipe.limits)
            return catalog
        print(f"mmdata: {recipe.catalog} was scanned with other settings: scanning again", file=sys.stderr)
    return None if dry_run else _scan(recipe, workers)[0]


def _catalog_summary(catalog: Catalog) -> dict[str, Any]:
    return {"catalog": catalog.url, "samples": catalog.rows, "status": catalog.counts, "ignored": catalog.ignored}


def _plan_summary(plan: Any) -> dict[str, Any]:
    from collections import Counter

    buckets = Counter(plan.buckets[code].name if code >= 0 else "none" for code in plan.bucket.tolist())
    return {
        "samples": len(plan.order),
        "shards": len(plan.shards),
        "buckets": dict(sorted(buckets.items())),
        "packs": plan.pack_figures,
        "dropped": plan.dropped_counts,
    }


def _dataset_summary(url: str, manifest: Any) -> dict[str, Any]:
    from mmdata.storage.urls import join

    return {
        "dataset": url,
        "samples": manifest.samples,
        "shards": len(manifest.shards),
        "bytes": manifest.bytes,
        "read": manifest.conservation.read,
        "dropped": manifest.conservation.dropped,
        "ignored": manifest.ignored,
        "report": join(url, "report.html"),
    }


def _print(result: dict[str, Any], as_json: bool, text: str | None = None) -> None:
    """The result on standard output: JSON, or lines for people."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        print(text if text is not None else "\n".join(_lines(result)))


def _lines(result: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    width = max((len(str(name)) for name in result), default=0)
    for name, value in result.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{name}", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{indent}{name}", *_table(value, indent + "  ")]
        elif value not in (None, {}, []):
            lines.append(f"{indent}{name!s:<{width}}  {value}")
    return lines


def _table(rows: list[dict[str, Any]], indent: str) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([("" if row.get(name) is None else str(row[name])) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


class _Progress:
    """A progress bar on standard error when it is a terminal, otherwise nothing."""

    def __init__(self, verb: str, unit: str) -> None:
        self._verb, self._unit = verb, unit
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._verb, total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self, done: int, total: int | None, note: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=f"{self._verb} {self._unit}{note}")

    def scan(self, done: int, bad: int) -> None:
        """Progress of a scan, whose end is not known."""
        self._show(done, None, f" ({bad} bad)" if bad else "")

    def build(self, done: int, total: int, dropped: int) -> None:
        """Progress of a build."""
        self._show(done, total, f" ({dropped} failed)" if dropped else "")

    def count(self, done: int, total: int) -> None:
        """Progress of a plain count."""
        self._show(done, total, "")
