# truth: rank=1 line=0 kind=exit says=1
# also: disk_serial_mismatch
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/26_json_line_without_newline.py
import json, os, sys, time
rank = int(os.environ["RANK"])
time.sleep(0.5)
if rank == 1:  # a tool that logs JSON, without an end of line
    sys.stderr.write(json.dumps({"level": "fatal", "error": "disk_serial_mismatch", "context": list(range(2000))}))
    sys.stderr.flush()
    os._exit(1)
time.sleep(60)
