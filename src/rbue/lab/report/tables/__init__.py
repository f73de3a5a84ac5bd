"""Small tables of measurements, and the same table as Markdown, LaTeX, CSV and HTML."""

from rbue.lab.report.tables.html import html_table
from rbue.lab.report.tables.latex import latex_table
from rbue.lab.report.tables.markdown import markdown_table
from rbue.lab.report.tables.model import Cell, Column, Table
from rbue.lab.report.tables.spreadsheet import csv_table

__all__ = ["Cell", "Column", "Table", "csv_table", "html_table", "latex_table", "markdown_table"]
