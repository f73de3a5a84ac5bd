"""From uncertainty to decisions: sets of classes, abstaining, what does not belong, what to label next.

``prediction`` is what :func:`rbue.predict` gives, or the output of any other library: a tensor or NumPy array of
probabilities ``(B, C)`` or of samples ``(S, B, C)``. Everything is computed in float64 and comes back as tensors on the
device of the input.
"""

from rbue.decisions import abstaining, acquiring, conformal, out_of_distribution

__all__ = ["abstaining", "acquiring", "conformal", "out_of_distribution"]
