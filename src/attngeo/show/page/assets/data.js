// Reading the data of a page, building elements from text, and saving files.
// All files of this folder are joined into one script in the order of document.py; names are shared.

/** Return an element with attributes, listeners (`onclick: f`) and children; strings become text, never markup. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Return the object in a block of JSON, or null where the page has no such block. */
function readJson(id) {
  const block = document.getElementById(id);
  return block ? JSON.parse(block.textContent) : null;
}

/** Return the bytes behind base64 of gzip. */
async function inflate(text) {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Offer a text as a file. */
function saveFile(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

/** Return rows of cells as CSV. A text that a spreadsheet would read as a formula gets an apostrophe in front. */
function csv(rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number" || typeof value === "boolean") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? "'" + value : String(value);
    return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** Return a number as short text: 3 significant digits. */
function digits(value) {
  return value === 0 ? "0" : Number(value.toPrecision(3)).toString().replace("-", "−");
}

/** Return a share as a percentage with one decimal, never rounded up to 100. */
function percent(share) {
  return (Math.floor(1000 * Math.max(0, share)) / 10).toFixed(1) + "%";
}
