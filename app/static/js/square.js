// The square of a photo that the model sees, drawn over the photo. The reader moves and resizes it by
// dragging, with the arrow keys, plus and minus. The square is cropped before the photo is sent.
import { h, percent, say, t } from "./ui.js";

// x, y: the centre as shares of the sides; side: a share of the shorter side.
export const MIDDLE = { x: 0.5, y: 0.5, side: 1 };
const SMALLEST = 0.15;
const STEP = 0.05;
const SCALE = 1.15;
const QUIET_MS = 600;
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const clamp = (value, min, max) => Math.min(Math.max(value, min), Math.max(min, max));

/** Return the square's left, top and length in a picture of this size. */
export function placed({ x, y, side }, width, height) {
  const length = side * Math.min(width, height);
  return { left: x * width - length / 2, top: y * height - length / 2, length };
}

export class Square {
  #at = MIDDLE;
  #timer = 0;
  #picture;
  #changed;

  /** Draw a square over the img `picture`; `changed` gets its position once it has rested. */
  constructor(picture, name, changed) {
    this.#picture = picture;
    this.#changed = changed;
    this.element = h("div", { class: "square", role: "application", tabindex: "0", hidden: true,
      "aria-label": t("square_label", { name }) }, h("span", { class: "corner" }));
    picture.addEventListener("load", () => this.#show());
    picture.addEventListener("error", () => { this.element.hidden = true; });
    new ResizeObserver(() => this.#show()).observe(picture);
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.element.addEventListener("pointerdown", (event) => this.#drag(event, event.target !== this.element));
    picture.draggable = false;
  }

  get at() {
    return this.#at;
  }

  set at(at) {
    this.#at = at;
    this.#show();
  }

  /** The position of the photo within its element, whose other parts are empty. */
  get #photo() {
    const { naturalWidth, naturalHeight, clientWidth, clientHeight, offsetLeft, offsetTop } = this.#picture;
    const scale = Math.min(clientWidth / naturalWidth, clientHeight / naturalHeight);
    const [width, height] = [naturalWidth * scale, naturalHeight * scale];
    return { width, height, left: offsetLeft + (clientWidth - width) / 2, top: offsetTop + (clientHeight - height) / 2 };
  }

  #show() {
    this.element.hidden = !this.#picture.clientWidth || !this.#picture.naturalWidth;
    if (this.element.hidden) return;
    const photo = this.#photo;
    const { left, top, length } = placed(this.#at, photo.width, photo.height);
    Object.assign(this.element.style, { left: `${photo.left + left}px`, top: `${photo.top + top}px`, width: `${length}px`, height: `${length}px` });
  }

  /** Move the square to the nearest position that fits. */
  #put(x, y, side) {
    const { width, height } = this.#photo;
    side = clamp(side, SMALLEST, 1);
    const [half, shorter] = [side / 2, Math.min(width, height)];
    const [dx, dy] = [half * shorter / width, half * shorter / height];
    this.#at = { x: clamp(x, dx, 1 - dx), y: clamp(y, dy, 1 - dy), side };
    this.#show();
  }

  #settled() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#changed(this.#at), QUIET_MS);
  }

  #key(event) {
    const { x, y, side } = this.#at;
    const { width, height } = this.#photo;
    const step = STEP * Math.min(width, height);
    if (KEYS[event.key]) this.#put(x + KEYS[event.key][0] * step / width, y + KEYS[event.key][1] * step / height, side);
    else if (event.key === "+" || event.key === "=") this.#put(x, y, side * SCALE);
    else if (event.key === "-") this.#put(x, y, side / SCALE);
    else return;
    event.preventDefault();
    const now = this.#at;
    say(t("square_at", { x: percent(now.x), y: percent(now.y), side: percent(now.side) }));
    this.#settled();
  }

  /** Follow the pointer: `follow` gets its distance from the start. */
  #follow(event, follow) {
    if (event.button !== 0) return;
    const { target, pointerId, clientX, clientY } = event;
    const over = new AbortController();
    const end = () => { over.abort(); this.#settled(); };
    target.setPointerCapture(pointerId);
    target.addEventListener("pointermove", (move) => follow(move.clientX - clientX, move.clientY - clientY), { signal: over.signal });
    target.addEventListener("pointerup", end, { signal: over.signal });
    target.addEventListener("pointercancel", end, { signal: over.signal });
  }

  #drag(event, byCorner) {
    const { x, y, side } = this.#at;
    const { width, height } = this.#photo;
    const shorter = Math.min(width, height);
    this.#follow(event, (dx, dy) => {
      if (!byCorner) return this.#put(x + dx / width, y + dy / height, side);
      const longer = clamp(side + Math.max(dx, dy) / shorter, SMALLEST, 1) - side;
      return this.#put(x + longer * shorter / 2 / width, y + longer * shorter / 2 / height, side + longer);
    });
  }
}
