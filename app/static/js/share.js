// An answer to pass on: as text, or as a picture with the answer below the photo.
import { placed } from "./square.js";
import { inWords, save, say, t } from "./ui.js";

const LONGEST = 1280;
const MARGIN = 24;

const words = (verdict) => t("shared_by", { words: inWords(verdict) });

export async function copy(name, verdict) {
  await navigator.clipboard.writeText(words(verdict));
  say(t("copied"));
}

/** Share a picture of the answer, or download it if this browser does not share files. */
export async function share(name, verdict, photo, square) {
  const picture = new File([await withCaption(photo, square, words(verdict))], `${name.replace(/\.\w+$/, "")}-answer.jpg`, { type: "image/jpeg" });
  if (!navigator.canShare?.({ files: [picture] })) return save(picture, picture.name);
  // The reader may close the browser's dialog.
  return navigator.share({ files: [picture], text: words(verdict) }).catch(() => {});
}

function withCaption(photo, square, text) {
  const scale = LONGEST / Math.max(photo.naturalWidth, photo.naturalHeight);
  const [width, height] = [photo.naturalWidth * scale, photo.naturalHeight * scale];
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d");
  const size = Math.max(20, width / 32);
  Object.assign(canvas, { width, height: height + size + 2 * MARGIN });
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(photo, 0, 0, width, height);
  const { left, top, length } = placed(square, width, height);
  pen.lineWidth = 4;
  pen.strokeStyle = "#fff";
  pen.strokeRect(left + 2, top + 2, length - 4, length - 4);
  pen.fillStyle = "#2b2320";
  pen.font = `600 ${size}px system-ui, sans-serif`;
  pen.fillText(text, MARGIN, height + MARGIN + 0.8 * size, width - 2 * MARGIN);
  return new Promise((done) => { canvas.toBlob(done, "image/jpeg", 0.92); });
}
