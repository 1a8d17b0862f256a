// Reads the bodies out of tests/interop/transcript.txt: lines of hexadecimal below a line that starts with > or <.

export function readTranscript(text) {
  const bodies = [];
  let current = null;
  for (const line of text.split('\n')) {
    const title = /^[<>] (.*)$/.exec(line);
    const hex = /^ {2}([0-9a-f]+) +;/.exec(line);
    if (title) {
      current = { title: title[1], parts: [] };
      bodies.push(current);
    } else if (hex && current) current.parts.push(hex[1]);
  }
  return bodies.map(({ title, parts }) => ({ title, bytes: Buffer.from(parts.join(''), 'hex') }));
}
