"""A package for each feature: its analysis, its report and its texts."""
