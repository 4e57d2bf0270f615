"""The pipeline's jobs on Spark while their driver, their workers and the brokers are killed."""
