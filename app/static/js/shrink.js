// Shrinks a large photo before it is sent, so that a phone with a slow connection waits seconds less.
//
// The server crops the central square and scales it to 224 pixels. This module changes only the scale, to
// three times that for the shorter side. So the server crops the same square and has more detail than it
// needs. Colours are not converted, because the server does not convert them either. The photo is turned
// upright, since a canvas does not save EXIF.
import { thumbnail as shownByServer } from "./api.js";
import { placed } from "./square.js";
import { settings } from "./ui.js";

const SHORT_SIDE = 3 * 224;
const WORTH_IT = 1.3;
const SMALL_BYTES = 150_000;
const QUALITY = 0.92;
// Animations of these types are rare or do not exist; GIF, WebP and TIFF are sent unchanged.
const KINDS = /^image\/(jpeg|png|avif|bmp)$/;
// Many browsers cannot show these.
const RARE = /^image\/(heic|heif|tiff)$|\.(heic|heif|tiff?)$/i;

/** Return the photo to send as {blob, ms, width, height}; `blob` is the file itself if shrinking does not help. */
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
    const scale = SHORT_SIDE / Math.min(bitmap.width, bitmap.height);
    if (scale * WORTH_IT > 1) return asItIs;
    const width = Math.round(bitmap.width * Math.min(1, scale));
    const height = Math.round(bitmap.height * Math.min(1, scale));
    const blob = await drawn(bitmap, width, height);
    if (!blob || blob.size >= file.size) return asItIs;
    return { blob, ms: performance.now() - started, width, height };
  } finally {
    bitmap.close();
  }
}

/** Crop a square of a photo. */
export async function cropped(photo, square) {
  const bitmap = await createImageBitmap(photo, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  const { left, top, length } = placed(square, bitmap.width, bitmap.height);
  const side = Math.round(Math.min(length, SHORT_SIDE));
  const blob = await drawn(bitmap, side, side, left, top, length);
  bitmap.close();
  return blob;
}

/** Return a thumbnail of a photo; null if the browser cannot show its format. */
export async function thumbnail(blob, side = 128) {
  try {
    const bitmap = await createImageBitmap(blob);
    const scale = Math.min(1, side / Math.min(bitmap.width, bitmap.height));
    const size = Math.round(Math.min(bitmap.width, bitmap.height) * scale);
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = size;
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    const width = bitmap.width * scale, height = bitmap.height * scale;
    context.drawImage(bitmap, (size - width) / 2, (size - height) / 2, width, height);
    bitmap.close();
    return await new Promise((done) => { canvas.toBlob(done, "image/jpeg", 0.75); });
  } catch {
    return null;
  }
}

function drawn(bitmap, width, height, left = 0, top = 0, length = 0) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { alpha: false });
  context.fillStyle = "white"; // transparency becomes white, as on the server
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, left, top, length || bitmap.width, length || bitmap.height, 0, 0, width, height);
  return new Promise((done) => { canvas.toBlob(done, "image/jpeg", QUALITY); });
}
