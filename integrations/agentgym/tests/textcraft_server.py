"""A TextCraft server that speaks AgentGym's protocol over the library's own crafting world.

Usage: python textcraft_server.py; prints its port.
"""

import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from amc_agents.envs.crafting import CraftingWorld, generate_tasks

SLOW = "slow"
"""An action that is answered after a second."""


class Environments:
    def __init__(self):
        self.tasks = list(generate_tasks(20, "test", optimal_steps=(3, 6)))
        self.worlds = {}
        self.created = 0

    def create(self, commands=None, goal=None):
        number, self.created = self.created, self.created + 1
        self.worlds[number] = CraftingWorld()
        return {"id": number, **self._begin(number, number % len(self.tasks))}

    def reset(self, id, data_idx=0):
        return {"id": id, **self._begin(id, data_idx)}

    def step(self, id, action):
        if action == SLOW:
            asyncio.run(asyncio.sleep(1))
        answer = asyncio.run(self.worlds[id].step(action))
        return {"observation": answer.observation, "reward": answer.reward, "done": answer.done}

    def close(self, id):
        del self.worlds[id]
        return True

    def _begin(self, id, data_idx):
        answer = asyncio.run(self.worlds[id].reset(self.tasks[data_idx]))
        return {"observation": answer.observation, "done": False, "reward": 0}


class Handler(BaseHTTPRequestHandler):
    environments = Environments()

    def do_GET(self):
        self._answer(sorted(self.environments.worlds))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            self._answer(getattr(self.environments, self.path[1:])(**body))
        except Exception as error:
            self._answer({"error": str(error)})

    def _answer(self, value):
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
