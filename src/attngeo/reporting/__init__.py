"""The report and the explorer: ask the other rooms for what is missing and hand it to `show`."""

__all__: list[str] = []
