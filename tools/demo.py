"""The demo: make a small media folder, then scan, build and verify it with the quickstart recipe.

python tools/demo.py FOLDER
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from demo_corpus import make_corpus

RECIPE = Path(__file__).resolve().parents[1] / "pipelines" / "quickstart" / "recipe.yaml"


def main(folder: Path) -> int:
    """Run the demo in `folder`; returns the exit code."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "media").mkdir(parents=True)
    made = make_corpus(folder / "media")
    print(f"made {', '.join(f'{count} {kind}' for kind, count in made.items())} in {folder / 'media'}")
    recipe = folder / "recipe.yaml"
    text = RECIPE.read_text(encoding="utf-8")
    recipe.write_text(text.replace("../../schemas/", f"{RECIPE.parents[2] / 'schemas'}/"), encoding="utf-8")
    dataset = folder / "dataset"
    for verb, target in (("scan", recipe), ("build", recipe), ("verify", dataset), ("inspect", dataset)):
        print(f"\n$ mmdata {verb} {target}", flush=True)
        code = subprocess.run([sys.executable, "-m", "mmdata", verb, str(target)], check=False).returncode
        if code:
            return code
    print(f"\nshards: {dataset / 'shards'}\nreport: {dataset / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo")))
