"""The GPU kit: stages that show on a host with a GPU what Ballast does there (docs/gpu.md)."""
