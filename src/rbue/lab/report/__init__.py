"""Tables, figures and one self-contained page.

:mod:`~rbue.lab.report.figures` and :mod:`~rbue.lab.report.illustrations` draw, :mod:`~rbue.lab.report.tables`
tabulates, :mod:`~rbue.lab.report.chance` judges what is more than chance, :mod:`~rbue.lab.report.page` puts it all into
one HTML file, and :mod:`~rbue.lab.report.run_report` does all of it for run folders (``rbue report``).
"""
