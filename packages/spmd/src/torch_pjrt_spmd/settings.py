"""What a user may set of this package, at any time: `torch_pjrt_spmd.config`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Settings:
    """All settings.

    bandwidth   of an axis of meshes by its name: the bytes that a chip sends along it in a second. Reports
                estimate times of collectives by it; there are none where it is unknown.
    warn_of_replicated_bytes   a program's input as large as this, whole on each chip while most of what the
                program takes is spread, is a `ShardingWarning`. None: never.
    warn_of_resharded_bytes    so is a collective that gives each chip as much of something computed, neither
                to add it up nor because a mark asks for it. XLA's text of each program is read for it, which
                takes some hundredths of the time that compiling it took. None, unless it is set: never.
    compare_uploads  where processes share a mesh, a launch compares checksums of what each has put on it
                since the last one, where they are to have the same.
    note_lines  the lines of operators are noted where a mesh has chips of several processes, so that these
                can say where their programs differ. Takes some microseconds for each operator. To be set
                before the first mesh.
    """

    bandwidth: dict[str, float] = field(default_factory=dict)
    warn_of_replicated_bytes: int | None = 64 << 20
    warn_of_resharded_bytes: int | None = None
    compare_uploads: bool = True
    note_lines: bool = True


config = Settings()
