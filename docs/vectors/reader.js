// node reader.js vectors/

const fs = require("fs"), path = require("path");

const half = (bits) => {
  const sign = bits & 0x8000 ? -1 : 1, e = (bits >> 10) & 31, m = bits & 1023;
  if (e === 31) return m ? NaN : sign * Infinity;
  return sign * (e ? (1 + m / 1024) * 2 ** (e - 15) : m * 2 ** -24);
};

// Your decoders by type; this one is of q4_0.
const decoders = {
  q4_0(blocks, out) {
    for (let b = 0; b < blocks.length / 18; b++) {
      const at = b * 18, d = half(blocks[at] | (blocks[at + 1] << 8));
      for (let j = 0; j < 16; j++) {
        out[b * 32 + j] = d * ((blocks[at + 2 + j] & 15) - 8);
        out[b * 32 + j + 16] = d * ((blocks[at + 2 + j] >> 4) - 8);
      }
    }
  },
};

const folder = process.argv[2];
const index = JSON.parse(fs.readFileSync(path.join(folder, "index.json")));
if (index["ggmlq vectors"] !== 1) throw new Error("another version of the layout");
const bytes = (c, role) => fs.readFileSync(path.join(folder, c.files[role].file));
const floats = (c, role) => {
  const b = bytes(c, role);
  return new Float32Array(b.buffer.slice(b.byteOffset, b.byteOffset + b.length));
};
const wrong = (got, want, bound) => {
  let count = 0;
  for (let i = 0; i < want.length; i++) {
    const wild = !Number.isFinite(want[i]) || bound[i] === Infinity;
    if (!(Math.abs(got[i] - want[i]) <= bound[i] || (wild && !Number.isFinite(got[i])))) count++;
  }
  return count;
};

let status = 0;
for (const c of index.cases.filter((c) => decoders[c.type])) {
  if (c.kind === "decode") {
    const want = floats(c, "values"), got = new Float32Array(want.length), decode = decoders[c.type];
    decode(bytes(c, "blocks"), got);
    const count = wrong(got, want, floats(c, "bounds"));
    console.log(`${c.type} ${c.name}: ${count} of ${want.length} values are wrong`);
    if (count) status = 1;
  } else if (c.kind === "mutant") { // a harness that accepts one is blind
    const right = index.cases.find((d) => d.type === c.type && d.name === c.of);
    if (!wrong(floats(c, "values"), floats(right, "values"), floats(right, "bounds"))) status = 1;
  }
}
process.exit(status);
