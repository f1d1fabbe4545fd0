"""What data sets and their splits may be called: both are parts of file names."""

import re

SET_NAME = re.compile(r"\w[\w.-]*")
SPLIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
