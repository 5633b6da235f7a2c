// Shrinks a large photo before it is sent, so that a phone with a slow connection waits seconds less.
//
// The server reads a large JPEG at a half, a quarter or an eighth of its size, the means of squares of pixels,
// and scales what is left to 224 pixels. This module halves the photo in the same way, as long as the shorter
// side keeps 448 pixels; so the model sees nearly the same. Colours are not converted, because the server does
// not convert them either. The photo is turned upright, since a canvas does not save EXIF.
import { thumbnail as shownByServer } from "./api.js";
import { placed } from "./square.js";
import { h, settings } from "./ui.js";

const SHORT_SIDE = 448;
const SMALL_BYTES = 150_000;
const QUALITY = 0.95;
const THUMBNAIL = 128;
// Animations of these types are rare or do not exist; GIF, WebP and TIFF are sent unchanged.
const KINDS = /^image\/(jpeg|png|avif|bmp)$/;
// Many browsers cannot show these.
const RARE = /^image\/(heic|heif|tiff)$|\.(heic|heif|tiff?)$/i;

/** Return the photo to send as {blob, ms}; `blob` is the file itself if shrinking does not help. */
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
    if (Math.min(bitmap.width, bitmap.height) < 2 * SHORT_SIDE) return asItIs;
    const blob = await halved(bitmap, 0, 0, bitmap.width, bitmap.height);
    if (!blob || blob.size >= file.size) return asItIs;
    return { blob, ms: performance.now() - started };
  } finally {
    bitmap.close();
  }
}

/** Crop a square of a photo. */
export async function cropped(photo, square) {
  const bitmap = await createImageBitmap(photo, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  const { left, top, length } = placed(square, bitmap.width, bitmap.height);
  const blob = await halved(bitmap, left, top, length, length);
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

/** Halve a part of a picture while its shorter side keeps SHORT_SIDE; each pixel is the mean of four. */
function halved(picture, left, top, width, height) {
  if (Math.min(width, height) < 2 * SHORT_SIDE) return asJpeg(canvasOf(picture, Math.round(width), Math.round(height), left, top, width, height));
  const [half, lower] = [Math.round(width / 2), Math.round(height / 2)];
  return halved(canvasOf(picture, half, lower, left, top, width, height), 0, 0, half, lower);
}

/** Draw a square of a picture, or all of it, as a JPEG of this size. */
export const drawn = (picture, width, height, left = 0, top = 0, side = 0) =>
  asJpeg(canvasOf(picture, width, height, left, top, side || width, side || height));

const asJpeg = (canvas) => new Promise((done) => { canvas.toBlob(done, "image/jpeg", QUALITY); });

function canvasOf(picture, width, height, ...part) {
  const canvas = h("canvas", { width, height });
  const context = canvas.getContext("2d", { alpha: false });
  context.fillStyle = "white"; // transparency becomes white, as on the server
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = part[2] > 2 * width + 1 ? "high" : "low"; // low is exact for halves
  context.drawImage(picture, ...part, 0, 0, width, height);
  return canvas;
}
