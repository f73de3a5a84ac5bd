"""Training tools of others, whose evaluation is then :func:`rbue.predict` and not one random pass.

Import the one you use: :mod:`rbue.integrations.lightning`, :mod:`rbue.integrations.transformers`,
:mod:`rbue.integrations.sklearn`. Each needs the extra of its name.
"""

from rbue.integrations.outputs import as_outputs

__all__ = ["as_outputs"]
