"""Pure decisions: functions of state and event, without clocks, sockets or random numbers."""
