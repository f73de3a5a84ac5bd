"""Tables, figures and one self-contained page.

:mod:`rbue.lab.report.figures` draws, :mod:`rbue.lab.report.tables` tabulates, :mod:`rbue.lab.report.page` puts
both into one HTML file, and :mod:`rbue.lab.report.of_runs` does all of it for run folders (``rbue report``).
"""
