"""The widgets' data: the schema, the user's source, params as text, the bundle, and the page without a kernel."""
