"""When a cron fires: the expression dialect, zones, daylight saving, intervals. Arithmetic only, no clock is read.

``timing`` is the door: it turns a cron's definition into a Timing, whose methods name the next run. Behind it
``pattern`` puts ``dialect`` (text), ``days`` (which days), ``search`` (the next wall time) and ``zones`` (wall time to
instant) together.
"""
