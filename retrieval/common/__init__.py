"""What every room may use: errors, files, the registry, parsing, hosts and stores."""
