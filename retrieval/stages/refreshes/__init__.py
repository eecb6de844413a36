"""What a refresh makes, one kind a file. `refresh_kind.REFRESHES` imports them."""
