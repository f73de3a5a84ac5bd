"""A report of run folders: what ``rbue report`` writes."""

from rbue.lab.report.of_runs.comparison import PaperValue, comparison_table, no_paper, runs_table
from rbue.lab.report.of_runs.reading import Group, Record, group_records, read_records
from rbue.lab.report.of_runs.report import Report, report_on

__all__ = [
    "Group",
    "PaperValue",
    "Record",
    "Report",
    "comparison_table",
    "group_records",
    "no_paper",
    "read_records",
    "report_on",
    "runs_table",
]
