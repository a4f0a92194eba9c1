"""The notebook layer: the only importer of anywidget and IPython."""
