"""What knows a work directory: its stages, its parameters, its training, its labelled pairs and its rankings."""
