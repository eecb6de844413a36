"""Text and values from outside: decoded, checked, and named in errors by file, line and field."""
