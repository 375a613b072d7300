"""`inspect_task`: reads a task as the trainer does, prints it and draws its lengths."""
