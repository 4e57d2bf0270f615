"""Files that are built from the CommitLog and can be rebuilt: ConsumeQueues and IndexFiles."""
