"""Models on disk: the ``.ninfer`` container, weight formats, importers and checkpoints."""
