// A Document Intelligence service (v4.0) that counts, on a free port of the loopback address. What becomes of a document is said
// by a marker in the body of its submit. Nothing said: it is analyzed.

import { once } from "node:events";
import { createServer } from "node:http";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const PATIENCE_MS = 20_000;
const TIMES = { createdDateTime: "2026-03-01T10:00:00Z", lastUpdatedDateTime: "2026-03-01T10:00:01Z" };

export function fault(inner, code = "InvalidRequest") {
  return { code, message: `It is ${code}.`, innererror: { code: inner, message: `It is ${inner} é.` } };
}

export class Service {
  #server = createServer((request, response) => this.#answer(request, response));
  #fates = new Map();
  #operations = new Map();
  /** All that arrived, in order: `{method, url, headers, body}`; the body of a poll is that of its submit. */
  calls = [];

  static async start() {
    const service = new Service();
    service.#server.listen(0, "127.0.0.1");
    await once(service.#server, "listening");
    service.url = `http://127.0.0.1:${service.#server.address().port}`;
    return service;
  }

  stop() {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  /** `{refused, failed, running}`: the error of a refused submit, that of a failed operation, whether it goes on for now. */
  on(marker, fate) {
    this.#fates.set(marker, fate);
    return fate;
  }

  forgetOperations() {
    this.#operations.clear();
  }

  submits(marker) {
    return this.calls.filter((call) => call.method === "POST" && call.body.includes(marker));
  }

  polls(marker) {
    return this.calls.filter((call) => call.method === "GET" && call.body.includes(marker));
  }

  async waitForPoll(marker) {
    for (const until = Date.now() + PATIENCE_MS; this.polls(marker).length === 0; await sleep(20)) {
      if (Date.now() > until) throw new Error(`no poll of ${marker} came`);
    }
  }

  async #answer(request, response) {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    const url = new URL(request.url, this.url);
    const operation = this.#operations.get(/analyzeResults\/([^/]+)/.exec(url.pathname)?.[1]);
    const body = request.method === "GET" ? (operation?.body ?? "") : Buffer.concat(pieces).toString();
    this.calls.push({ method: request.method, url: request.url, headers: request.headers, body });
    const json = (status, value) => {
      response.writeHead(status, { "content-type": "application/json; charset=utf-8", "apim-request-id": randomUUID() });
      response.end(JSON.stringify(value));
    };
    if (request.method === "POST") return this.#submit(url, body, response, json);
    if (operation === undefined) return json(404, { error: fault("OperationNotFound", "NotFound") });
    const { fate } = operation;
    if (fate.running) return json(200, { status: "running", ...TIMES });
    if (fate.failed) return json(200, { status: "failed", ...TIMES, error: fate.failed });
    const analyzeResult = { apiVersion: "2024-11-30", modelId: "prebuilt-read", content: operation.body, pages: [] };
    return json(200, { status: "succeeded", ...TIMES, analyzeResult });
  }

  #submit(url, body, response, json) {
    const fate = [...this.#fates].find(([marker]) => body.includes(marker))?.[1] ?? {};
    if (fate.refused) return json(400, { error: fate.refused });
    const id = randomUUID();
    this.#operations.set(id, { body, fate });
    const path = url.pathname.replace(/:analyze$/, `/analyzeResults/${id}`);
    response.writeHead(202, {
      "operation-location": `${this.url}${path}?api-version=${url.searchParams.get("api-version")}`,
      "apim-request-id": randomUUID(),
      "content-length": "0",
    });
    response.end();
  }
}
