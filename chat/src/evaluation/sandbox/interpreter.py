# Prints the interpreter that runs this, and what it needs to start, as JSON.
import json
import os
import sys

prefixes = dict.fromkeys([sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix])
places = [os.path.join(prefix, name) for prefix in prefixes for name in ("lib", "lib64", "pyvenv.cfg")]

# The executable of a virtual environment is a link, beside which its pyvenv.cfg is found.
executable = sys.executable if sys.prefix != sys.base_prefix else os.path.realpath(sys.executable)
path = executable
while os.path.islink(path):
    places.append(path)
    path = os.path.join(os.path.dirname(path), os.readlink(path))
places.append(os.path.normpath(path))

print(json.dumps({
    "version": ".".join(map(str, sys.version_info[:3])),
    "executable": executable,
    "places": [place for place in places if os.path.lexists(place)],
}))
