"""Tables, figures and one self-contained page.

:mod:`rbue.report.figures` draws, :mod:`rbue.report.tables` tabulates, :mod:`rbue.report.page` puts both into one HTML
file, and :mod:`rbue.report.of_runs` does all of it for run folders (``rbue report``).
"""
