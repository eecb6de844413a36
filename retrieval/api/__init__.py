"""What `import retrieval` offers: `load`, `run`, and what they return."""
