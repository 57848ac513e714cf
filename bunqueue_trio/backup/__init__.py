"""Backups to S3 and the way back. Knows the data file and the bucket; knows no jobs, no server and no event loop
but in `keeper`."""
