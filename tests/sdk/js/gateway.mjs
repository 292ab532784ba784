// The gateway's own binary as a child process, with a facade of Document Intelligence.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const BINARY = resolve(process.env.NEVERTWICE_BIN ?? join(import.meta.dirname, "../../../target/debug/nevertwice"));
const START_MS = 30_000;
const KEYS = { DEV_1_KEY: "key-of-dev_1-0123456789abcdef", DEV_2_KEY: "key-of-dev_2-0123456789abcdef" };

export class Gateway {
  #process;
  #folder = mkdtempSync(join(tmpdir(), "nevertwice-js-"));

  /** In front of a service; `store` is its store in the configuration, the embedded one unless given. */
  static async start(service, store) {
    // Another process may take a free port before the gateway binds it: then others are tried.
    for (let attempt = 1; ; attempt++) {
      const gateway = new Gateway();
      await gateway.#configure(service, store);
      try {
        await gateway.spawn();
        return gateway;
      } catch (error) {
        await gateway.stop();
        if (attempt === 3 || !String(error).includes("in use")) throw error;
      }
    }
  }

  key(tenant) {
    return KEYS[`${tenant.toUpperCase()}_KEY`];
  }

  async spawn() {
    const log = openSync(join(this.#folder, "gateway.log"), "a");
    this.#process = spawn(BINARY, ["serve", "--config", join(this.#folder, "gateway.yaml")], {
      env: { ...process.env, ...KEYS },
      stdio: ["ignore", log, log],
    });
    for (const until = Date.now() + START_MS; Date.now() < until && this.#process.exitCode === null; await sleep(50)) {
      const ready = await fetch(`${this.admin}/readyz`).catch(() => null);
      if (ready?.status === 200) return;
    }
    throw new Error(`the gateway did not get ready; it said:\n${readFileSync(join(this.#folder, "gateway.log"))}`);
  }

  /** As a machine that loses its power does. */
  async kill() {
    if (this.#process.exitCode === null && this.#process.signalCode === null) {
      this.#process.kill("SIGKILL");
      await once(this.#process, "exit");
    }
  }

  async stop() {
    await this.kill();
    rmSync(this.#folder, { recursive: true });
  }

  async remembered() {
    const answer = await fetch(`${this.admin}/admin/v1/refusals?limit=1000`);
    return (await answer.json()).items.length;
  }

  async #configure(service, store = `embedded: { path: "${this.#folder}/store" }`) {
    const [port, adminPort] = await freePorts(2);
    this.url = `http://127.0.0.1:${port}`;
    this.admin = `http://127.0.0.1:${adminPort}`;
    // At the root: the library looks for an operation's id in addresses whose path begins with /documentintelligence.
    const config = `
listen: 127.0.0.1:${port}
tenants:
  - { id: dev_1, key: "env:DEV_1_KEY", routes: ["*"] }
  - { id: dev_2, key: "env:DEV_2_KEY", routes: ["*"] }
admin: { listen: 127.0.0.1:${adminPort} }
store: { ${store} }
audit: { file: "${this.#folder}/audit.jsonl" }
negative_cache: { enabled: true }
upstreams:
  - { name: documents, adapter: azuredi-facade, base_url: "${service.url}", mount: / }
`;
    writeFileSync(join(this.#folder, "gateway.yaml"), config);
  }
}

/** Ports of the loopback address that nobody listens on now. */
export async function freePorts(count) {
  const servers = await Promise.all(
    Array.from({ length: count }, async () => {
      const server = createServer().listen(0, "127.0.0.1");
      await once(server, "listening");
      return server;
    }),
  );
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((closed) => server.close(closed))));
  return ports;
}
