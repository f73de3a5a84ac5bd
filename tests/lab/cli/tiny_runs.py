"""Options of a run that takes a fraction of a second."""

TINY = ("--epochs", "1", "--batch", "128", "--width", "0.25")
