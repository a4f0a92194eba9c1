"""Where the time of a call goes, in Python and on the device."""
