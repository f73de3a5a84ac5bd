"""The laboratory: the paper's methods, networks, data, corruptions, trainings, tables and figures, and the command.

``pip install 'rbue[lab]'`` brings what it needs. The library never imports it.
"""
