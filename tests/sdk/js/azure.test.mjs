// @azure-rest/ai-document-intelligence through the facade. The oracle is the service's own log.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import DocumentIntelligence, {
  getLongRunningPoller,
  isUnexpected,
  parseResultIdFromResponse,
} from "@azure-rest/ai-document-intelligence";

import { Gateway, freePorts } from "./gateway.mjs";
import { Service, fault } from "./service.mjs";

const GUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const RESULT = "/documentModels/{modelId}/analyzeResults/{resultId}";
// Its default is 2 s.
const POLLING = { intervalInMs: 50 };

let service, gateway;

before(async () => {
  service = await Service.start();
  gateway = await Gateway.start(service);
});

after(async () => {
  await gateway?.stop();
  service?.stop();
});

/** A client, and how many HTTP calls it made: `client.sent`. */
function open(tenant = "dev_1", url = gateway.url) {
  const options = { allowInsecureConnection: true };
  const client = DocumentIntelligence(url, { key: gateway.key(tenant) }, options);
  client.sent = 0;
  client.pipeline.addPolicy(
    { name: "count", sendRequest: (request, next) => (client.sent++, next(request)) },
    { afterPhase: "Retry" },
  );
  return client;
}

function submit(client, text) {
  const body = new TextEncoder().encode(`%PDF-1.7 ${text}`);
  const call = client.path("/documentModels/{modelId}:analyze", "prebuilt-read");
  return call.post({ contentType: "application/octet-stream", body, queryParameters: { pages: "1-2", locale: "de-AT" } });
}

function submitUrl(client, urlSource) {
  const call = client.path("/documentModels/{modelId}:analyze", "prebuilt-read");
  return call.post({ contentType: "application/json", body: { urlSource } });
}

/** The last answer to the polls of an operation. */
async function end(client, submitted) {
  assert.equal(submitted.status, "202", JSON.stringify(submitted.body));
  return getLongRunningPoller(client, submitted, POLLING).pollUntilDone();
}

/** How an operation ends that does not end well: what the library throws, or the answer that it gives back. */
async function failure(client, submitted) {
  return end(client, submitted).then(
    (answer) => answer.body.error,
    (error) => error,
  );
}

const isHit = (answer) => answer.headers["x-negative-cache"] === "HIT";

test("a good document is read", async () => {
  const client = open();
  const submitted = await submit(client, "good by JS");
  assert.ok(submitted.headers["operation-location"].startsWith(`${gateway.url}/documentintelligence/`));
  assert.match(parseResultIdFromResponse(submitted), GUID);
  const done = await end(client, submitted);
  assert.equal(done.body.status, "succeeded");
  assert.match(done.body.analyzeResult.content, /good by JS/);
  const [call, ...more] = service.submits("good by JS");
  assert.equal(more.length, 0);
  assert.match(call.url, /pages=1-2/);
  assert.match(call.url, /locale=de-AT/);
});

test("a refusal at the submit and its replay are read alike", async () => {
  service.on("refused by JS", { refused: fault("InvalidContent") });
  const seen = [];
  for (const replay of [false, true]) {
    const client = open();
    const refused = await submit(client, "refused by JS");
    assert.ok(isUnexpected(refused));
    assert.equal(client.sent, 1, "one HTTP call");
    assert.equal(isHit(refused), replay);
    assert.equal(refused.headers["operation-location"], undefined);
    seen.push([refused.status, refused.body]);
  }
  assert.deepEqual(seen[0], ["400", { error: fault("InvalidContent") }]);
  assert.deepEqual(seen[1], seen[0]);
  assert.equal(service.submits("refused by JS").length, 1);
});

test("a refusal at the poll and its replay are read alike", async () => {
  service.on("failing by JS", { failed: fault("InvalidContent") });
  const errors = [];
  for (const replay of [false, true, true]) {
    const client = open();
    const submitted = await submit(client, "failing by JS");
    assert.equal(isHit(submitted), replay);
    errors.push(await failure(client, submitted));
    const polled = await client.path(RESULT, "prebuilt-read", parseResultIdFromResponse(submitted)).get();
    assert.equal(isHit(polled), replay);
    assert.equal(polled.body.status, "failed");
    assert.deepEqual(polled.body.error, fault("InvalidContent"));
  }
  assert.match(String(errors[0].message ?? errors[0]), /InvalidRequest|InvalidContent/);
  assert.deepEqual(errors.map(String), Array(3).fill(String(errors[0])));
  assert.equal(service.submits("failing by JS").length, 1);
});

test("a transient failure at the poll is never remembered", async () => {
  const before = await gateway.remembered();
  service.on("transient by JS", { failed: { code: "InternalServerError", message: "An unexpected error occurred." } });
  for (const goesUp of [1, 2]) {
    const client = open();
    const submitted = await submit(client, "transient by JS");
    assert.equal(isHit(submitted), false);
    await failure(client, submitted);
    assert.equal(service.submits("transient by JS").length, goesUp);
  }
  assert.equal(await gateway.remembered(), before);
});

