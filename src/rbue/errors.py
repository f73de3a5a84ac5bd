"""The errors and warnings a user can meet: one sentence, the offending value, and the way out."""


class RbueError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidInput(RbueError, ValueError):
    """A value from the caller that cannot be used; the message names it and says what would be accepted."""


class ConversionError(RbueError, RuntimeError):
    """A network whose ReLU call sites cannot be found or made random."""


class RbueWarning(UserWarning):
    """Something worth knowing that does not stop the work."""
