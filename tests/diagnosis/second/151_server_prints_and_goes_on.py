# truth: rank=1 line=0 kind=exception says=KeyError: 'model'
import os, sys, time, socket, struct
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
port = 20000 + int(os.environ["MASTER_PORT"]) % 9973
import socketserver
class H(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            d = self.request.recv(4)
            if d == b"\0\0\0\x05": {}["model"]
            self.request.sendall(d)
if rank == 0:
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    socketserver.ThreadingTCPServer(("127.0.0.1", port), H).serve_forever()
s = socket.socket()
while s.connect_ex(("127.0.0.1", port)): s.close(); s = socket.socket(); time.sleep(0.05)
for n in range(20):
    s.sendall(struct.pack("!I", n))
    if len(s.recv(4)) < 4: raise ConnectionError("server closed the connection")
