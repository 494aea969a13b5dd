"""What workers need of a plan, as one Arrow file that they map into memory: a plan of 10 million rows costs no
copies."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mmdata.shards.buckets import Bucket
from mmdata.shards.plan import Plan, PlannedShard


@dataclass(frozen=True)
class WorkPlan:
    """The mapped plan: shards, buckets, and [M] arrays over the samples in output order."""

    fingerprint: str
    shards: tuple[PlannedShard, ...]
    buckets: tuple[Bucket, ...]
    order: npt.NDArray[np.int64]
    bucket: npt.NDArray[np.int32]
    pack: npt.NDArray[np.int64]


def save_plan(plan: Plan, path: str) -> None:
    """Write the file, atomically."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    head = {
        "fingerprint": plan.fingerprint,
        "shards": [asdict(shard) for shard in plan.shards],
        "buckets": [asdict(bucket) for bucket in plan.buckets],
    }
    table = pa.table({"order": plan.order, "bucket": plan.bucket, "pack": plan.pack})
    table = table.replace_schema_metadata({"plan": json.dumps(head)})
    temporary = f"{path}.{os.getpid()}.tmp"
    with pa.OSFile(temporary, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(table.combine_chunks().to_batches()[0])
    os.replace(temporary, path)


def load_plan(path: str) -> WorkPlan:
    """Map the file."""
    reader = pa.ipc.open_file(pa.memory_map(path))
    head = json.loads(reader.schema.metadata[b"plan"])
    batch = reader.get_batch(0)
    return WorkPlan(
        fingerprint=head["fingerprint"],
        shards=tuple(PlannedShard(**shard) for shard in head["shards"]),
        buckets=tuple(Bucket(**bucket) for bucket in head["buckets"]),
        order=batch["order"].to_numpy(),
        bucket=batch["bucket"].to_numpy(),
        pack=batch["pack"].to_numpy(),
    )
