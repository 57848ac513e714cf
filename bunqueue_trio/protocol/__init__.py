"""The wire as pure bytes: framing, codec and checks. No sockets, no clocks, no queue rules."""
