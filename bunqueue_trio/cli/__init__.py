"""The command line. Knows settings and exit codes, no queue rule."""
