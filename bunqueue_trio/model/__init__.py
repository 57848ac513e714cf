"""Records of the domain: what a job, a lease, a setting and a command are. No behaviour beyond derived properties."""
