"""What every report is made of: tables, figures and messages."""
