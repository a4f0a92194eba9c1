"""Programs and their origins → frozen reports."""
