"""The building blocks of reports: tables, figures and messages."""
