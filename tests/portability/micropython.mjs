// Runs the core laws in MicroPython, compiled to WebAssembly.
//
//     node micropython.mjs MICROPYTHON.mjs FOLDER MODULE...
//
// MICROPYTHON.mjs is the npm package's entry.  FOLDER holds pyres/, core_laws.py and the stand-in
// for unittest, as matrix.py lays them out; the interpreter sees no files of the host, so they are
// copied.
// Each MODULE is imported, then every law runs in a call of its own: this build frees memory only
// between calls.  Exit 1 on any failure, and where no law was found: the interpreter's own command
// line exits 0 on an uncaught exception.
import fs from "fs";
import path from "path";
import { pathToFileURL } from "url";

const [entry, folder, ...modules] = process.argv.slice(2);
const { loadMicroPython } = await import(pathToFileURL(path.resolve(entry)).href);
const python = await loadMicroPython({
  linebuffer: true,
  stdout: (line) => console.log(line),
  stderr: (line) => console.error(line),
});

function copy(from, to) {
  python.FS.mkdir(to);
  for (const item of fs.readdirSync(from, { withFileTypes: true })) {
    const source = path.join(from, item.name), target = to + "/" + item.name;
    if (item.isDirectory()) copy(source, target);
    else if (item.name.endsWith(".py")) python.FS.writeFile(target, fs.readFileSync(source));
  }
}

let passed = 0, failed = 0;

function attempt(name, code) {
  try {
    python.runPython(code);
    return true;
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}\n${error.message}`);
    return false;
  }
}

copy(folder, "/host");
// in front of the interpreter's own frozen unittest
python.runPython(`import gc, sys\nsys.path.insert(0, "/host")`);
for (const module of modules) attempt(`import ${module}`, `import ${module}\ngc.collect()`);
if (attempt("import core_laws", "import unittest, core_laws")) {
  python.runPython(`names = " ".join(unittest.names_of_tests(core_laws))`);
  for (const name of python.globals.get("names").split(" ").filter((name) => name)) {
    if (attempt(name, `unittest.run_test(core_laws, "${name}")\ngc.collect()`)) passed += 1;
  }
}
console.log(`${modules.length} modules imported; laws: ${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
