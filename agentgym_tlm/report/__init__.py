"""One HTML file from run folders: tables, the paper's figures, and every episode turn by turn."""

from agentgym_tlm.report.page import write_report

__all__ = ["write_report"]