test("a refused URL is never remembered", async () => {
  const before = await gateway.remembered();
  for (const [at, fate] of [
    ["submit", { refused: fault("InvalidContent") }],
    ["poll", { failed: fault("InvalidContent") }],
  ]) {
    const url = `https://documents.example/by-js-${at}.pdf`;
    service.on(url, fate);
    for (const goesUp of [1, 2]) {
      const client = open();
      const submitted = await submitUrl(client, url);
      assert.equal(isHit(submitted), false);
      if (!isUnexpected(submitted)) await failure(client, submitted);
      assert.equal(service.submits(url).length, goesUp);
    }
  }
  assert.equal(await gateway.remembered(), before);
});

test("operations of others, of nobody and of yesterday are none", async () => {
  const client = open();
  const submitted = await submit(client, "lost by JS");
  const id = parseResultIdFromResponse(submitted);
  const calls = service.calls.length;
  const nobody = "11111111-2222-4333-8444-555555555555";
  for (const [tenant, asked] of [["dev_2", id], ["dev_1", nobody]]) {
    const answer = await open(tenant).path(RESULT, "prebuilt-read", asked).get();
    assert.ok(isUnexpected(answer));
    assert.equal(answer.status, "404");
    assert.equal(answer.body.error.code, "OPERATION_NOT_FOUND");
    assert.ok(answer.body.error.message);
  }
  assert.match(String(await failure(open("dev_2"), submitted)), /OPERATION_NOT_FOUND/);
  assert.equal(service.calls.length, calls);
  service.forgetOperations();
  const expired = await client.path(RESULT, "prebuilt-read", id).get();
  assert.ok(isUnexpected(expired));
  assert.equal(expired.status, "404");
  assert.ok(expired.body.error.code);
});

test("a gateway that dies in mid-poll loses no operation", async () => {
  for (const [text, ends] of [
    ["restart by JS", {}],
    ["restart and failure by JS", { failed: fault("InvalidContent") }],
  ]) {
    const fate = service.on(text, { ...ends, running: true });
    const client = open();
    const submitted = await submit(client, text);
    const ending = failure(client, submitted);
    await service.waitForPoll(text);
    await gateway.kill();
    await gateway.spawn();
    fate.running = false;
    const error = await ending;
    assert.equal(error === undefined, ends.failed === undefined, String(error));
    if (ends.failed) assert.ok(isHit(await submit(client, text)));
    assert.equal(service.submits(text).length, 1);
  }
});

test("two gateways on one Redis are one", async (t) => {
  const [port] = await freePorts(1);
  const folder = mkdtempSync(join(tmpdir(), "nevertwice-js-redis-"));
  const redis = spawn(
    "redis-server",
    ["--port", String(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
    { stdio: "ignore" },
  );
  const gateways = [];
  t.after(async () => {
    await Promise.all(gateways.map((each) => each.stop()));
    redis.kill("SIGKILL");
    await once(redis, "exit");
    rmSync(folder, { recursive: true });
  });
  await answers(port);
  const store = `redis: { url: "redis://127.0.0.1:${port}", read_ms: 2000, write_ms: 2000 }`;
  for (let n = 0; n < 2; n++) gateways.push(await Gateway.start(service, store));
  const [first, second] = gateways.map((each) => open("dev_1", each.url));
  for (const [text, fate] of [
    ["read over two by JS", {}],
    ["failing over two by JS", { failed: fault("InvalidContent") }],
  ]) {
    service.on(text, fate);
    const id = parseResultIdFromResponse(await submit(first, text));
    const polled = await second.path(RESULT, "prebuilt-read", id).get();
    assert.equal(polled.body.status, fate.failed ? "failed" : "succeeded", JSON.stringify(polled.body));
    if (!fate.failed) continue;
    const replay = await submit(first, text);
    assert.ok(isHit(replay));
    const replayed = await second.path(RESULT, "prebuilt-read", parseResultIdFromResponse(replay)).get();
    assert.deepEqual(replayed.body.error, fault("InvalidContent"));
    assert.equal(service.submits(text).length, 1);
  }
});

async function answers(port) {
  for (const until = Date.now() + 20_000; ; await sleep(50)) {
    const socket = connect(port, "127.0.0.1");
    const [event] = await Promise.race([
      once(socket, "connect").then(() => ["connect"]),
      once(socket, "error").then(() => ["error"]),
    ]).catch(() => ["error"]);
    socket.destroy();
    if (event === "connect") return;
    assert.ok(Date.now() < until, "Redis does not answer");
  }
}
