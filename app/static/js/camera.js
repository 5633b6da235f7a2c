// The live camera: a few pictures a second are classified, one at a time. A tap makes a card of what is shown.
import { classify } from "./api.js";
import { modelToAsk } from "./model-select.js";
import { drawn } from "./shrink.js";
import { byId, h, mark, ms, soft, t } from "./ui.js";

const SIDE = 448;
const PAUSE_MS = 250;
const MAX_PAUSE_MS = 8000;

let close = null;

/** Open the camera, or close the open one; `take` gets the pictures that are tapped. */
export async function camera(take) {
  if (close) return close();
  const place = byId("viewfinder");
  const over = new AbortController();
  let stream;
  try {
    if (!navigator.mediaDevices) throw new Error(t("camera_none"));
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    byId("refused").textContent = t("camera_refused", { reason: error.message });
    byId("refused").hidden = false;
    return null;
  }
  byId("refused").hidden = true;
  const video = h("video", { srcObject: stream, muted: true, playsInline: true, autoplay: true });
  const answer = h("div", { class: "live" });
  const shutter = h("button", { class: "frame", type: "button", "aria-label": t("camera_tap") }, video, answer);
  const end = h("button", { class: "button small quiet", type: "button" }, t("camera_close"));
  place.replaceChildren(shutter, h("p", { class: "note" }, t("camera_hint")), end);
  place.hidden = false;
  close = () => {
    over.abort();
    for (const track of stream.getTracks()) track.stop();
    place.replaceChildren();
    place.hidden = true;
    close = null;
  };
  end.addEventListener("click", close);
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); }, { signal: over.signal });
  shutter.addEventListener("click", async () => {
    const photo = await drawn(video, video.videoWidth, video.videoHeight);
    take([new File([photo], t("camera_name", { time: new Date().toLocaleTimeString() }), { type: photo.type })]);
  });
  video.addEventListener("loadeddata", () => watch(video, answer, over.signal), { once: true });
  return null;
}

/** Ask about the middle square of the picture until the signal; ask less often while the server is busy. */
async function watch(video, place, signal) {
  for (let pauseMs = PAUSE_MS; !signal.aborted;) {
    const { videoWidth: width, videoHeight: height } = video;
    const side = Math.min(width, height);
    const photo = await drawn(video, SIDE, SIDE, (width - side) / 2, (height - side) / 2, side);
    const started = performance.now();
    try {
      const { verdict } = await classify(photo, "camera.jpg", modelToAsk(), signal);
      place.replaceChildren(h("b", {}, ...soft(verdict.text)), mark(verdict), h("span", { class: "share" }, ms(performance.now() - started)));
      pauseMs = PAUSE_MS;
    } catch (error) {
      if (signal.aborted) return;
      pauseMs = Math.min(MAX_PAUSE_MS, 2 * pauseMs);
      place.textContent = error.code === "too_many_requests" ? t("camera_slower") : error.message;
    }
    await new Promise((done) => { setTimeout(done, pauseMs); });
  }
}
