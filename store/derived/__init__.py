"""What is built from the CommitLog and can always be built again: ConsumeQueues and IndexFiles."""
