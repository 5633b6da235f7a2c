// Shrinks a large photo before it is sent, so that a phone with a slow connection waits seconds less.
//
// The server reads a large JPEG at a half, a quarter or an eighth of its size, where the middle square still has
// 224 pixels, and scales that to 224. This module halves the middle square in the same way and sends it nearly
// without loss, so that the model sees the same. Colours are not converted, because the server does not convert
// them either. Photos are turned upright, since a canvas does not save EXIF.
import { thumbnail as shownByServer } from "./api.js";
import { placed } from "./square.js";
import { h, settings } from "./ui.js";

const SEEN = 224; // the side of what the model sees
const SHOWN = 448;
const SMALL_BYTES = 150_000;
const QUALITY = 0.92;
const THUMBNAIL = 128;
// Animations of these types are rare or do not exist; GIF, WebP and TIFF are sent unchanged.
const KINDS = /^image\/(jpeg|png|avif|bmp)$/;
// Many browsers cannot show these.
const RARE = /^image\/(heic|heif|tiff)$|\.(heic|heif|tiff?)$/i;

/** Return the photo as {blob, ms}, and `seen`, its middle square for the model, if it was large. */
export async function shrink(file, signal) {
  const started = performance.now();
  const asItIs = { blob: file, ms: 0 };
  const isRare = RARE.test(file.type) || RARE.test(file.name);
  if (!isRare && (!KINDS.test(file.type) || file.size < SMALL_BYTES)) return asItIs;
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  } catch {
    if (!isRare || file.size > settings.max_bytes) return asItIs; // the server reports what is wrong with it
    return { blob: await shownByServer(file, file.name, signal), ms: performance.now() - started, shown: true };
  }
  try {
    signal.throwIfAborted();
    const { width, height } = bitmap;
    const side = Math.min(width, height);
    if (side < 2 * SHOWN) return asItIs;
    const blob = await asJpeg(halved(bitmap, SHOWN, 0, 0, width, height));
    const seen = await asJpeg(halved(bitmap, SEEN, (width - side) / 2, (height - side) / 2, side, side), 1);
    return { blob, seen, ms: performance.now() - started };
  } finally {
    bitmap.close();
  }
}

/** Crop a square of a photo. */
export async function cropped(photo, square) {
  const bitmap = await createImageBitmap(photo, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  const { left, top, length } = placed(square, bitmap.width, bitmap.height);
  const blob = await asJpeg(halved(bitmap, SEEN, left, top, length, length), 1);
  bitmap.close();
  return blob;
}

/** Return a thumbnail of a photo's middle square; null if the browser cannot show its format. */
export async function thumbnail(blob) {
  const bitmap = await createImageBitmap(blob).catch(() => null);
  if (!bitmap) return null;
  const side = Math.min(bitmap.width, bitmap.height);
  const small = await drawn(bitmap, THUMBNAIL, THUMBNAIL, (bitmap.width - side) / 2, (bitmap.height - side) / 2, side);
  bitmap.close();
  return small;
}

/** Halve a part of a picture while its shorter side keeps `side` pixels; each pixel is the mean of four. */
function halved(picture, side, left, top, width, height) {
  const scale = Math.min(width, height) < 2 * side ? 1 : 2;
  const [narrower, lower] = [Math.round(width / scale), Math.round(height / scale)];
  const canvas = canvasOf(picture, narrower, lower, left, top, width, height);
  return scale === 1 ? canvas : halved(canvas, side, 0, 0, narrower, lower);
}

/** Draw a square of a picture, or all of it, as a JPEG of this size. */
export const drawn = (picture, width, height, left = 0, top = 0, side = 0) =>
  asJpeg(canvasOf(picture, width, height, left, top, side || width, side || height));

const asJpeg = (canvas, quality = QUALITY) => new Promise((done) => { canvas.toBlob(done, "image/jpeg", quality); });

function canvasOf(picture, width, height, ...part) {
  const canvas = h("canvas", { width, height });
  const context = canvas.getContext("2d", { alpha: false });
  context.fillStyle = "white"; // transparency becomes white, as on the server
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = part[2] > 2 * width + 1 ? "high" : "low"; // low is exact for halves
  context.drawImage(picture, ...part, 0, 0, width, height);
  return canvas;
}
