// The server's interface: requests, streams, errors. Knows nothing of the page.

const KEY = "blockdraft-api-key"; // of this tab, until it is closed

/** A refusal; ``needsKey`` where an API key would help. */
export class ApiError extends Error {
  constructor(message, { needsKey = false } = {}) {
    super(message);
    this.needsKey = needsKey;
  }
}

/** Use a key from now on; an empty one forgets it. */
export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** What the server says of its model. */
export async function fetchModel() {
  const response = await send("v1/models");
  return (await response.json()).data[0];
}

/** Events of a chat answer as they come. */
export async function* streamChat(fields, signal) {
  const body = JSON.stringify({ ...fields, stream: true, stream_options: { include_usage: true } });
  const headers = { "Content-Type": "application/json" };
  const response = await send("v1/chat/completions", { method: "POST", body, headers, signal });
  for await (const data of eventsOf(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message);
    yield event;
  }
  throw new ApiError("the connection broke before the answer ended");
}

async function send(path, { headers = {}, ...options } = {}) {
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server cannot be reached");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let message = `the server answers with status ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // no object of ours, perhaps a proxy's page
  }
  const wait = response.headers.get("Retry-After");
  if (wait) message += `; try again in ${wait} s`;
  return new ApiError(message, { needsKey: response.status === 401 });
}

/** The data of server-sent events. Source: https://html.spec.whatwg.org, server-sent events. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: ")) yield event.slice(6);
  }
}
