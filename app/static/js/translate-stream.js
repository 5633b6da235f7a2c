// Server-sent events with words as they are made; EventSource cannot be used, as it supports only GET.
import { failed, reaching } from "./api.js";

/** Post `body` and return the whole answer; `onPiece` gets each piece as it arrives. Throws a Failure. */
export async function streamed(address, body, signal, onPiece, headers = {}) {
  const response = await reaching(() => fetch(address, {
    method: "POST", signal, body, headers: { ...headers, Accept: "text/event-stream, application/json", "X-Requested-With": "fetch" },
  }));
  if (!response.ok) throw await failed(response);
  for await (const { event, data } of events(response.body)) {
    if (event === "piece") onPiece(data.text);
    if (event === "error") throw await failed(data);
    if (event === "done") return data;
  }
  throw await failed(null);
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reaching(() => reader.read());
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: ?(.*)/s, 2)));
      if (fields.event) yield { event: fields.event, data: JSON.parse(fields.data) };
    }
  }
}
