"""Every table and figure of the paper as data: what to train, what to measure, what to draw, what it claims.

:mod:`~rbue.lab.paper.experiments` lists them; :mod:`~rbue.lab.paper.runner` does what is missing of them;
:mod:`~rbue.lab.paper.gathering` collects what was measured beside what the paper prints, whose
:mod:`~rbue.lab.paper.numbers` can be looked up; :mod:`~rbue.lab.paper.claims` compares its sentences with both.
``rbue paper`` is the command for all of it.
"""
