import json

json.loads('{"lr": 0.1,}')
