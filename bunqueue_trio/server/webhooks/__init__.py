"""Webhooks: who is to be told of what (`registry`), and how it gets there (`delivering`, `sending`, `dialing`)."""
