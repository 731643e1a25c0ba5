"""The commands: ``ninfer COMMAND ...`` and ``ninfer-serve``."""
