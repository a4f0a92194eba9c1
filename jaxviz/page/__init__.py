"""What the widgets are fed with: the schema, the user's source, params as text, the bundle, and the page that works without a kernel."""
